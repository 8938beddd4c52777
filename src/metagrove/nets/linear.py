"""A fully connected layer over the rows of a set, with the Xavier start that most of the paper's parts use."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def xavier(key: PRNGKeyArray, shape: tuple[int, ...], fan: int) -> Array:
    """U(±√(6 / fan)), where `fan` is inputs + outputs."""
    limit = (6 / fan) ** 0.5
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


class Linear(eqx.Module):
    """x W + b on a vector or on every row of a set."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]

    def __init__(self, in_dim: int, out_dim: int, *, key: PRNGKeyArray):
        self.weight = xavier(key, (in_dim, out_dim), in_dim + out_dim)
        self.bias = jnp.zeros(out_dim)

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        product = x @ self.weight
        return product + self.bias.reshape((1,) * (product.ndim - 1) + (-1,))

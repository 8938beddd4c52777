"""Fully connected layer with Xavier initialisation, which most parts of the paper use."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def xavier(key: PRNGKeyArray, shape: tuple[int, ...], fan: int) -> Array:
    """Draw from U(±√(6 / fan)), where `fan` is the number of inputs plus outputs (Xavier initialisation)."""
    limit = (6 / fan) ** 0.5
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


class Linear(eqx.Module):
    """x W + b, applied to a vector or to every row of a set."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]

    def __init__(self, in_dim: int, out_dim: int, *, key: PRNGKeyArray):
        self.weight = xavier(key, (in_dim, out_dim), in_dim + out_dim)
        self.bias = jnp.zeros(out_dim)

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        product = x @ self.weight
        return product + self.bias.reshape((1,) * (product.ndim - 1) + (-1,))

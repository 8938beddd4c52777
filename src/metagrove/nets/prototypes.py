"""Class prototypes, c_n = mean of f(xⱼ) over the support of class n (Snell et al. 2017), and attention among them.

A linear layer gives the same probabilities as distances to prototypes (Proto-MAML, Triantafillou et al. 2020):
softmax_n(-s‖f - c_n‖²) = softmax_n(W_n f + b_n) with W_n = 2s c_n and b_n = -s‖c_n‖².
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.nets.linear import Linear
from metagrove.task import Examples

NEVER = -1e9
"""Logit of a class that is absent from the support set."""


def class_prototypes(
    features: Float[Array, "n f"], support: Examples, attention: "SetAttention | None" = None
) -> tuple[Float[Array, "k f"], Bool[Array, " k"]]:
    """The prototype of each class, and whether the support set has examples of it.

    Args:
        features: Features of the support set.
        support: The support set, with one-hot labels.
        attention: Adapts the prototypes to each other.

    Returns:
        Prototypes, 0 for absent classes, and a mask of the classes that are present.
    """
    members = support.y * support.mask[:, None]
    counts = members.sum(0)
    centers = members.T @ features / jnp.maximum(counts, 1)[:, None]
    return (centers if attention is None else attention(centers, counts > 0)), counts > 0


def prototype_layer(
    centers: Float[Array, "k f"], known: Bool[Array, " k"], scale: Float[Array, ""] | float = 1.0
) -> tuple[Float[Array, "f k"], Float[Array, " k"]]:
    """W and b of the linear layer whose softmax is that of -s‖f - c_n‖²; an absent class is never predicted."""
    weight = jnp.where(known[None], 2 * scale * centers.T, 0)
    return weight, jnp.where(known, -scale * jnp.square(centers).sum(1), NEVER)


class SetAttention(eqx.Module):
    """c ← c + W_o Attention(norm(c)) over the prototypes of a task, as in FEAT (Ye et al. 2020).

    W_o starts at 0, so that training begins with the class means.
    """

    norm: eqx.nn.LayerNorm
    query_key_value: Linear
    mix: Linear

    def __init__(self, dim: int, *, key: PRNGKeyArray):
        self.norm = eqx.nn.LayerNorm(dim)
        self.query_key_value = Linear(dim, 3 * dim, key=key)
        mix = Linear(dim, dim, key=key)
        self.mix = eqx.tree_at(lambda layer: layer.weight, mix, jnp.zeros_like(mix.weight))

    def __call__(self, centers: Float[Array, "k f"], known: Bool[Array, " k"]) -> Float[Array, "k f"]:
        rows = jax.vmap(self.norm)(centers)
        query, key, value = jnp.split(self.query_key_value(rows)[:, None], 3, axis=-1)  # one head
        seen = jax.nn.dot_product_attention(query, key, value, mask=known[None, None])[:, 0]
        return centers + jnp.where(known[:, None], self.mix(seen), 0)

    @property
    def biases(self) -> tuple[Any, ...]:
        """The parameters that a node of a hierarchy may own."""
        return self.query_key_value.bias, self.mix.bias

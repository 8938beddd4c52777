"""Batch normalisation of rows by the weighted mean and variance of a set, or by given moments.

m = Σᵢ wᵢ xᵢ / Σᵢ wᵢ,   v = Σᵢ wᵢ (xᵢ - m)² / Σᵢ wᵢ,   y = scale ∘ (x - m) / √(v + ε) + shift
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

EPSILON = 1e-3
Moments = tuple[Float[Array, " d"], Float[Array, " d"]]
"""Mean and variance of each column."""


class BatchNorm(eqx.Module):
    """Normalises rows and applies a learned scale and shift; returns the moments too, so that they can be reused."""

    scale: Float[Array, "..."]
    shift: Float[Array, "..."]

    def __init__(self, dim: int):
        self.scale, self.shift = jnp.ones(dim), jnp.zeros(dim)

    def __call__(
        self, rows: Float[Array, "n d"], weight: Float[Array, " n"], moments: Moments | None = None
    ) -> tuple[Float[Array, "n d"], Moments]:
        mean, variance = moments_of(rows, weight) if moments is None else moments
        factor = self.scale * jax.lax.rsqrt(variance + EPSILON)
        return (rows - mean[None]) * factor[None] + self.shift[None], (mean, variance)


def moments_of(rows: Float[Array, "n d"], weight: Float[Array, " n"]) -> Moments:
    """Compute the weighted mean and variance of each column; rows of weight 0 have no effect."""
    share = weight / jnp.maximum(weight.sum(), 1e-8)
    rows = jnp.where(weight[:, None] > 0, rows, 0)
    mean = share @ rows
    return mean, share @ jnp.square(rows - mean[None])

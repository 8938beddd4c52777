"""Losses and metrics over a set of predictions, padded rows left out. Means, never sums (docs/method.md)."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

LossFn = Callable[[Array, Array, Array], Array]  # (prediction, y, mask) -> scalar


def masked_mean(values: Num[Array, "n ..."], mask: Bool[Array, " n"]) -> Float[Array, "..."]:
    """Mean over the rows where `mask` holds; the other rows are left out."""
    rows = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
    return jnp.where(rows, values, 0).sum(0) / jnp.maximum(mask.sum(), 1)


def mse(prediction: Float[Array, "n y"], y: Float[Array, "n y"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """Mean squared error over rows and outputs."""
    return masked_mean(jnp.square(prediction - y).mean(-1), mask)

"""A task: a few examples to adapt on, and others to be judged on.

Paper, section 3: D^tr is `support`, D^te is `query`. A batch of tasks is the same type with a leading axis.
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num

Split = Literal["train", "validation", "test"]
"""A meta-split: tasks to train on, to select on, to report on."""


class Examples(eqx.Module):
    """Rows of inputs and targets; `mask` is False on rows that only pad the arrays to a common size.

    Whatever is given there, even a NaN, becomes 0: it could otherwise spoil gradients that never use it.
    """

    x: Num[Array, "..."]
    y: Num[Array, "..."]
    mask: Bool[Array, "..."]

    def __init__(self, x: Num[Array, "..."], y: Num[Array, "..."], mask: Bool[Array, "..."]):
        self.x, self.y, self.mask = zero_where_masked(x, mask), zero_where_masked(y, mask), mask


class Task(eqx.Module):
    """One small problem. `family` is for reports and never reaches a learner's `adapt`."""

    support: Examples
    query: Examples
    family: Int[Array, "..."]


class Spec(eqx.Module):
    """What every task of a source has in common: the shape of one input and the size of one output."""

    x_shape: tuple[int, ...] = eqx.field(static=True)
    y_dim: int = eqx.field(static=True)

    @property
    def is_image(self) -> bool:
        """Is an input an image (height, width, channels)?"""
        return len(self.x_shape) == 3


def zero_where_masked(rows: Num[Array, "..."], mask: Bool[Array, "..."]) -> Num[Array, "..."]:
    """The rows, those that are masked set to 0."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (rows.ndim - mask.ndim)), rows, 0)


def unpadded(x: Num[Array, "n ..."], y: Num[Array, "n ..."]) -> Examples:
    """Examples without padding."""
    return Examples(x, y, jnp.ones(x.shape[0], bool))


def join(first: Examples, second: Examples) -> Examples:
    """The rows of both."""
    return Examples(
        jnp.concatenate([first.x, second.x]),
        jnp.concatenate([first.y, second.y]),
        jnp.concatenate([first.mask, second.mask]),
    )


def pad_rows(examples: Examples, num_rows: int) -> Examples:
    """The same examples in arrays of `num_rows` rows, the added ones masked out."""
    extra = num_rows - examples.mask.shape[0]

    def pad(rows: Array) -> Array:
        return jnp.pad(rows, [(0, extra)] + [(0, 0)] * (rows.ndim - 1))

    return Examples(pad(examples.x), pad(examples.y), pad(examples.mask))

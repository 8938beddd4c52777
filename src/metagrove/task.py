"""Tasks: a support set to adapt to and a query set to evaluate on.

In the paper (section 3), `support` is D^tr and `query` is D^te. A batch of tasks is the same type with a leading axis.
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num

__all__ = ["Examples", "Spec", "Split", "Task", "join", "pad_rows", "unpadded"]

Split = Literal["train", "validation", "test"]
"""Name of a meta-split: tasks for training, for model selection, and for the final evaluation."""


class Examples(eqx.Module):
    """A padded set of examples.

    Padded rows of `x` and `y` are set to 0, whatever they hold, since a NaN there would make gradients NaN.

    Args:
        x: Inputs of shape (n, ...).
        y: Targets of shape (n, y_dim); labels are one-hot.
        mask: Shape (n,); False for rows that only pad the arrays to a common size.

    Example:
        >>> import jax.numpy as jnp
        >>> import metagrove as mg
        >>> x = jnp.array([[0.0], [1.0], [0.0]])
        >>> examples = mg.Examples(x, 2 * x, jnp.array([True, True, False]))  # two examples and one padded row
    """

    x: Num[Array, "..."]
    y: Num[Array, "..."]
    mask: Bool[Array, "..."]

    def __init__(self, x: Num[Array, "..."], y: Num[Array, "..."], mask: Bool[Array, "..."]):
        self.x, self.y, self.mask = zero_where_masked(x, mask), zero_where_masked(y, mask), mask


class Task(eqx.Module):
    """One task Tᵢ: a support set, a query set and the index of its family.

    Args:
        support: Examples to adapt to (D^tr).
        query: Examples to evaluate on (D^te).
        family: Index of the family that the task is from (see `Source.family_names`). It is used in reports and
            never passed to `Learner.adapt`.
        classes: Of a training task with classes that return in other tasks, the index of each among all training
            classes (see `Source.num_classes`), for pretraining; never passed to `Learner.adapt` either.
    """

    support: Examples
    query: Examples
    family: Int[Array, "..."]
    classes: Int[Array, "..."] | None = None


class Spec(eqx.Module):
    """Shapes that all tasks of a source share.

    Args:
        x_shape: Shape of one input, e.g. (3,) for a row of three numbers or (84, 84, 3) for an image.
        y_dim: Size of one target: the number of values to predict, or the number of classes.
    """

    x_shape: tuple[int, ...] = eqx.field(static=True)
    y_dim: int = eqx.field(static=True)

    @property
    def is_image(self) -> bool:
        """Whether an input is an image of shape (height, width, channels)."""
        return len(self.x_shape) == 3


def zero_where_masked(rows: Num[Array, "..."], mask: Bool[Array, "..."]) -> Num[Array, "..."]:
    """Set masked rows to 0."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (rows.ndim - mask.ndim)), rows, 0)


def unpadded(x: Num[Array, "n ..."], y: Num[Array, "n ..."]) -> Examples:
    """Make a set of examples without padding.

    Args:
        x: Inputs of shape (n, ...).
        y: Targets of shape (n, y_dim).

    Returns:
        The examples, with a mask that is True everywhere.
    """
    return Examples(x, y, jnp.ones(x.shape[0], bool))


def join(first: Examples, second: Examples) -> Examples:
    """Concatenate two sets of examples.

    Args:
        first: The first rows.
        second: The rows to append.

    Returns:
        A set with the rows of both.
    """
    return Examples(
        jnp.concatenate([first.x, second.x]),
        jnp.concatenate([first.y, second.y]),
        jnp.concatenate([first.mask, second.mask]),
    )


def pad_rows(examples: Examples, num_rows: int) -> Examples:
    """Pad a set of examples to `num_rows` rows.

    Args:
        examples: A set of at most `num_rows` rows.
        num_rows: Number of rows after padding.

    Returns:
        The padded set; the added rows are masked.
    """
    extra = num_rows - examples.mask.shape[0]

    def pad(rows: Array) -> Array:
        return jnp.pad(rows, [(0, extra)] + [(0, 0)] * (rows.ndim - 1))

    return Examples(pad(examples.x), pad(examples.y), pad(examples.mask))

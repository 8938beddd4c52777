"""Validation of array inputs, and padding to a few sizes, so that a new number of rows does not compile again."""

from collections.abc import Sequence
from typing import TypeAlias, cast

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from PIL.Image import Image

from metagrove.errors import InputError, shortened
from metagrove.serve.images import image_array, pillow_images
from metagrove.task import Examples, Spec

LONGEST_ROW = 200
"""Characters of a row that a message quotes."""
Inputs: TypeAlias = ArrayLike | Image | Sequence[Image]
"""Inputs from the user: an array, or Pillow images."""


def padded_size(num_rows: int) -> int:
    """Round a number of rows up to a power of two, so that few sizes are compiled."""
    return max(4, 1 << (num_rows - 1).bit_length())


def padded_examples(x: np.ndarray, y: np.ndarray) -> Examples:
    """Examples padded to a rounded number of rows, in NumPy, which compiles nothing."""
    size = padded_size(len(x))
    mask = np.arange(size) < len(x)
    return Examples(jnp.asarray(pad(x, size)), jnp.asarray(pad(y, size)), jnp.asarray(mask))


def pad(rows: np.ndarray, size: int) -> np.ndarray:
    """The rows, and zeros up to `size` of them."""
    padded = np.zeros((size, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded


def one_hot(labels: ArrayLike, num_classes: int) -> np.ndarray:
    """One-hot codes of class indices."""
    numbers = np.asarray(labels)
    if not np.isin(numbers, range(num_classes)).all():
        raise InputError(f"y must be class indices from 0 to {num_classes - 1}, got {numbers.tolist()}")
    return np.eye(num_classes, dtype=np.float32)[numbers.astype(int)]


def support_rows(x: Inputs, y: ArrayLike, spec: Spec, *, classifies: bool) -> tuple[np.ndarray, np.ndarray]:
    """Validated inputs and targets; those of a classifier may be class indices."""
    y = one_hot(y, spec.y_dim) if classifies and np.ndim(np.asarray(y)) == 1 else y
    inputs = input_rows(x, spec)
    targets = numeric_rows("y", y, (spec.y_dim,))
    if len(inputs) != len(targets):
        raise InputError(f"x and y must have the same number of rows, got {len(inputs)} and {len(targets)}")
    return inputs, targets


def support_sets(
    supports: Sequence[tuple[ArrayLike, ArrayLike]], spec: Spec, *, classifies: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """`support_rows` of many tasks, whose values are checked all at once, which is faster."""
    try:
        inputs = [as_rows(x, spec.x_shape) for x, _ in supports]
        targets = [as_rows(y, (spec.y_dim,)) for _, y in supports]
    except (TypeError, ValueError):
        inputs = targets = []
    plain = all(
        x.shape[1:] == spec.x_shape and y.shape[1:] == (spec.y_dim,) and len(x) == len(y) > 0
        for x, y in zip(inputs, targets, strict=True)
    )
    if inputs and plain and len(spec.x_shape) == 1 and all_finite(inputs) and all_finite(targets):
        return list(zip(inputs, targets, strict=True))
    return [support_of(number, x, y, spec, classifies=classifies) for number, (x, y) in enumerate(supports)]


def all_finite(sets: Sequence[np.ndarray]) -> bool:
    """Whether all values of these arrays are finite."""
    return bool(np.isfinite(np.concatenate(sets)).all())


def support_of(
    number: int, x: ArrayLike, y: ArrayLike, spec: Spec, *, classifies: bool
) -> tuple[np.ndarray, np.ndarray]:
    """`support_rows` of one of many tasks, whose number is in error messages."""
    try:
        return support_rows(x, y, spec, classifies=classifies)
    except InputError as error:
        raise InputError(f"task {number}: {error}") from error


def input_rows(x: Inputs, spec: Spec) -> np.ndarray:
    """Validated inputs; images may also be Pillow images."""
    if spec.is_image and (images := pillow_images(x)):
        return image_array(images, spec.x_shape[0])
    if isinstance(x, np.ndarray) and x.dtype == np.uint8 and len(spec.x_shape) == 3:
        x = x.astype(np.float32) / 255
    return numeric_rows("x", cast(ArrayLike, x), spec.x_shape)


def numeric_rows(name: str, values: ArrayLike, row_shape: tuple[int, ...]) -> np.ndarray:
    """An (n, *row_shape) array of finite numbers; a flat list of numbers is accepted if a row is one number."""
    expected = f"({', '.join(['n', *map(str, row_shape)])})"
    try:
        array = as_rows(values, row_shape)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers of shape {expected}: {error}") from error
    if array.ndim != 1 + len(row_shape) or array.shape[1:] != row_shape:
        raise InputError(f"{name} must have shape {expected}, got {array.shape}: give one row per example")
    if len(array) == 0:
        raise InputError(f"{name} is empty: give at least one row")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0])
        text = shortened(array[row].tolist(), LONGEST_ROW)
        raise InputError(f"{name} must be finite, row {row} is {text}: drop or correct that row")
    return array


def as_rows(values: ArrayLike, row_shape: tuple[int, ...]) -> np.ndarray:
    """The values in single precision; a flat list becomes rows if a row is one number."""
    array = np.asarray(values, np.float32)
    return array[:, None] if row_shape == (1,) and array.ndim == 1 else array

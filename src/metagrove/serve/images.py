"""A user's images: a support set in class folders, and query images that are read in batches."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from metagrove.errors import InputError, quoted
from metagrove.pools.archive import IMAGE_SUFFIXES, Listing, contents, listing
from metagrove.pools.image import decode, resized
from metagrove.pools.layouts import class_folders
from metagrove.pools.limits import DEFAULT, read_member
from metagrove.task import Spec

AT_ONCE = 64
"""Images in memory at a time."""


def support_images(folder: Path, spec: Spec) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The classes by name, their images (values from 0 to 1), and the one-hot codes of their classes."""
    found = class_folders(list_images(folder))
    if found is None:
        raise InputError(f"{folder} must hold a folder of images for each class, e.g. cat/1.jpg and dog/1.jpg")
    classes = tuple(sorted({image.class_name for image in found}))
    refuse_classes(classes, folder, spec.y_dim)
    class_of = {image.path: classes.index(image.class_name) for image in found}
    size, paths = spec.x_shape[0], [image.path for image in found]
    read = [
        (class_of[path], x) for names, some in decoded(folder, paths, size) for path, x in zip(names, some, strict=True)
    ]
    return classes, np.stack([x for _, x in read]), np.eye(spec.y_dim, dtype=np.float32)[[c for c, _ in read]]


def refuse_classes(classes: Sequence[str], folder: Path, ways: int) -> None:
    """Raise an InputError for fewer than two classes, or more than the net has outputs."""
    if len(classes) < 2:
        raise InputError(f"{folder} has one class only, {quoted(classes[0])}: expected images of at least two")
    if len(classes) > ways:
        raise InputError(f"{folder} has {len(classes)} classes, the run distinguishes {ways}: leave some out")


def list_images(folder: Path) -> Listing:
    """List the images of a folder or archive, of which there must be at least one."""
    found = listing(folder)
    if not found.images:
        raise InputError(f"{folder} holds no images: expected .jpg, .png, .bmp, .webp or .gif files")
    return found


def decoded(folder: Path, paths: Sequence[str], size: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yield the images of these paths in batches, in the order of the folder."""
    names: list[str] = []
    some: list[np.ndarray] = []
    for path, content in contents(folder, set(paths)):
        names.append(path)
        some.append(read_image(folder, path, content, size))
        if len(names) == AT_ONCE:
            yield names, np.stack(some)
            names, some = [], []
    if names:
        yield names, np.stack(some)


def read_image(folder: Path, path: str, content: bytes, size: int) -> np.ndarray:
    """One image, values from 0 to 1."""
    try:
        return decode(content, size).astype(np.float32) / 255
    except Exception as error:  # a damaged image makes Pillow raise nearly anything
        raise InputError(f"{folder}/{path} cannot be read as an image ({error}): replace it or leave it out") from error


def is_image_file(path: Path) -> bool:
    """Whether a path is that of one image."""
    return path.is_file() and path.suffix.lower() in IMAGE_SUFFIXES


def read_image_file(path: Path, size: int) -> np.ndarray:
    """One image by its path, values from 0 to 1."""
    try:
        with path.open("rb") as file:
            content = read_member(file, DEFAULT, path.parent, path.name)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    return read_image(path.parent, path.name, content, size)


def pillow_images(given: Any) -> list[Image.Image]:
    """Pillow images, one or a list of them; empty for anything else."""
    some = [given] if isinstance(given, Image.Image) else given
    found = isinstance(some, list | tuple) and bool(some) and all(isinstance(one, Image.Image) for one in some)
    return list(some) if found else []


def image_array(images: Sequence[Image.Image], size: int) -> np.ndarray:
    """Convert Pillow images to inputs of the net, values from 0 to 1."""
    return np.stack([resized(image, size) for image in images]).astype(np.float32) / 255

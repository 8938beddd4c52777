"""A pool: all images of one dataset at one size, in a folder of two files.

images.npy   (n, size, size, 3) uint8, the images of a class stored contiguously
index.json   name, size, classes in order with their meta-split and number of images, checksums, origin
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import shutil
import tokenize
from pathlib import Path

import numpy as np

from metagrove import files
from metagrove.errors import InputError, RunError, quoted, shortened
from metagrove.files import Json

SPLITS = ("train", "validation", "test")
OLD = ".old"
"""Suffix of a pool that is renamed while another replaces it."""


@dataclasses.dataclass(frozen=True)
class ImageClass:
    """One class: its meta-split, and the index of its first image and the number of its images."""

    name: str
    split: str
    start: int
    count: int


@dataclasses.dataclass(frozen=True)
class PoolIndex:
    """index.json, with notes on how the pool was prepared."""

    name: str
    sha256: str
    classes: tuple[ImageClass, ...]
    about: dict[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Pool:
    """An open pool; `images` is memory-mapped."""

    name: str
    size: int
    classes: tuple[ImageClass, ...]
    images: np.ndarray
    sha256: str


def folder_of(name: str, size: int, data: Path) -> Path:
    """Return the folder of a pool."""
    return data / f"{name}-{size}"


def write(folder: Path, name: str, images: np.ndarray, classes: list[tuple[str, str, int]], about: Json) -> None:
    """Write both files into an existing folder; `classes` are (name, split, count) in the order of the images."""
    stored = create(folder, len(images), images.shape[1])
    stored[:] = images
    stored.flush()
    seal(folder, name, classes, about)


def create(folder: Path, count: int, size: int) -> np.memmap:
    """Create a memory-mapped images.npy for `count` images, which need not fit in memory."""
    needed, free = count * size * size * 3, shutil.disk_usage(folder).free
    if needed > free:
        raise RunError(
            f"{folder.parent} has {free / 1e6:.0f} MB free, the pool needs {needed / 1e6:.0f} MB: free up space"
        )
    return np.lib.format.open_memmap(folder / "images.npy", mode="w+", dtype=np.uint8, shape=(count, size, size, 3))


def seal(folder: Path, name: str, classes: list[tuple[str, str, int]], about: Json) -> None:
    """Write index.json for the images.npy in the same folder."""
    entries, start = [], 0
    for class_name, split, count in classes:
        entries.append({"name": class_name, "split": split, "start": start, "count": count})
        start += count
    size = np.load(folder / "images.npy", mmap_mode="r").shape[1]
    checksum = file_sha256(folder / "images.npy")
    index = {"format": files.FORMAT, "name": name, "size": size, "sha256": checksum, "classes": entries}
    files.write_json(folder / "index.json", {**index, "about": about})


def read(name: str, size: int, data: Path) -> Pool:
    """Open a prepared pool.

    Raises:
        InputError: If there is no such pool.
        RunError: If the pool is damaged.
    """
    folder = folder_of(name, size, data)
    restore(folder.with_name(f".{folder.name}{OLD}"))
    if not (folder / "index.json").exists():
        raise InputError(
            f"no pool {quoted(name)} of {size} pixels in {data}: prepare it with `metagrove data prepare {name} --from "
            f"FOLDER_OR_ARCHIVE --size {size}`, and see `metagrove data list`"
        )
    index = files.read_record(PoolIndex, folder / "index.json", needs=("name", "sha256", "classes"))
    path = folder / "images.npy"
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is not a plain file: prepare {name} again")
    try:
        images = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError, OverflowError, SyntaxError, tokenize.TokenError, MemoryError) as error:
        raise RunError(f"{path} cannot be read ({shortened(error, 200)}): prepare {name} again") from error
    if images.shape != (sum(one.count for one in index.classes), size, size, 3) or images.dtype != np.uint8:
        raise RunError(f"{path} has shape {images.shape}, which differs from its index: prepare it again")
    starts = [0, *itertools.accumulate(one.count for one in index.classes)]
    if any((one.start, one.split in SPLITS) != (at, True) for one, at in zip(index.classes, starts, strict=False)):
        raise RunError(f"{folder / 'index.json'} has classes that do not fit its images: prepare it again")
    return Pool(index.name, size, index.classes, images, index.sha256)


def restore(aside: Path) -> None:
    """Restore a pool that was renamed by a process that was killed before the new one was in place."""
    folder = aside.with_name(aside.name[1:].removesuffix(OLD))
    with contextlib.suppress(OSError):
        if aside.is_dir() and not folder.exists():
            os.replace(aside, folder)
        elif aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)


def prepared(data: Path) -> list[tuple[str, int]]:
    """List the names and sizes of the pools in a folder, without opening them."""
    found = (path.parent.name.rpartition("-") for path in data.glob("*/index.json") if path.parent.name[0] != ".")
    return sorted((name, int(size)) for name, _, size in found if name and size.isdecimal())


def verify(name: str, size: int, data: Path) -> Pool:
    """Open a pool and recompute its checksum.

    Raises:
        InputError: If there is no such pool.
        RunError: If the pool is damaged.
    """
    pool = read(name, size, data)
    path = folder_of(name, size, data) / "images.npy"
    if (checksum := file_sha256(path)) != pool.sha256:
        raise RunError(
            f"{path} is damaged: its checksum is {checksum[:12]}…, expected {pool.sha256[:12]}…; prepare {name} again"
        )
    return pool


def describe(pool: Pool) -> str:
    """Describe a pool in one line: classes by split, images, checksum."""
    counts = "/".join(str(sum(one.split == split for one in pool.classes)) for split in SPLITS)
    return f"{counts} classes, {len(pool.images):,} images, sha256 {pool.sha256[:12]}"


def notes(folder: Path) -> list[str]:
    """Describe how a pool was prepared, one line per fact."""
    about = files.read_record(PoolIndex, folder / "index.json").about
    return [f"{key.replace('_', ' ')}: {value}" for key, value in about.items()]


def file_sha256(path: Path) -> str:
    """Compute the SHA-256 checksum of a file, read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

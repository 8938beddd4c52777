"""Directory layouts of image sources: each layout turns a listing into labelled images, or returns None.

The official archives of Describable Textures and FGVCx Fungi are plain class folders (dtd/images/banded/*.jpg,
images/10000_Suillus_granulatus/*.jpg), so `class_folders` reads them like a user's own images.
"""

import csv
import dataclasses
from collections.abc import Callable
from typing import TypeVar

from metagrove.errors import InputError, quoted
from metagrove.pools.archive import Listing

T = TypeVar("T")
Box = tuple[float, float, float, float]
SPLIT_FOLDERS = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """One image with its class, its box (left, top, right, bottom) and its split, if the source has them."""

    class_name: str
    path: str
    box: Box | None = None
    split: str | None = None


Layout = Callable[[Listing], list[ImageFile] | None]


def cub(listing: Listing) -> list[ImageFile] | None:
    """Read CUB-200-2011: tables indexed by image number next to images/; a box is x, y, width, height."""
    root = listing.folder_with("bounding_boxes.txt")
    if root is None:
        return None
    class_names = dict(listing.rows(f"{root}classes.txt", 2))
    labels = dict(listing.rows(f"{root}image_class_labels.txt", 2))
    boxes = {number: box for number, *box in listing.rows(f"{root}bounding_boxes.txt", 5)}
    images = []
    for number, path in listing.rows(f"{root}images.txt", 2):
        x, y, width, height = numbers(entry(boxes, number, "bounding_boxes.txt"))
        label = entry(labels, number, "image_class_labels.txt")
        box = (x, y, x + width, y + height)
        images.append(ImageFile(entry(class_names, label, "classes.txt"), f"{root}images/{path}", box))
    return images


def fgvc(listing: Listing) -> list[ImageFile] | None:
    """Read FGVC-Aircraft: variants and boxes by image number; a box is left, top, right, bottom, counted from 1."""
    root = listing.folder_with("images_variant_trainval.txt")
    if root is None:
        return None
    boxes = {number: box for number, *box in listing.rows(f"{root}images_box.txt", 5)}
    images = []
    for part in ("trainval", "test"):
        for number, variant in listing.rows(f"{root}images_variant_{part}.txt", 2):
            left, top, right, bottom = numbers(entry(boxes, number, "images_box.txt"))
            box = (left - 1, top - 1, right, bottom)
            images.append(ImageFile(variant.strip(), f"{root}images/{number}.jpg", box))
    return images


def ravi(listing: Listing) -> list[ImageFile] | None:
    """Read MiniImagenet as split by Ravi & Larochelle: {train,val,test}.csv (filename, label) and images/."""
    if listing.folder_with("train.csv") is None:
        return None
    by_name = {path.rpartition("/")[2]: path for path in listing.images}
    images = []
    for part in ("train", "val", "test"):
        path = f"{listing.folder_with(f'{part}.csv') or ''}{part}.csv"
        for row in csv.DictReader(listing.tables.get(path, "").splitlines()):
            if not row.get("filename") or not row.get("label"):
                raise InputError(f"{path} has no columns filename and label: use the file of Ravi & Larochelle")
            images.append(ImageFile(row["label"], by_name.get(row["filename"], f"images/{row['filename']}")))
    return images


def class_folders(listing: Listing) -> list[ImageFile] | None:
    """Read class/*.jpg, optionally below train/, val/ and test/, inside any number of enclosing folders."""
    parts = without_enclosing([path.split("/") for path in listing.images])
    named = zip(parts, listing.images, strict=True)
    if not any(is_split(inner) for inner in parts):
        return [ImageFile(inner[0], path) for inner, path in named if len(inner) > 1] or None
    return [
        ImageFile(inner[1], path, split=SPLIT_FOLDERS[inner[0].lower()]) for inner, path in named if is_split(inner)
    ]


def without_enclosing(paths: list[list[str]]) -> list[list[str]]:
    """Strip the folders that all paths share, down to the split or class folders."""
    while paths and min(map(len, paths)) > 2 and len({path[0] for path in paths}) == 1 and not is_split(paths[0]):
        paths = [path[1:] for path in paths]
    return paths


def is_split(path: list[str]) -> bool:
    """Return whether this image lies in a class folder below train, val or test."""
    return len(path) > 2 and path[0].lower() in SPLIT_FOLDERS


def entry(table: dict[str, T], number: str, name: str) -> T:
    """Return the row of one image or class, which must exist."""
    if number not in table:
        raise InputError(f"{name} has no row for {number}, which another table names: download the archive again")
    return table[number]


def numbers(words: list[str]) -> list[float]:
    """Parse the four numbers of a bounding box."""
    try:
        return [float(word) for word in words]
    except ValueError as error:
        raise InputError(
            f"a bounding box reads {quoted(' '.join(words))}, expected four numbers: download the archive again"
        ) from error

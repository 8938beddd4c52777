"""Plan a pool from a listing: select its images and assign every class to a meta-split."""

import dataclasses
import random
from collections.abc import Iterable
from pathlib import Path

from metagrove.errors import InputError, quoted
from metagrove.pools.archive import Listing
from metagrove.pools.layouts import ImageFile, class_folders
from metagrove.pools.official import OFFICIAL, normal, splits, without_number
from metagrove.pools.pool import SPLITS

SHOWN = 10
PAPER = "the paper's classes by name"
Classes = dict[str, list[ImageFile]]


@dataclasses.dataclass(frozen=True)
class Planned:
    """A class of the planned pool, with its images sorted by file name."""

    name: str
    split: str
    images: tuple[ImageFile, ...]


@dataclasses.dataclass(frozen=True)
class Rules:
    """Minimum size of a pool, and how classes are split if the source defines no split."""

    min_images: int = 16
    ways: int = 5
    shares: tuple[float, float, float] = (64.0, 16.0, 20.0)
    seed: int = 0

    def __post_init__(self):
        if min(self.shares) < 0 or sum(self.shares) <= 0:
            raise InputError(f"splits must be three proportions of at least 0, such as 64 16 20; got {self.shares}")
        if self.min_images < 1 or self.ways < 1:
            raise InputError(f"min-images and ways must be at least 1; got {self.min_images} and {self.ways}")


def plan(name: str, source: Path, found: Listing, rules: Rules) -> tuple[list[Planned], str]:
    """Return the classes of a pool and a description of their split.

    Raises:
        InputError: If the listing cannot make a pool; the message names all problems at once.
    """
    images = find_images(name, found)
    if not images:
        raise InputError(f"{source} holds no images in class folders: expected class/*.jpg or train/class/*.jpg")
    classes, how, problems = divide(name, images, rules)
    present = set(found.images)
    problems += [f"{one.path} is listed but missing" for c in classes for one in c.images if one.path not in present]
    problems += [
        f"class {quoted(one.name)} has {len(one.images)} images, needs {rules.min_images} (--min-images)"
        for one in classes
        if len(one.images) < rules.min_images
    ]
    problems += too_few_classes(classes, rules)
    raise_problems(source, problems, f" as {name}, {PAPER} (images of your own need another name)" * (how == PAPER))
    return classes, how


def find_images(name: str, found: Listing) -> list[ImageFile]:
    """Find the images of a source by the official layout of that name if it matches, else by class folders."""
    layout = OFFICIAL[name].layout if name in OFFICIAL else None
    return (layout and layout(found)) or class_folders(found) or []


def divide(name: str, images: list[ImageFile], rules: Rules) -> tuple[list[Planned], str, list[str]]:
    """Assign classes to meta-splits; return the classes, a description of the split, and the problems."""
    if any(image.split for image in images):
        classes, problems = given_split(images)
        return classes, "as in the source", problems
    if name in OFFICIAL:
        classes, problems = paper_split(name, images)
        return classes, PAPER, problems
    shares = "/".join(f"{share:g}" for share in rules.shares)
    return random_split(images, rules), f"drawn in the ratio {shares} with seed {rules.seed}", []


def given_split(images: list[ImageFile]) -> tuple[list[Planned], list[str]]:
    """Use the split of the source's train, val and test folders; a class in two of them is a problem."""
    classes = [
        planned(class_name, split, members)
        for split in SPLITS
        for class_name, members in by_class(one for one in images if one.split == split).items()
    ]
    where: dict[str, list[str]] = {}
    for one in classes:
        where.setdefault(one.name, []).append(one.split)
    return classes, [
        f"class {quoted(class_name)} lies in {' and '.join(found)}: meta-splits share no class, remove the split "
        "folders to have the classes split at random"
        for class_name, found in where.items()
        if len(found) > 1
    ]


def paper_split(name: str, images: list[ImageFile]) -> tuple[list[Planned], list[str]]:
    """Use the paper's classes, matched by name, and its number of images; a missing class is a problem."""
    found: Classes = {}
    for class_name, members in by_class(images).items():
        for form in {normal(class_name), normal(without_number(class_name))}:
            found.setdefault(form, []).extend(members)
    wanted = [(class_name, split) for split in SPLITS for class_name in splits()[name][split]]
    missing = [
        f"class {quoted(class_name)} of the paper's {split} split is missing"
        for class_name, split in wanted
        if normal(class_name) not in found
    ]
    limit = OFFICIAL[name].images
    classes = [planned(one, split, found[normal(one)], limit) for one, split in wanted if normal(one) in found]
    return classes, missing


def random_split(images: list[ImageFile], rules: Rules) -> list[Planned]:
    """Shuffle the classes with a seed and split them into train, validation and test by the given proportions."""
    classes = by_class(images)
    names = sorted(classes)
    random.Random(rules.seed).shuffle(names)
    validation, test = (round(share / sum(rules.shares) * len(names)) for share in rules.shares[1:])
    train = max(len(names) - validation - test, 0)
    cut = {"train": names[:train], "validation": names[train : train + validation], "test": names[train + validation :]}
    return [planned(name, split, classes[name]) for split in SPLITS for name in sorted(cut[split])]


def by_class(images: Iterable[ImageFile]) -> Classes:
    """Group images by class, sorted by class name."""
    classes: Classes = {}
    for image in images:
        classes.setdefault(image.class_name, []).append(image)
    return dict(sorted(classes.items()))


def planned(name: str, split: str, images: list[ImageFile], limit: int | None = None) -> Planned:
    """Make a class from its first images by file name, without duplicates."""
    ordered = sorted({image.path: image for image in images}.items())
    return Planned(name, split, tuple(image for _, image in ordered[:limit]))


def too_few_classes(classes: list[Planned], rules: Rules) -> list[str]:
    """Describe the meta-splits with too few classes to draw a task from."""
    counts = {split: sum(one.split == split for one in classes) for split in SPLITS}
    return [
        f"the {split} split has {count} classes, needs {rules.ways} (--ways; --splits changes the proportions of a "
        "random split)"
        for split, count in counts.items()
        if count < rules.ways
    ]


def raise_problems(source: Path, problems: list[str], what: str = "") -> None:
    """Raise an InputError that lists the first ten problems and counts the others; do nothing if there are none."""
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise InputError("\n  ".join([f"{source} was not prepared{what}:", *problems[:SHOWN], *more]))

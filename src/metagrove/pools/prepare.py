"""Prepare a pool: read a source, decode its images, and move the finished folder into place atomically.

All problems of a listing are reported together before any image is decoded, then all unreadable images together. Any
failure, including Ctrl-C, leaves the previous state of the folder unchanged.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import PIL
from rich.progress import Progress

from metagrove.errors import InputError, quoted, shortened
from metagrove.files import TEMPORARY, hold, remove_abandoned, save_error
from metagrove.pools import archive, pool
from metagrove.pools.image import decode
from metagrove.pools.limits import DEFAULT, Limits
from metagrove.pools.official import OFFICIAL
from metagrove.pools.plan import PAPER, Planned, Rules, plan, raise_problems
from metagrove.terminal import TerminalConsole

MAX_SIZE = 1024
OLD = pool.OLD


def prepare(
    name: str,
    source: Path,
    *,
    size: int = 84,
    data: Path = Path("data"),
    min_images: int = 16,
    ways: int = 5,
    splits: tuple[float, float, float] = (64.0, 16.0, 20.0),
    seed: int = 0,
    force: bool = False,
    limits: Limits = DEFAULT,
) -> Path:
    """Prepare a pool of images from a folder, a tar file or a zip file.

    Args:
        name: Name of the pool; the name of an official dataset selects its layout and the paper's class split.
        source: Folder, tar file or zip file with the images.
        size: Height and width of the prepared images in pixels.
        data: Folder that holds all pools.
        min_images: Images that each class must have.
        ways: Classes that each meta-split must have.
        splits: Proportions of training, validation and test classes, if the source defines no split.
        seed: Random seed of that split.
        force: Replace an existing pool.
        limits: Limits on the sizes of the source and its images.

    Returns:
        The folder of the pool.

    Raises:
        InputError: If the arguments or the source are invalid; the message lists all problems at once.
        RunError: If the pool cannot be written.
    """
    rules = Rules(min_images, ways, splits, seed)
    folder = pool.folder_of(name, size, data)
    remove_half_pools(data)
    check(name, size, folder, force)
    found = archive.listing(source, limits)
    classes, how = plan(name, source, found, rules)
    about = {
        "source": source.name,
        "splits": how,
        **describe_images(classes, OFFICIAL[name].images if how == PAPER else 0),
        "other_files_ignored": found.others,
    }
    with new_folder(folder) as temporary:
        fill(temporary, source, size, classes, limits)
        pool.seal(temporary, name, [(one.name, one.split, len(one.images)) for one in classes], about)
    return folder


def describe_images(classes: list[Planned], usual: int) -> dict[str, str]:
    """Describe the images for the index; `usual` is the paper's number of images per class, 0 for other classes."""
    cropped = any(image.box for one in classes for image in one.images)
    counts = [len(one.images) for one in classes]
    short = sum(count < usual for count in counts)
    return {
        "images_a_class": f"{min(counts)} to {max(counts)}"
        + (f", {short} classes below the paper's {usual}" * bool(short)),
        "frame": "bounding box" if cropped else "whole",
        "resized": f"Lanczos, Pillow {PIL.__version__}",
    }


def check(name: str, size: int, folder: Path, force: bool) -> None:
    """Raise an InputError for an invalid name, an invalid size, or a pool that exists already."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(
            f"a pool's name must consist of letters, digits, dots and dashes (my-birds); got {quoted(name)}"
        )
    if not 1 <= size <= MAX_SIZE:
        raise InputError(f"size must be from 1 to {MAX_SIZE} pixels; got {size}")
    if folder.exists() and not force:
        raise InputError(f"{folder} exists already: --force replaces it, another --size or name keeps both")


def fill(folder: Path, source: Path, size: int, classes: list[Planned], limits: Limits) -> None:
    """Decode every image into its row of images.npy; report all unreadable images at once."""
    rows = {image.path: (row, image.box) for row, image in enumerate(p for one in classes for p in one.images)}
    images = pool.create(folder, len(rows), size)
    missing, problems = set(rows), []
    with progress(len(rows)) as step:
        for path, content in archive.contents(source, rows, limits):
            row, box = rows[path]
            try:
                images[row] = decode(content, size, box, limits)
            except Exception as error:  # a damaged image makes Pillow raise nearly anything
                reason = (str(error) or type(error).__name__).splitlines()[0]
                problems.append(f"{path} is not a readable image ({shortened(reason, 200)})")
            missing.discard(path)
            step()
    images.flush()
    raise_problems(source, problems + [f"{path} disappeared while the source was read" for path in sorted(missing)])


@contextlib.contextmanager
def progress(total: int) -> Iterator:
    """Show a progress bar on a terminal; yield a function to call after each image."""
    console = TerminalConsole(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("images", total=total)
        yield lambda: bar.advance(task)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` on success and is deleted on failure."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=TEMPORARY))
        descriptor = os.open(temporary, os.O_RDONLY) if hasattr(os, "O_DIRECTORY") else None
        lock = None if descriptor is None else hold(descriptor)
    except OSError as error:
        raise save_error(folder, error) from error
    try:
        yield temporary
        temporary.chmod(0o755)
        move_into_place(temporary, folder)
    except OSError as error:
        raise save_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for one in (descriptor, lock):
            if one is not None:
                os.close(one)


def remove_half_pools(data: Path) -> None:
    """Remove temporary folders of killed preparations, and restore a pool that one of them had renamed."""
    for aside in list(data.glob(f".*{OLD}")):
        pool.restore(aside)
    remove_abandoned(data)


def move_into_place(temporary: Path, folder: Path) -> None:
    """Move a finished folder into place; an existing folder is restored if the move fails."""
    if not folder.exists():
        os.replace(temporary, folder)
        return
    aside = folder.with_name(f".{folder.name}{OLD}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)
    try:
        os.replace(temporary, folder)
    except BaseException:
        os.replace(aside, folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)

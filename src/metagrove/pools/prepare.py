"""Prepare a pool: read a source, decode its images, and put the finished folder in place in one move.

The problems of a listing are all reported together before any image is decoded, then all unreadable images
together. After any failure, and after Ctrl-C, there is what there was before.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import PIL
from rich.console import Console
from rich.progress import Progress

from metagrove.errors import InputError
from metagrove.files import save_error
from metagrove.pools import archive, pool
from metagrove.pools.image import decode
from metagrove.pools.official import OFFICIAL
from metagrove.pools.plan import PAPER, Planned, Rules, complain, plan

MAX_SIZE = 1024


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
) -> Path:
    """Make the pool `name` at `size` pixels from a folder, a tar or a zip; the folder it lies in."""
    rules = Rules(min_images, ways, splits, seed)
    folder = pool.folder_of(name, size, data)
    check(name, size, folder, force)
    found = archive.listing(source)
    classes, how = plan(name, source, found, rules)
    about = {
        "source": source.name,
        "splits": how,
        **facts(classes, OFFICIAL[name].images if how == PAPER else 0),
        "other_files_ignored": found.others,
    }
    with new_folder(folder) as temporary:
        fill(temporary, source, size, classes)
        pool.seal(temporary, name, [(one.name, one.split, len(one.images)) for one in classes], about)
    return folder


def facts(classes: list[Planned], usual: int) -> dict[str, str]:
    """What the index says about the images; `usual` is how many of a class the paper has, 0 for other classes."""
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
    """Refuse a name that is no folder name, a size out of reach, and a pool that is there already."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"a pool's name is letters, digits, dots and dashes, such as my-birds; got {name!r}")
    if not 1 <= size <= MAX_SIZE:
        raise InputError(f"size must be from 1 to {MAX_SIZE} pixels; got {size}")
    if folder.exists() and not force:
        raise InputError(f"{folder} is there already: --force prepares it again, --size or another name keeps both")


def fill(folder: Path, source: Path, size: int, classes: list[Planned]) -> None:
    """Decode every image into its row of images.npy; all that cannot be read are named at once."""
    rows = {image.path: (row, image.box) for row, image in enumerate(p for one in classes for p in one.images)}
    images = pool.create(folder, len(rows), size)
    missing, problems = set(rows), []
    with progress(len(rows)) as step:
        for path, content in archive.contents(source, rows):
            row, box = rows[path]
            try:
                images[row] = decode(content, size, box)
            except Exception as error:  # a damaged image makes Pillow raise nearly anything
                problems.append(f"{path} is not an image that can be read ({str(error).splitlines()[0]})")
            missing.discard(path)
            step()
    images.flush()
    complain(source, problems + [f"{path} went away while the source was read" for path in sorted(missing)])


@contextlib.contextmanager
def progress(total: int) -> Iterator:
    """A bar on a terminal, nothing elsewhere; gives a function to call after each image."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("images", total=total)
        yield lambda: bar.advance(task)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` if all goes well and vanishes if not."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise save_error(folder, error) from error
    try:
        yield temporary
        temporary.chmod(0o755)
        put_in_place(temporary, folder)
    except OSError as error:
        raise save_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_in_place(temporary: Path, folder: Path) -> None:
    """Move a finished folder to its place; an older one is set aside first and comes back if the move fails."""
    if not folder.exists():
        os.replace(temporary, folder)
        return
    aside = temporary.with_name(f"{temporary.name}.old")
    os.replace(folder, aside)
    try:
        os.replace(temporary, folder)
    except BaseException:
        os.replace(aside, folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)

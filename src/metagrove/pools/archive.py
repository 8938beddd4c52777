"""Read images from a folder, a tar file or a zip file without extracting anything to disk.

An archive is read sequentially, twice: once to list its members and once to read the selected images. A compressed
tar file of many gigabytes supports no random access, so any other order would be far slower.
"""

import bz2
import contextlib
import dataclasses
import gzip
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from metagrove.errors import InputError, quoted
from metagrove.pools.limits import DEFAULT, Limits, SmallReads, read_member

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif")
TABLES = frozenset(
    {
        *("images.txt", "bounding_boxes.txt", "image_class_labels.txt", "classes.txt"),
        *("images_variant_trainval.txt", "images_variant_test.txt", "images_box.txt"),
        *("train.csv", "val.csv", "test.csv"),
    }
)
"""Files of the official archives that hold class labels, bounding boxes and splits."""
UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(ValueError, KeyError, IndexError, OverflowError, RuntimeError, NotImplementedError, struct.error, AttributeError),
)
"""Exceptions of the libraries for damaged archives."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
"""Compression methods that a zip file may use."""
ENCRYPTED = 1
"""Flag bit of an encrypted member of a zip file."""
Members = Generator[tuple[str, bytes | None], None, None]
Want = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class Listing:
    """Contents of a source: the paths of its images, its tables by path, and the number of other files."""

    images: tuple[str, ...]
    tables: dict[str, str]
    others: int

    def folder_with(self, table: str) -> str | None:
        """Return the folder (ending in a slash, or empty) of the first table of this name, or None."""
        found = sorted(path for path in self.tables if path.rpartition("/")[2] == table)
        return found[0].removesuffix(table) if found else None

    def rows(self, path: str, columns: int) -> list[list[str]]:
        """Return the lines of a table, split at whitespace into the given number of columns."""
        if path not in self.tables:
            raise InputError(f"the archive has no {path}, though its other tables are present: download it again")
        rows = [line.split(maxsplit=columns - 1) for line in self.tables[path].splitlines() if line.strip()]
        for number, row in enumerate(rows, 1):
            if len(row) != columns:
                raise InputError(f"{path}: row {number} has {len(row)} columns, expected {columns}: download it again")
        return rows


def listing(source: Path, limits: Limits = DEFAULT) -> Listing:
    """List the images, tables and other files of a source without decoding any image."""
    images, tables, others = [], {}, 0
    for path, content in members(source, is_table, limits):
        if content is not None:
            tables[path] = content.decode("utf-8", "replace")
        elif is_image(path):
            images.append(path)
        else:
            others += 1
    return Listing(tuple(sorted(set(images))), tables, others)


def contents(source: Path, wanted: Collection[str], limits: Limits = DEFAULT) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each selected file, in the order of the source."""
    with contextlib.closing(members(source, lambda path: path in wanted, limits)) as found:
        for path, content in found:
            if content is not None:
                yield path, content


def is_table(path: str) -> bool:
    """Return whether the path names one of the official tables."""
    return path.rpartition("/")[2] in TABLES and not is_hidden(path)


def is_image(path: str) -> bool:
    """Return whether the path names an image; hidden files and macOS metadata do not count."""
    return path.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(path)


def is_hidden(path: str) -> bool:
    """Return whether the file or one of its parent folders is hidden."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def members(source: Path, want: Want, limits: Limits) -> Members:
    """Yield the path of each regular file of a source, and its content if `want(path)` is true.

    Raises:
        InputError: The source cannot be read, or its declared or actual size is above the limits.
    """
    try:
        yield from reader(source)(source, want, limits)
    except InputError:
        raise
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{source} cannot be read ({reason}): it is incomplete or damaged, download it again"
        ) from error


def reader(source: Path) -> Callable[[Path, Want, Limits], Members]:
    """Return the function that reads this kind of source: a folder, a tar file or a zip file."""
    if not source.exists():
        raise InputError(f"{source} does not exist: --from takes a folder of images, a tar (also .gz) or a zip")
    if source.is_dir():
        return folder_members
    if not source.is_file():
        raise InputError(f"{source} is not a plain file: --from takes a folder of images, a tar (also .gz) or a zip")
    if opener_of(source) is not None:
        return tar_members
    if zipfile.is_zipfile(source):
        return zip_members
    raise InputError(f"{source} is neither a folder nor a tar nor a zip, or is damaged: download it again")


def folder_members(source: Path, want: Want, limits: Limits) -> Members:
    """Yield the files below a folder, sorted by path."""
    for file in sorted(source.rglob("*")):
        if file.is_file():
            path = printable(file.relative_to(source).as_posix())
            content = None
            if want(path):
                limits.refuse_large(source, path, file.stat().st_size)
                with file.open("rb") as opened:
                    content = read_member(opened, limits, source, path)
            yield path, content


def opener_of(source: Path, limits: Limits = DEFAULT) -> Callable[..., Any] | None:
    """The function that opens a tar file with its compression; None for another file. Only a header is read."""
    for opener in (gzip.open, bz2.open, lzma.open, open):
        with contextlib.suppress(*UNREADABLE, InputError), opener(source, "rb") as file:
            small_reads(file, source, limits).close()
            return opener
    return None


def small_reads(file: Any, source: Path, limits: Limits) -> tarfile.TarFile:
    """Open a tar file with limited reads."""
    guarded: Any = SmallReads(file, source, limits)
    return tarfile.open(fileobj=guarded, mode="r:")


def tar_members(source: Path, want: Want, limits: Limits) -> Members:
    """Yield the files of a tar file, compressed or not."""
    opener, total = opener_of(source, limits) or open, 0
    with opener(source, "rb") as file, small_reads(file, source, limits) as tar:
        for member in tar:
            path = inner_path(member.name, source)
            if not (member.isfile() or member.isdir()):
                refuse_link(member.name, source)
            if member.isfile():
                wanted = want(path)
                total = limits.add(total, member.size, source, path, wanted=wanted)
                opened = tar.extractfile(member) if wanted else None
                yield path, None if opened is None else read_member(opened, limits, source, path)


def zip_members(source: Path, want: Want, limits: Limits) -> Members:
    """Yield the files of a zip file."""
    total = 0
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            path = inner_path(member.filename, source)
            if stat.S_ISLNK(member.external_attr >> 16):
                refuse_link(member.filename, source)
            if member.flag_bits & ENCRYPTED or member.compress_type not in COMPRESSIONS:
                raise InputError(
                    f"{source} holds {quoted(path)}, which is encrypted or uses an unsupported compression method: "
                    "extract it and pass the folder"
                )
            if member.is_dir():
                continue
            wanted, content = want(path), None
            total = limits.add(total, member.file_size, source, path, wanted=wanted)
            if wanted:
                with archive.open(member) as opened:
                    content = read_member(opened, limits, source, path)
            yield path, content


def inner_path(path: str, source: Path) -> str:
    """Normalise the path of a member; a path that leads out of the archive is rejected."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts:
        raise InputError(f"{source} holds {quoted(printable(path))}, a path that leads out of it: use another archive")
    return printable("/".join(parts))


def refuse_link(path: str, source: Path) -> None:
    """Reject a link or a device among the members of an archive."""
    raise InputError(
        f"{source} holds {quoted(printable(path))}, which is a link or a device, not a file: pack the images "
        "themselves (tar --dereference)"
    )


def printable(path: str) -> str:
    """Replace the bytes of a path that are not valid UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

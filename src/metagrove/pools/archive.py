"""Read images from a folder, a tar file or a zip file without extracting anything to disk.

An archive is read sequentially, twice: once to list its members and once to read the selected images. A compressed
tar file of many gigabytes supports no random access, so any other order would be far slower.
"""

import contextlib
import dataclasses
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path, PurePosixPath

from metagrove.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif")
TABLES = frozenset(
    {
        *("images.txt", "bounding_boxes.txt", "image_class_labels.txt", "classes.txt"),
        *("images_variant_trainval.txt", "images_variant_test.txt", "images_box.txt"),
        *("train.csv", "val.csv", "test.csv"),
    }
)
"""Files of the official archives that hold class labels, bounding boxes and splits."""
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
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


def listing(source: Path) -> Listing:
    """List the images, tables and other files of a source without decoding any image."""
    images, tables, others = [], {}, 0
    for path, content in members(source, is_table):
        if content is not None:
            tables[path] = content.decode("utf-8", "replace")
        elif is_image(path):
            images.append(path)
        else:
            others += 1
    return Listing(tuple(sorted(set(images))), tables, others)


def contents(source: Path, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each selected file, in the order of the source."""
    with contextlib.closing(members(source, lambda path: path in wanted)) as found:
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


def members(source: Path, want: Want) -> Members:
    """Yield the path of each regular file of a source, and its content if `want(path)` is true."""
    try:
        yield from reader(source)(source, want)
    except InputError:
        raise
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{source} cannot be read ({reason}): it is incomplete or damaged, download it again"
        ) from error


def reader(source: Path) -> Callable[[Path, Want], Members]:
    """Return the function that reads this kind of source: a folder, a tar file or a zip file."""
    if not source.exists():
        raise InputError(f"{source} does not exist: --from takes a folder of images, a tar (also .gz) or a zip")
    if source.is_dir():
        return folder_members
    if tarfile.is_tarfile(source):
        return tar_members
    if zipfile.is_zipfile(source):
        return zip_members
    raise InputError(f"{source} is neither a folder nor a tar nor a zip, or is damaged: download it again")


def folder_members(source: Path, want: Want) -> Members:
    """Yield the files below a folder, sorted by path."""
    for file in sorted(source.rglob("*")):
        if file.is_file():
            path = printable(file.relative_to(source).as_posix())
            yield path, file.read_bytes() if want(path) else None


def tar_members(source: Path, want: Want) -> Members:
    """Yield the files of a tar file, compressed or not."""
    with tarfile.open(source) as tar:
        for member in tar:
            path = inner_path(member.name, source)
            if not (member.isfile() or member.isdir()):
                refuse_link(member.name, source)
            if member.isfile():
                file = tar.extractfile(member) if want(path) else None
                yield path, None if file is None else file.read()


def zip_members(source: Path, want: Want) -> Members:
    """Yield the files of a zip file."""
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            path = inner_path(member.filename, source)
            if stat.S_ISLNK(member.external_attr >> 16):
                refuse_link(member.filename, source)
            if member.flag_bits & ENCRYPTED or member.compress_type not in COMPRESSIONS:
                raise InputError(
                    f"{source} holds {path!r}, which is encrypted or uses an unsupported compression method: extract "
                    "it and pass the folder"
                )
            if not member.is_dir():
                yield path, archive.read(member) if want(path) else None


def inner_path(path: str, source: Path) -> str:
    """Normalise the path of a member; a path that leads out of the archive is rejected."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts:
        raise InputError(f"{source} holds {printable(path)!r}, a path that leads out of it: use another archive")
    return printable("/".join(parts))


def refuse_link(path: str, source: Path) -> None:
    """Reject a link or a device among the members of an archive."""
    raise InputError(
        f"{source} holds {printable(path)!r}, which is a link or a device, not a file: pack the images themselves "
        "(tar --dereference)"
    )


def printable(path: str) -> str:
    """Replace the bytes of a path that are not valid UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

"""A folder, tar or zip of images, read file by file: nothing is ever unpacked to disk.

An archive is read from its beginning to its end, twice: once for its listing, once for the images wanted. That is
the only order in which a compressed tar of many gigabytes can be read at a bearable speed.
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

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif")
TABLES = frozenset(
    {
        *("images.txt", "bounding_boxes.txt", "image_class_labels.txt", "classes.txt"),
        *("images_variant_trainval.txt", "images_variant_test.txt", "images_box.txt"),
        *("train.csv", "val.csv", "test.csv"),
    }
)
"""Files of the official archives that say which image is what."""
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
KNOWN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
"""Ways of compression that a zip may use."""
ENCRYPTED = 1
"""The flag of a file with a password."""
Members = Generator[tuple[str, bytes | None], None, None]
Want = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a source holds: paths of its images, tables by path, and how many other files."""

    images: tuple[str, ...]
    tables: dict[str, str]
    others: int

    def folder_with(self, table: str) -> str | None:
        """The folder (with a slash, or empty) of the first table of this name, if there is one."""
        found = sorted(path for path in self.tables if path.rpartition("/")[2] == table)
        return found[0].removesuffix(table) if found else None

    def rows(self, path: str, columns: int) -> list[list[str]]:
        """The lines of a table, split at blanks into so many columns."""
        if path not in self.tables:
            raise InputError(f"the archive has no {path}, though its other tables are there: get it again")
        rows = [line.split(maxsplit=columns - 1) for line in self.tables[path].splitlines() if line.strip()]
        for number, row in enumerate(rows, 1):
            if len(row) != columns:
                raise InputError(f"{path}: row {number} has {len(row)} columns, expected {columns}: get it again")
        return rows


def listing(source: Path) -> Listing:
    """Everything that can be known without opening an image."""
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
    """The wanted files, in the order in which the source holds them."""
    with contextlib.closing(members(source, lambda path: path in wanted)) as found:
        for path, content in found:
            if content is not None:
                yield path, content


def is_table(path: str) -> bool:
    """Whether this is one of the official tables."""
    return path.rpartition("/")[2] in TABLES and not is_hidden(path)


def is_image(path: str) -> bool:
    """Whether the name is that of an image; hidden files and what macOS adds to archives are not."""
    return path.lower().endswith(PICTURES) and not is_hidden(path)


def is_hidden(path: str) -> bool:
    """Whether the file or a folder above it is hidden."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def members(source: Path, want: Want) -> Members:
    """Each regular file of a source: its path, and its content if it is wanted."""
    try:
        yield from reader(source)(source, want)
    except InputError:
        raise
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise InputError(f"{source} cannot be read ({reason}): it is incomplete or damaged, get it again") from error


def reader(source: Path) -> Callable[[Path, Want], Members]:
    """How this source is read."""
    if not source.exists():
        raise InputError(f"{source} does not exist: --from takes a folder of images, a tar (also .gz) or a zip")
    if source.is_dir():
        return folder_members
    if tarfile.is_tarfile(source):
        return tar_members
    if zipfile.is_zipfile(source):
        return zip_members
    raise InputError(f"{source} is neither a folder nor a tar nor a zip, or is damaged: get it again")


def folder_members(source: Path, want: Want) -> Members:
    """Files below a folder, by name."""
    for file in sorted(source.rglob("*")):
        if file.is_file():
            path = printable(file.relative_to(source).as_posix())
            yield path, file.read_bytes() if want(path) else None


def tar_members(source: Path, want: Want) -> Members:
    """Files of a tar, compressed or not."""
    with tarfile.open(source) as tar:
        for member in tar:
            path = inner_path(member.name, source)
            if not (member.isfile() or member.isdir()):
                refuse_link(member.name, source)
            if member.isfile():
                file = tar.extractfile(member) if want(path) else None
                yield path, None if file is None else file.read()


def zip_members(source: Path, want: Want) -> Members:
    """Files of a zip."""
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            path = inner_path(member.filename, source)
            if stat.S_ISLNK(member.external_attr >> 16):
                refuse_link(member.filename, source)
            if member.flag_bits & ENCRYPTED or member.compress_type not in KNOWN:
                raise InputError(
                    f"{source} holds {path!r} with a password, or compressed in an uncommon way: unpack it and pass "
                    "the folder"
                )
            if not member.is_dir():
                yield path, archive.read(member) if want(path) else None


def inner_path(path: str, source: Path) -> str:
    """A member's path in plain form; one that leads out of the archive is refused."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts:
        raise InputError(
            f"{source} holds {printable(path)!r}, a path that leads out of it: refused, get another archive"
        )
    return printable("/".join(parts))


def refuse_link(path: str, source: Path) -> None:
    """Links and devices have no business among images."""
    raise InputError(
        f"{source} holds {printable(path)!r}, which is a link or a device, not a file: refused; pack the images "
        "themselves (tar --dereference)"
    )


def printable(path: str) -> str:
    """A path whose odd bytes can be printed and stored."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

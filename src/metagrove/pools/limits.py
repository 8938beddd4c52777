"""Limits of untrusted archives and images, by declared and by actual size, before memory is allocated."""

import dataclasses
from pathlib import Path
from typing import Any

from metagrove.errors import InputError, quoted

__all__ = ["DEFAULT", "Limits", "SmallReads", "read_member"]

MB = 1_000_000
MAX_RATIO = 200
"""How many times its own size an archive above 1 GB may unpack to; images hardly shrink."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Maximum sizes of the files of a source and of its images."""

    max_file_mb: float = 64.0
    """Largest image file or table, in megabytes after unpacking."""
    max_total_gb: float = 200.0
    """Largest archive in gigabytes after unpacking."""
    max_megapixels: float = 64.0
    """Largest image in millions of pixels."""

    def refuse_large(self, source: Path, path: str, size: int) -> None:
        """Raise an InputError for a file that is too large."""
        if size > self.max_file_mb * MB:
            raise InputError(
                f"{source} holds {quoted(path)} of {size / MB:,.0f} MB, at most {self.max_file_mb:g} MB are read: "
                "leave it out, or raise --max-file-mb"
            )

    def add(self, total: int, size: int, source: Path, path: str, *, wanted: bool) -> int:
        """The size of an archive so far, with one more member; a member or an archive that is too large is refused."""
        if wanted:
            self.refuse_large(source, path, size)
        if total + size > max(MAX_RATIO * source.stat().st_size, 1000 * MB):
            raise InputError(
                f"{source} unpacks to more than {MAX_RATIO} times its size, which is unusual "
                "for images: unpack it and give the folder"
            )
        if total + size > self.max_total_gb * 1000 * MB:
            raise InputError(
                f"{source} unpacks to more than {self.max_total_gb:g} GB: use another archive, or raise --max-total-gb"
            )
        return total + max(0, size)

    def refuse_pixels(self, width: int, height: int) -> None:
        """Raise a ValueError for an image that is too large."""
        if width * height > self.max_megapixels * 1e6:
            raise ValueError(
                f"it has {width:,} × {height:,} pixels, at most {self.max_megapixels:g} million are decoded: make it "
                "smaller, or raise --max-megapixels"
            )


DEFAULT = Limits()
"""The default limits."""


def read_member(file: Any, limits: Limits, source: Path, path: str) -> bytes:
    """Read a file of a source, which may be larger than it declares."""
    most = int(limits.max_file_mb * MB)
    content = file.read(most + 1)
    limits.refuse_large(source, path, len(content))
    return content


class SmallReads:
    """A file of which only limited parts are read at once: a header of a tar file may declare any length."""

    def __init__(self, file: Any, source: Path, limits: "Limits"):
        self.file, self.source, self.most = file, source, int(2 * limits.max_file_mb * MB)

    def read(self, size: int = -1) -> bytes:
        """Read some bytes; more than twice the largest file are refused."""
        if not 0 <= size <= self.most:
            raise InputError(f"{self.source} has a header of {size:,} bytes: it is damaged, download it again")
        return self.file.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        """Go to a place."""
        return self.file.seek(place, whence)

    def tell(self) -> int:
        """The present place."""
        return self.file.tell()

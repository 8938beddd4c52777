"""Limits on the declared and actual size of untrusted archives and images, checked before memory is allocated."""

import dataclasses
from pathlib import Path
from typing import Any

from metagrove.errors import InputError, quoted

__all__ = ["DEFAULT", "Limits", "SmallReads", "read_member"]

MB = 1_000_000
MAX_RATIO = 200
"""Maximum compression ratio of an archive above 1 GB; images hardly compress."""


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
        """Add a member to the size of an archive; raise an InputError if the member or the archive is too large."""
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
    """Read a file of a source, whose declared size may be too small."""
    most = int(limits.max_file_mb * MB)
    content = file.read(most + 1)
    limits.refuse_large(source, path, len(content))
    return content


class SmallReads:
    """A file with limited reads, since a header of a tar file may declare any length."""

    def __init__(self, file: Any, source: Path, limits: "Limits"):
        self.file, self.source, self.most = file, source, int(2 * limits.max_file_mb * MB)

    def read(self, size: int = -1) -> bytes:
        """Read bytes, at most twice the size of the largest file."""
        if not 0 <= size <= self.most:
            raise InputError(f"{self.source} has a header of {size:,} bytes: it is damaged, download it again")
        return self.file.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        """Set the position."""
        return self.file.seek(position, whence)

    def tell(self) -> int:
        """Return the position."""
        return self.file.tell()

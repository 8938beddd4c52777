"""Atomic, checksummed files: JSON with a format number and a checksum of its content."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from metagrove.errors import RunError

FORMAT = 2
"""Raised when a file written by this version cannot be read by the one before; older formats are migrated."""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of this package and verify its format number and checksum.

    Args:
        path: The file.

    Returns:
        Its content without the checksum.

    Raises:
        RunError: If the file is missing, damaged or written by a newer version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(
            f"{path} does not exist: is {path.parent} a run folder? `metagrove list` shows the released models"
        ) from error
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RunError(f"{path} is not JSON ({error}): it is truncated or was edited") from error
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise RunError(f"{path} is not a file of metagrove: it has no format number")
    if data["format"] > FORMAT:
        raise RunError(f"{path} has format {data['format']}, this metagrove reads up to {FORMAT}: upgrade metagrove")
    if data.pop("checksum", None) != checksum_of(data):
        raise RunError(f"{path} is damaged or was edited: its checksum does not match; copy it again or retrain")
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with a checksum of its content."""
    sealed = {**data, "checksum": checksum_of(data)}
    write_atomically(path, (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode())


def checksum_of(data: Mapping[str, Any]) -> str:
    """Compute the SHA-256 checksum of JSON data, independent of the order of its keys."""
    as_read = json.loads(json.dumps(data))  # turns numeric keys into strings, so that they are sorted as such
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder, flush it to disk, and rename it to `path`."""
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise save_error(path, error) from error


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing that replaces `path` on success and is deleted on failure."""
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise save_error(path, error) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def save_error(path: Path, error: OSError) -> RunError:
    """Make an error that says why a file could not be written and how to fix it."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    fix = "free some space and try again" if error.errno in full else "choose a writable folder"
    return RunError(f"{path} could not be written ({error.strerror}): {fix}; what was saved before is intact")

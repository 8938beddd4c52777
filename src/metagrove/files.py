"""Atomic, checksummed files: JSON with a format number and a checksum of its content.

Records that travel are dataclasses; `as_json` and `from_json` convert between them and JSON.
"""

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import math
import os
import shutil
import stat
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

from metagrove.errors import RunError, quoted
from metagrove.typed_json import parse_json, raise_type_errors, type_errors

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FORMAT = 2
"""Format number, increased when the previous version cannot read new files; older formats are migrated."""

TEMPORARY = ".tmp"
"""Ending of temporary files and folders, whose names begin with a dot."""
MAX_JSON_BYTES = 1 << 26
"""Largest JSON file that is read."""
Json = Mapping[str, Any]
"""Plain data of no fixed shape, as JSON has it. Data with a shape is a dataclass."""
Record = TypeVar("Record")
OMIT_NONE = {"omit_none": True}
"""Metadata of a dataclass field: in JSON its key is left out where the value is None."""
FLAT = {"flat": True}
"""Metadata of a dataclass field: in JSON the keys of its dataclass or dict stand beside those of the other fields."""


def json_key(name: str) -> Json:
    """Metadata of a dataclass field: its key in JSON, where that is not the field's name."""
    return {"name": name}


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
        data = parse_json(read_plain(path, most=MAX_JSON_BYTES).decode("utf-8"))
    except FileNotFoundError as error:
        raise RunError(
            f"{path} does not exist: is {path.parent} a run folder? `metagrove list` shows the released models"
        ) from error
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RunError(f"{path} is not JSON ({str(error)[:120]}): it is truncated or was edited") from error
    if not isinstance(data, dict) or type(data.get("format")) is not int:
        raise RunError(f"{path} is not a file of metagrove: it has no format number")
    if not 1 <= data["format"] <= FORMAT:
        raise RunError(
            f"{path} has format {quoted(data['format'])}, this metagrove reads up to {FORMAT}: upgrade metagrove"
        )
    if data.pop("checksum", None) != checksum_of(data):
        raise RunError(f"{path} is damaged or was edited: its checksum does not match; copy it again or retrain")
    return data


def read_plain(path: Path, *, most: int, size: int | None = None) -> bytes:
    """Read a file that may be untrusted: a regular file of limited size, not a device or a pipe.

    Args:
        path: The file; a symbolic link must stay within its folder.
        most: Largest size in bytes.
        size: Its size in bytes, where that is recorded.

    Returns:
        Its content.

    Raises:
        RunError: It is not a regular file within its folder, or not of that size.
        OSError: It cannot be opened.
    """
    if "\0" in str(path):
        raise RunError(f"{quoted(str(path))} is not a path: it has a NUL character")
    if path.is_symlink() and path.resolve().parent != path.parent.resolve():
        raise RunError(f"{path} is a link that leads out of its folder: copy the file itself")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:  # O_NONBLOCK: opening a pipe does not wait for a writer
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RunError(f"{path} is not a plain file: copy it again")
        if size is not None and found.st_size != size:
            raise RunError(f"{path} is damaged: it has {found.st_size:,} bytes, expected {size:,}; copy it again")
        if found.st_size > most:
            raise RunError(f"{path} has {found.st_size:,} bytes, at most {most:,} are read")
        return file.read(most)


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
    with _replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[TextIO]:
    """Open a text file for writing that replaces `path` on success and is deleted on failure."""
    with _replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text
            text.flush()
        finally:
            with contextlib.suppress(OSError, ValueError):
                text.detach()


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path` that takes its place. A lock marks it as in use as long as its writer lives."""
    temporary = lock = None
    try:
        remove_abandoned(path.parent, f".{path.name}.")
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
        with os.fdopen(descriptor, "wb") as file:
            lock = hold(descriptor)
            yield file
            file.flush()
            os.fsync(descriptor)
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise save_error(path, error) from error
    finally:
        if lock is not None:
            os.close(lock)
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink(missing_ok=True)


def hold(descriptor: int) -> int | None:
    """Lock an open file or folder; a descriptor that holds the lock, None where that is not possible or it is held.

    The system lifts the lock of a process that dies.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return os.dup(descriptor)


def remove_abandoned(folder: Path, prefix: str = ".") -> None:
    """Remove the temporary files and folders of processes that were killed: those that nobody holds."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(prefix) and path.name.endswith(TEMPORARY) and path.name != TEMPORARY:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
                try:
                    _remove_unheld(path, descriptor)
                finally:
                    os.close(descriptor)


def _remove_unheld(path: Path, descriptor: int) -> None:
    if (lock := hold(descriptor)) is not None:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        os.close(lock)


def save_error(path: Path, error: OSError) -> RunError:
    """Make an error that says why a file could not be written and how to fix it."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    fix = "free some space and try again" if error.errno in full else "choose a writable folder"
    return RunError(f"{path} could not be written ({error.strerror}): {fix}; what was saved before is intact")


def as_json(value: Any) -> Any:
    """A record as plain data: dataclasses become dicts, tuples lists."""
    if isinstance(value, Mapping):
        return {key: as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if not dataclasses.is_dataclass(value):
        return value
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        part, how = getattr(value, field.name), field.metadata
        if part is None and (how.get("omit_none") or how.get("flat")):
            continue
        found |= as_json(part) if how.get("flat") else {how.get("name") or field.name: as_json(part)}
    return found


def from_json(cls: type[Record], data: Json, file: object = None) -> Record:
    """The record that `as_json` made this of. Keys that it does not have are ignored; for a key that an older file does
    not have it gets the field's default, or without one None (NaN in place of a number).

    Raises:
        RunError: An entry has another type than the record declares; the message lists all of them.
    """
    raise_type_errors(type_errors(cls, data, "", _null_is_nan), file or cls.__name__)
    return _from_json(cls, data)


def read_record(cls: type[Record], path: Path, *, needs: Sequence[str] = ()) -> Record:
    """Read a JSON file of this package as a record; what it `needs`, keys or paths, must be there.

    Raises:
        RunError: As `read_json` and `from_json`.
    """
    data = read_json(path)
    missing = [f"{key} is missing" for key in needs if _at(data, key) is None]
    raise_type_errors(missing + type_errors(cls, data, "", _null_is_nan), path)
    return _from_json(cls, data)


def _at(data: Any, path: str) -> Any:
    """The entry at a path such as validation.steps; None if there is none."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _null_is_nan(hint: Any, data: Any, where: str) -> list[str] | None:
    """In a record, null denotes NaN."""
    del where
    return [] if data is None and hint is float else None


def _from_json(cls: type[Record], data: Json) -> Record:
    hints, values, rest = typing.get_type_hints(cls), {}, dict(data)
    fields: tuple[Any, ...] = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    for field in fields:
        key = field.metadata.get("name") or field.name
        required = field.default is field.default_factory is dataclasses.MISSING
        if not field.metadata.get("flat") and (required or key in rest):
            values[field.name] = _decode(hints[field.name], rest.pop(key, None))
    for field in fields:
        if field.metadata.get("flat"):
            values[field.name] = _decode_flat(hints[field.name], rest)
    return cls(**values)


def _decode_flat(hint: Any, rest: Json) -> Any:
    """A field whose keys stand beside those of others; None where it may be and none of them is there."""
    parts = [part for part in typing.get_args(hint) if dataclasses.is_dataclass(part)]
    names = {field.name for part in parts for field in dataclasses.fields(part)}
    return None if parts and not names & set(rest) else _decode(hint, rest)


def _decode(hint: Any, data: Any) -> Any:
    """Plain data as the type says: dataclasses, and containers of them."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if data is None:
        return math.nan if hint is float else None
    if origin in (types.UnionType, typing.Union):
        return _decode(next(one for one in args if one is not type(None)), data)
    if dataclasses.is_dataclass(hint):
        return _from_json(hint, data)  # pyright: ignore[reportArgumentType]
    if origin is tuple:
        each = [args[0]] * len(data) if args[-1] is Ellipsis else args
        return tuple(_decode(part, one) for part, one in zip(each, data, strict=True))
    if origin is list:
        return [_decode(args[0], one) for one in data]
    if origin is dict:
        return {key: _decode(args[1], one) for key, one in data.items()}
    return float(data) if hint is float else data

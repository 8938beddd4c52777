"""Atomic, checksummed files: JSON with a format number and a checksum of its content.

Records that travel are dataclasses; `as_json` and `from_json` convert between them and JSON.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeVar

from metagrove.errors import RunError

FORMAT = 2
"""Raised when a file written by this version cannot be read by the one before; older formats are migrated."""

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


def from_json(cls: type[Record], data: Json) -> Record:
    """The record that `as_json` made this of. Keys that it does not have are ignored; for a key that an older file does
    not have it gets the field's default, or without one None (NaN in place of a number)."""
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
        return from_json(hint, data)  # pyright: ignore[reportArgumentType]
    if origin is tuple:
        each = [args[0]] * len(data) if args[-1] is Ellipsis else args
        return tuple(_decode(part, one) for part, one in zip(each, data, strict=True))
    if origin is list:
        return [_decode(args[0], one) for one in data]
    if origin is dict:
        return {key: _decode(args[1], one) for key, one in data.items()}
    return float(data) if hint is float else data

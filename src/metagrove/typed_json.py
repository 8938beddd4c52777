"""Check plain data of a file against the types that dataclasses declare, all problems at once.

Each problem names the place in the file by its path, e.g. `config.learner.net.hidden[0] must be a whole number`.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metagrove.errors import RunError, quoted

__all__ = ["fields_of", "hints_of", "listed", "parse_json", "path_to", "raise_type_errors", "shown", "type_errors"]

MAX_DEPTH = 64
"""Deepest nesting of lists and objects in a file."""
Special = Callable[[Any, Any, str], list[str] | None]
"""Problems of data that should be of a type, at a path; None for a type that it has nothing to say about."""
SCALARS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "text"),
}


def parse_json(text: str) -> Any:
    """Parse JSON of limited depth.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or has NaN or Infinity.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from error
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [one for node in level for one in _children(node)]
        if not level:
            return data
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _children(node: Any) -> Sequence[Any]:
    return list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else ()


def type_errors(hint: Any, data: Any, where: str, special: Special | None = None) -> list[str]:
    """List what keeps plain data from being of a type.

    Args:
        hint: A type: a dataclass, bool, int, float, str, a Literal, a union, or a list, tuple or dict of these. Data of
            any other type is accepted as it is.
        data: Plain data, or a value of that type.
        where: The path of the data in its file.
        special: Is asked first about each value, for types with rules of their own.

    Returns:
        A message for each problem; the message begins with the path.
    """
    if special is not None and (found := special(hint, data, where)) is not None:
        return found
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _union_errors(args, data, where, special)
    if origin is typing.Literal:
        fits = any(type(data) is type(one) and data == one for one in args)
        return [] if fits else [f"{where} must be one of {', '.join(map(str, args))}, got {shown(data)}"]
    if origin in (tuple, list):
        return _sequence_errors(args, data, where, special)
    if origin is dict:
        if not isinstance(data, Mapping):
            return [f"{where} must be an object, got {shown(data)}"]
        return [line for key, one in data.items() for line in type_errors(args[1], one, path_to(where, key), special)]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record_errors(hint, data, where, special)
    return _scalar_errors(hint, data, where)


def _scalar_errors(hint: Any, data: Any, where: str) -> list[str]:
    if hint is None or hint is types.NoneType:
        return [] if data is None else [f"{where} must be null, got {shown(data)}"]
    if hint not in SCALARS:
        return []
    accepted, word = SCALARS[hint]
    if not isinstance(data, accepted) or (isinstance(data, bool) and hint is not bool):
        return [f"{where} must be {word}, got {shown(data)}"]
    return [f"{where} is too large for a number"] if hint is float and not _is_float(data) else []


def _is_float(number: Any) -> bool:
    try:
        return isinstance(float(number), float)
    except OverflowError:
        return False


def _union_errors(args: tuple[Any, ...], data: Any, where: str, special: Special | None) -> list[str]:
    each = [type_errors(one, data, where, special) for one in args if not (one is types.NoneType and data is not None)]
    return [] if not all(each) else min(each, key=len)


def _sequence_errors(args: tuple[Any, ...], data: Any, where: str, special: Special | None) -> list[str]:
    if not isinstance(data, list | tuple):
        return [f"{where} must be a list, got {shown(data)}"]
    fixed = len(args) > 1 and args[-1] is not Ellipsis
    if fixed and len(data) != len(args):
        return [f"{where} must have {len(args)} entries, got {len(data)}"]
    each = args if fixed else (args[0] if args else Any,) * len(data)
    parts = zip(each, data, range(len(data)), strict=True)
    return [line for part, one, at in parts for line in type_errors(part, one, f"{where}[{at}]", special)]


def _record_errors(hint: type, data: Any, where: str, special: Special | None) -> list[str]:
    """The rules of `files.from_json`: keys that it does not know are ignored, and so are keys that are not there."""
    if isinstance(data, hint):
        data = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    if not isinstance(data, Mapping):
        return [f"{where} must be an object, got {shown(data)}"]
    hints, problems, flat = hints_of(hint), [], []
    own = {field.metadata.get("name") or field.name for field in dataclasses.fields(hint)}
    for field in dataclasses.fields(hint):
        key = field.metadata.get("name") or field.name
        if field.metadata.get("flat"):
            flat.append(hints[field.name])
        elif key in data:
            problems += type_errors(hints[field.name], data[key], path_to(where, key), special)
    rest = {key: value for key, value in data.items() if key not in own}
    for one in flat:
        problems += type_errors(one, rest, where, special)
    return problems


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields; Any where an annotation cannot be resolved, as in a user's own class."""
    try:
        return typing.get_type_hints(cls)
    except Exception:
        return {field.name: Any for field in fields_of(cls)}


def fields_of(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a dataclass or of one of its values; none for anything else."""
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def path_to(where: str, key: object) -> str:
    """The path of an entry of an object."""
    name = str(key) if str(key).isidentifier() else quoted(str(key), 30)
    return f"{where}.{name}" if where else name


def shown(data: Any) -> str:
    """A value in a message: what it is, or its beginning."""
    match data:
        case None:
            return "null"
        case bool():
            return str(data).lower()
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case float() if not math.isfinite(data):
            return str(data)
        case _:
            return quoted(data)


def raise_type_errors(problems: Sequence[str], file: object) -> None:
    """Raise a RunError that names the problems of a file."""
    if problems:
        raise RunError(f"{file} cannot be used: {listed(problems)}")


def listed(problems: Sequence[str]) -> str:
    """The problems of a file in a message: the first ten of them."""
    more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
    return "; ".join(problems[:10]) + more

"""Conversion of a config to JSON data and back."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from metagrove.config.config import Config, Growth, Phase, Training
from metagrove.config.migrate import migrate
from metagrove.config.registry import LOSSES, class_named, classes, kind_of, name_of
from metagrove.config.validate import config_errors, part_errors
from metagrove.errors import InputError
from metagrove.files import FORMAT, as_json
from metagrove.learner import Learner
from metagrove.sources.source import Source
from metagrove.tables.schema import Schema
from metagrove.typed_json import hints_of, listed

__all__ = ["from_json", "learner_from_json", "to_json"]

Json = dict[str, Any]


def to_json(config: Config) -> Json:
    """Plain data from which `from_json` makes an equal config. A user's own function is named, not stored."""
    return {
        "source": encode_part(config.source),
        "learner": encode_part(config.learner),
        "training": as_json(config.training),
    }


def from_json(
    data: Mapping[str, Any], *, file_format: int = FORMAT, source: Source | None = None, learner: Learner | None = None
) -> Config:
    """The config of `to_json`.

    Args:
        data: What `to_json` gave.
        file_format: The format number of the file that it comes from; older ones are migrated.
        source: The source, of a run with a user's own.
        learner: The learner, of a run with a user's own learner, base net or loss.

    Returns:
        The config.

    Raises:
        InputError: A setting is unknown, of the wrong type or out of bounds (the message lists all of them), or a
            user's own part was not passed.
    """
    data = migrate(data, file_format)
    problems = config_errors(data, source=source is None, learner=learner is None, training=Training)
    if problems:
        raise InputError(listed(problems))
    training = dict(data["training"])
    training["growth"] = build(Growth, training.get("growth", {}))
    training["phases"] = tuple(build(Phase, phase) for phase in training.get("phases", ()))
    return Config(
        source=source or decode_part("source", data["source"]),
        learner=learner or decode_part("learner", data["learner"]),
        training=build(Training, training),
    )


def learner_from_json(data: Mapping[str, Any], *, file_format: int = FORMAT) -> Learner:
    """The learner alone."""
    data = migrate({"learner": data}, file_format)["learner"]
    if problems := part_errors("learner", Learner, data, "learner"):
        raise InputError(listed(problems))
    return decode_part("learner", data)


def encode_part(part: Any) -> Json:
    """A part of a config: its registered name, or that of a user's own class, and its settings."""
    kind = kind_of(part)
    name = name_of(kind, part) if kind else None
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    head = {"name": name} if name else {"custom": qualified(part)}
    return head | {field.name: encode_value(getattr(part, field.name)) for field in fields}


def encode_value(value: Any) -> Any:
    """A setting as plain data."""
    if isinstance(value, Schema):
        return value.to_json()
    if kind_of(value) is not None or isinstance(value, Source):
        return encode_part(value)
    if callable(value):
        return next((name for name, fn in LOSSES.items() if fn is value), {"custom": qualified(value)})
    if isinstance(value, tuple):
        return [encode_value(one) for one in value]
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


def qualified(thing: Any) -> str:
    """The name of a function or class, or of a thing's class."""
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def decode_part(kind: str, data: Mapping[str, Any]) -> Any:
    """A part from its plain data, which is valid, and the parts within it."""
    kind = "baseline" if kind == "learner" and data["name"] in classes("baseline") else kind
    cls = class_named(kind, data["name"])
    return build(cls, {key: decode_value(key, value) for key, value in data.items() if key != "name"})


def decode_value(name: str, value: Any) -> Any:
    """A setting from its plain data."""
    if name == "schema":
        return Schema.from_json(value)
    if name == "loss":
        return LOSSES[value]
    if name == "members":
        return tuple(decode_part("learner", one) for one in value)
    if isinstance(value, Mapping) and "name" in value:
        return decode_part(name, value)
    return value


def build(cls: type, values: Mapping[str, Any]) -> Any:
    """The dataclass with these settings; lists become tuples, and whole numbers floats where these are declared."""
    hints = hints_of(cls)
    return cls(**{key: as_declared(hints.get(key), value) for key, value in values.items()})


def as_declared(hint: Any, value: Any) -> Any:
    """A setting of plain data in its declared type."""
    if isinstance(value, list):
        return tuple(as_declared(part, one) for part, one in zip(each_of(hint, len(value)), value, strict=True))
    return float(value) if hint is float and isinstance(value, int) else value


def each_of(hint: Any, count: int) -> tuple[Any, ...]:
    """The type of each entry of a tuple."""
    args = typing.get_args(hint) or (Any, ...)
    return args if args[-1] is not Ellipsis else (args[0],) * count

"""Conversion of a config to JSON data and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from metagrove.config.config import Config, Growth, Phase, Training
from metagrove.config.migrate import migrate
from metagrove.config.registry import LOSSES, class_named, classes, kind_of, name_of, unknown_name
from metagrove.errors import InputError
from metagrove.files import FORMAT, as_json
from metagrove.learner import Learner
from metagrove.sources.source import Source
from metagrove.tables.schema import Schema

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
        InputError: A name or a setting is unknown, or a user's own part was not passed.
    """
    data = migrate(data, file_format)
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
    return decode_part("learner", migrate({"learner": data}, file_format)["learner"])


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


def decode_part(kind: str, data: Any) -> Any:
    """A part from its plain data, and the parts within it."""
    if not isinstance(data, Mapping):
        raise InputError(f"{kind} must be an object with a name and settings, got {data!r}")
    if custom := next((one["custom"] for one in (data, *data.values()) if is_custom(one)), None):
        what = "source" if kind == "source" else "learner"
        raise InputError(f"this run was made with its own {what} ({custom}): pass it, e.g. load(folder, {what}=...)")
    kind = "baseline" if kind == "learner" and data.get("name") in classes("baseline") else kind
    cls = class_named(kind, str(data.get("name")))
    return build(cls, {key: decode_value(key, value) for key, value in data.items() if key != "name"})


def is_custom(value: Any) -> bool:
    """Whether plain data stands for a user's own class or function."""
    return isinstance(value, Mapping) and "custom" in value


def decode_value(name: str, value: Any) -> Any:
    """A setting from its plain data."""
    if name == "schema":
        return Schema.from_json(value)
    if name == "loss":
        if value not in LOSSES:
            raise InputError(unknown_name(str(value), LOSSES, "loss"))
        return LOSSES[value]
    if name == "members":
        return tuple(decode_part("learner", one) for one in value)
    if isinstance(value, Mapping) and "name" in value:
        return decode_part(name, value)
    return value


def build(cls: type, values: Mapping[str, Any]) -> Any:
    """The dataclass with these settings, every one of them known to it."""
    known = {field.name for field in dataclasses.fields(cls)}
    if unknown := sorted(set(values) - known):
        raise InputError(f"{cls.__name__} has no setting {', '.join(unknown)}: was this made by a newer metagrove?")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})

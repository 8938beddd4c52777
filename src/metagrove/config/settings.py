"""Access to settings by their own names, whichever part of a config they belong to."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from metagrove.config.migrate import RENAMED
from metagrove.config.registry import CHOICES, choose_part, unknown_name
from metagrove.errors import InputError
from metagrove.tables.schema import Schema

__all__ = ["changed_settings", "replace_settings", "setting_names"]

Settings = Mapping[str, Any]


def replace_settings(config: Any, settings: Settings) -> Any:
    """Copy a config with some settings changed, at any depth.

    Args:
        config: A dataclass of settings and of parts with settings.
        settings: New values by name; parts of HSML may be given by the name of a choice.

    Returns:
        The copy.

    Raises:
        InputError: A name is unknown; the message lists all of them.
    """
    chosen = {kind: value for kind, value in settings.items() if kind in CHOICES and isinstance(value, str)}
    config = _replace(config, {}, chosen) if chosen else config
    others = {name: value for name, value in settings.items() if name not in chosen}
    known = setting_names(config)
    unknown = [describe_unknown(name, known) for name in settings if name not in known]
    if unknown:
        raise InputError("; ".join(unknown))
    return _replace(config, others, {})


def describe_unknown(name: str, known: Sequence[str]) -> str:
    """One line about a name that no setting has, with the present name of a setting of version 0.1."""
    new = {**RENAMED, "aggregator": "embed"}.get(name)
    return f"{name!r} is now called {new!r}" if new in known else unknown_name(name, known)


def setting_names(part: Any) -> list[str]:
    """Names of a dataclass's fields, and of the dataclasses in it."""
    names = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        names += [field.name] + (setting_names(value) if has_settings(value) else [])
    return names


def changed_settings(part: Any) -> dict[str, Any]:
    """The settings of a dataclass, and of the dataclasses in it, that are not at their defaults."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value != field.default:
            changed[field.name] = value
        if has_settings(value):
            changed = {**changed_settings(value), **changed}
    return changed


def has_settings(value: Any) -> bool:
    """Whether this is a part with settings of its own."""
    return dataclasses.is_dataclass(value) and not isinstance(value, Schema | type)


def _replace(part: Any, settings: Settings, chosen: Mapping[str, str]) -> Any:
    changed = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name in settings:
            changed[field.name] = settings[field.name]
        elif field.name in chosen and has_settings(value):
            changed[field.name] = choose_part(field.name, chosen[field.name], value)
        elif has_settings(value):
            changed[field.name] = _replace(value, settings, chosen)
    return dataclasses.replace(part, **changed)

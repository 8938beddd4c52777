"""Validation of settings against the declared types and bounds, before anything is built from them.

The same rules hold for the JSON of a file, which may come from an untrusted source, and for a config made in Python.
"""

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

from metagrove.config.registry import BUILT_IN, LOSSES, classes, kind_of, unknown_name
from metagrove.errors import InputError, quoted
from metagrove.learner import Learner
from metagrove.sources.source import Source
from metagrove.typed_json import fields_of, hints_of, path_to, shown, type_errors

__all__ = ["MOST", "setting_errors"]

ANY_COUNT = 10**9
"""Largest value of a setting that counts something."""
MOST = {
    # settings with a smaller maximum, since memory or run time depends on them
    **dict.fromkeys(("inner_steps", "max_eval_inner_steps", "leader_steps", "read_steps"), 10_000),
    **dict.fromkeys(("updates_per_step", "test_permutations", "particles", "samples", "restarts"), 10_000),
    **dict.fromkeys(("shots", "queries", "test_queries", "train_shots", "min_shots", "min_rows"), 100_000),
    **dict.fromkeys(("ways", "train_ways", "size", "clusters", "most_clusters", "kinds"), 10_000),
    **dict.fromkeys(("blocks", "attention_layers", "graph_layers", "encoder_layers"), 64),
    **dict.fromkeys(("degree", "knots", "rank", "num_features", "prototypes", "vertices"), 1_000),
    **dict.fromkeys(("hidden", "widths", "filters", "feature_hidden", "edge_dims", "key_dims", "value_dims"), 100_000),
    **dict.fromkeys(("width", "hidden_dim", "task_dim", "example_dim", "feature_dim", "node_dim"), 100_000),
    **dict.fromkeys(("filters_per_block", "dilations", "attention_heads", "gate_rank"), 100_000),
}
"""Largest values of settings by name."""
SIGNED = ("seed", "split_seed")
"""Settings that may be below 0."""
LARGEST = 1e30
"""Largest absolute value of a setting that is a number."""
LAYERS, ENTRIES = 64, 100_000
"""Most entries of a list of numbers, each of them a layer or a level; and of any other list."""
NEWER = " (is the file of a newer metagrove?)"
PARTS = {"learner": "learner", "members": "learner", "source": "source"} | {
    kind: kind for kind in ("net", "embed", "cluster", "gate")
}
"""Settings that are parts with settings of their own, and the kind of part."""


def setting_errors(cls: type, data: Any, where: str = "") -> list[str]:
    """List what is wrong with settings: unknown or missing ones, wrong types, and numbers out of bounds.

    Args:
        cls: The dataclass that declares them.
        data: Plain data from a file, or a value of the class.
        where: The path of the data in its file.

    Returns:
        A message for each problem, which begins with the path of the setting.
    """
    if not isinstance(data, Mapping | cls):
        return [f"{where or 'it'} must be an object with settings, got {shown(data)}"]
    fields, hints = fields_of(cls), hints_of(cls)
    problems = []
    if isinstance(data, Mapping):
        known = [field.name for field in fields]
        unknown = [key for key in data if key not in known]
        problems += [f"{path_to(where, key)}: {unknown_name(quoted_key(key), known)}{NEWER}" for key in unknown]
        needed = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
        problems += [f"{path_to(where, name)} is missing" for name in needed if name not in data]
        values = {name: data[name] for name in known if name in data}
    else:
        values = {field.name: getattr(data, field.name) for field in fields}
    for name, value in values.items():
        problems += value_errors(name, hints[name], value, path_to(where, name))
    return problems


def quoted_key(key: str) -> str:
    """The beginning of a long key."""
    return key if len(key) <= 80 else f"{key[:80]}…"


def value_errors(name: str, hint: Any, value: Any, where: str) -> list[str]:
    """What is wrong with one setting."""
    return list_errors(hint, value, where) or type_errors(hint, value, where, functools.partial(special_errors, name))


def special_errors(name: str, hint: Any, value: Any, where: str) -> list[str] | None:
    """What is wrong with a part, a loss, a record or a number; None for anything else."""
    if name in PARTS and (found := part_errors(PARTS[name], hint, value, where)) is not None:
        return found
    if name == "loss" and typing.get_origin(hint) is Callable:
        return loss_errors(value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return setting_errors(hint, value, where)
    return number_errors(name, hint, value, where)


def list_errors(hint: Any, value: Any, where: str) -> list[str]:
    """What is wrong with the length of a list."""
    if typing.get_origin(hint) is not tuple or not isinstance(value, list | tuple):
        return []
    most = LAYERS if typing.get_args(hint)[0] in (int, float) and not where.endswith("curved") else ENTRIES
    return [f"{where} must have at most {most:,} entries, got {len(value):,}"] if len(value) > most else []


def number_errors(name: str, hint: Any, value: Any, where: str) -> list[str] | None:
    """What is wrong with a number; None for anything else, whose type is still to be checked."""
    if hint not in (int, float) or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if hint is float:
        fits = abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value) and abs(value) <= LARGEST
        return [] if fits else [f"{where} must be a finite number, at most {LARGEST:g}, got {shown(value)}"]
    if isinstance(value, float):
        return None
    low, high = (-(2**63), 2**63 - 1) if name in SIGNED else (0, MOST.get(name, ANY_COUNT))
    return [] if low <= value <= high else [f"{where} must be from {low:,} to {high:,}, got {shown(value)}"]


def loss_errors(value: Any, where: str) -> list[str]:
    """What is wrong with a loss: a function, or in a file the name of one."""
    if callable(value):
        return []
    refuse_custom(value, "learner")
    if not isinstance(value, str):
        return [f"{where} must be the name of a loss, got {shown(value)}"]
    return [] if value in LOSSES else [f"{where}: {unknown_name(quoted_key(value), LOSSES, 'loss')}"]


def part_errors(kind: str, hint: Any, value: Any, where: str) -> list[str] | None:
    """What is wrong with a part and its settings; None for a list of parts, whose entries are still to be checked."""
    if typing.get_origin(hint) is tuple:
        return None
    if not isinstance(value, Mapping):
        if isinstance(value, bool | int | float | str | list | tuple | None):
            return [f"{where} must be an object with a name and settings, got {shown(value)}"]
        return setting_errors(type(value), value, where) if kind_of(value) is not None else []
    refuse_custom(value, "source" if kind == "source" else "learner")
    known = {**classes(kind), **(classes("baseline") if kind == "learner" else {})}
    if not isinstance(value.get("name"), str):
        return [f"{path_to(where, 'name')} must be the name of a {kind}, got {shown(value.get('name'))}"]
    if value["name"] not in known:
        return [f"{path_to(where, 'name')}: {unknown_name(quoted_key(value['name']), known, kind)}"]
    cls = known[value["name"]]
    if kind != "net" and not is_accepted(cls, hint):
        return [f"{path_to(where, 'name')}: {quoted(value['name'])} cannot be used here"]
    return setting_errors(cls, {key: one for key, one in value.items() if key != "name"}, where)


def is_accepted(cls: type, hint: Any) -> bool:
    """Whether a setting's type admits a class of parts; of another package's classes that is not known."""
    accepted = [one for one in (typing.get_args(hint) or (hint,)) if isinstance(one, type)]
    return cls not in every_built_in() or not accepted or issubclass(cls, tuple(accepted))


def every_built_in() -> set[type]:
    """The package's own classes."""
    return {cls for group in BUILT_IN.values() for cls in group.values()}


def refuse_custom(value: Any, what: str) -> None:
    """Raise an InputError about a part of a user's own, which a file only names."""
    if isinstance(value, Mapping) and "custom" in value:
        custom = quoted_key(str(value["custom"]))
        raise InputError(f"this run was made with its own {what} ({custom}): pass it, e.g. load(folder, {what}=...)")


def config_errors(data: Any, *, source: bool, learner: bool, training: type) -> list[str]:
    """What is wrong with the plain data of a config.

    Args:
        data: What the file has, in the present format.
        source: Whether to check the source.
        learner: Whether to check the learner.
        training: The dataclass of the training's settings.
    """
    if not isinstance(data, Mapping):
        return [f"config must be an object, got {shown(data)}"]
    problems = []
    for kind, base, asked in (("source", Source, source), ("learner", Learner, learner)):
        if asked:
            problems += part_errors(kind, base, data.get(kind), f"config.{kind}") or []
    return problems + setting_errors(training, data.get("training"), "config.training")

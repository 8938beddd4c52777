"""Migration of run folders of older formats to the current names of settings and arrays.

Format 1 (version 0.1) had all of HSML's settings side by side, and other names for some settings and arrays.
"""

import re
from collections.abc import Mapping
from typing import Any

from metagrove.errors import InputError
from metagrove.tables.schema import migrate_schema

__all__ = ["RENAMED", "array_names_of_format_1", "migrate"]

RENAMED = {
    # renamed settings
    "tasks_in_flight": "task_chunk_size",
    "test_steps": "max_eval_inner_steps",
    "picture_look": "image_features",
    "together": "group_column",
}
REMOVED: dict[str, Any] = {
    # removed settings, with the only value that can still be read
    "learn_scales": False,
    "masses": False,
    "growth_parents": False,
    "retire_below": 0.0,
}
REMOVED_VALUES = {"growth_detector": "welch", "growth_start": "unchanged"}
EMBED = ("example_dim", "task_dim", "input_scale", "image_features", "embedding_scale")
RECURRENT = ("row_order", "test_permutations")
ATTENTION = ("attention_layers", "attention_heads")
ARRAYS = (
    # present name of an array, and its name in format 1
    (r"\bcluster\.normalizer\.log_std$", "frame.log_spread"),
    (r"\bcluster\.normalizer\.", "frame."),
    (r"\bcluster\.projection\.", "embed.outward."),
    (r"\bgate\.layer\.", "gate."),
)


def migrate(config: Mapping[str, Any], file_format: int) -> dict[str, Any]:
    """Convert the plain data of a config to the present format.

    Args:
        config: Plain data as the file has it; parts may be missing.
        file_format: The file's format number.

    Returns:
        The same settings under their present names.

    Raises:
        InputError: If a removed setting has another value than its default.
    """
    if not isinstance(config, Mapping):
        raise InputError("config must be an object with source, learner and training")
    config = with_random_init(with_schema(with_min_rows(config)))
    if file_format >= 2:
        return dict(config)
    moved = {name: rename_settings(part) for name, part in config.items()}
    learner = moved.get("learner")
    if not isinstance(learner, Mapping):
        return moved
    if learner.get("name") == "hsml":
        moved["learner"] = group_hsml_settings(learner)
    elif learner.get("name") == "arml" and "gate" in learner:
        moved["learner"] = {**learner, "gate_form": learner["gate"]}
        del moved["learner"]["gate"]
    return moved


def with_random_init(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add `nearest_init` to a GNN or SNAIL from before that setting: it started from random weights."""
    learner = config.get("learner")
    if not isinstance(learner, Mapping) or learner.get("name") not in ("gnn", "snail") or "nearest_init" in learner:
        return config
    return {**config, "learner": {**learner, "nearest_init": False}}


def with_min_rows(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add `min_rows` to a source of tables from before that setting: one row more than the minimum of shots."""
    source = config.get("source")
    if not isinstance(source, Mapping) or source.get("name") != "tables" or "min_rows" in source:
        return config
    shots = source.get("min_shots") or source.get("shots", 5)
    return {**config, "source": {**source, "min_rows": shots + 1 if isinstance(shots, int) else shots}}


def with_schema(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A source of tables with its schema in the present format."""
    source = config.get("source")
    if not isinstance(source, Mapping) or "schema" not in source:
        return config
    return {**config, "source": {**source, "schema": migrate_schema(source["schema"])}}


def rename_settings(part: Any) -> Any:
    """Present names for the settings of a part and of the parts in it; removed ones are left out."""
    if not isinstance(part, Mapping):
        return part
    renamed = {}
    for key, value in part.items():
        if key in REMOVED:
            if value != REMOVED[key]:
                raise InputError(f"{key} was removed in version 0.2: this run, which used it, needs metagrove 0.1")
            continue
        if key in REMOVED_VALUES and value == REMOVED_VALUES[key]:
            raise InputError(
                f"{key} {value!r} was removed in version 0.2: this run, which used it, needs metagrove 0.1"
            )
        renamed[RENAMED.get(key, key)] = rename_settings(value)
    return renamed


def group_hsml_settings(learner: Mapping[str, Any]) -> dict[str, Any]:
    """HSML's settings of format 1, side by side, as those of its parts."""
    left = dict(learner)
    aggregator = left.pop("aggregator", "gru")
    embed = {name: left.pop(name) for name in EMBED if name in left}
    recurrent, attention = (
        {name: left.pop(name) for name in names if name in left} for names in (RECURRENT, ATTENTION)
    )
    match aggregator:
        case "gru" | "lstm":
            embed |= {"name": "recurrent", "cell": aggregator, **recurrent}
        case "mean" | "max":
            embed |= {"name": "pooling", "pool": aggregator}
        case _:
            embed |= {"name": aggregator, **attention}
    relative, start_tasks = left.pop("relative_scales", False), left.pop("start_tasks", 0)
    cluster = {name: left.pop(name) for name in ("clusters", "scales") if name in left}
    if start_tasks:
        scale = embed.pop("embedding_scale", 1.0)
        cluster |= {"name": "found", "start_tasks": start_tasks, "projection_scale": scale}
    else:
        cluster["name"] = "relative" if relative else "distance"
    form, rank, extra = left.pop("gate", "sigmoid"), left.pop("gate_rank", 0), left.pop("gate_sees_shares", False)
    inputs = ["task", "root", *(["assignment"] if extra else [])]
    gate = {"name": "parameter", "gate_form": form, "gate_rank": rank, "gate_inputs": inputs}
    return {**left, "embed": embed, "cluster": cluster, "gate": {"name": "none"} if form == "none" else gate}


def array_names_of_format_1(name: str) -> str:
    """Return the name that an array of a checkpoint had in format 1."""
    for now, then in ARRAYS:
        name = re.sub(now, then, name)
    return name

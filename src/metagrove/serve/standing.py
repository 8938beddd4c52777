"""Comparison of a fitted task with the known tasks of a run, as JSON data and as text."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.errors import RunError, shortened
from metagrove.files import Json
from metagrove.learner import Learner, Meta
from metagrove.serve.index import TaskIndex, locations, read_index
from metagrove.serve.levels import level_and_slopes, levels_in_units, unit_names
from metagrove.tables.schema import Schema

FAR = 95.0
"""Out-of-distribution percentile from which a task is reported as unlike the others."""
LONGEST_LINE = 1_000
"""Maximum number of characters of a line about a task."""
SHOWN_LEVELS = 6
"""Maximum number of values of level and slope in the lines about a task."""


@dataclasses.dataclass(frozen=True)
class SimilarTask:
    """A known task that is like the new one."""

    task: str
    kind: str
    split: str
    distance: float


@dataclasses.dataclass(frozen=True)
class AboutRecord:
    """`FittedTask.about` in a file; what version 0.1 did not write has a default."""

    run: str
    rows: int
    inner_steps: int
    clusters: list[list[float]]
    most_like: list[SimilarTask]
    percentile: float | None
    unlike: bool | None
    learner: str = ""
    cluster_descriptions: list[list[str]] = dataclasses.field(default_factory=list)
    level_and_slopes: dict[str, float] = dataclasses.field(default_factory=dict)
    percentiles: dict[str, float] = dataclasses.field(default_factory=dict)
    furthest_by: str = ""
    counted_tasks: int | None = None
    counted: str = ""

    def misfits(self) -> list[str]:
        """List inconsistencies between fields whose types are right."""
        named, problems = self.cluster_descriptions[:1], []
        if named and [len(level) for level in self.clusters[:1]] != [len(named[0])]:
            problems += ["about.cluster_descriptions must have an entry for each of about.clusters"]
        if self.counted_tasks is not None and self.counted_tasks < 1:
            problems += [f"about.counted_tasks must be at least 1, got {shortened(self.counted_tasks)}"]
        return problems


def standing(
    folder: Path,
    learner: Learner,
    meta: Meta,
    *,
    embedding: np.ndarray | None,
    assignments: Sequence[np.ndarray],
    novelty: Mapping[str, float],
    rows: tuple[np.ndarray, np.ndarray],
    schema: Schema,
) -> dict[str, Any]:
    """The task's share of each cluster, the most similar known tasks, and the out-of-distribution percentile."""
    index, of_clusters = read_index(folder), shares(assignments)
    about = {"clusters": of_clusters, "most_like": [], "percentile": None, "unlike": None}
    if index is None:
        return about
    levels = None if index.levels is None else level_and_slopes(*rows)
    here = None if embedding is None else locations(learner, meta, embedding[None])[0]
    measured = {**index.measured(embedding, here, levels), **novelty}
    about["most_like"] = index.most_like(embedding, levels)
    if index.clusters:
        if [len(level) for level in index.clusters] != [len(level) for level in of_clusters]:
            raise RunError(f"{folder / 'atlas.json'} describes other clusters than the run has: calibrate it again")
        about["cluster_descriptions"] = [list(level) for level in index.clusters]
    if levels is not None and schema.inputs:
        about["level_and_slopes"] = named_levels(levels, rows[0], schema)
    if not index.percentiles(measured):
        return about
    return {**about, **novelty_of(index, measured)}


def named_levels(levels: np.ndarray, x: np.ndarray, schema: Schema) -> dict[str, float]:
    """Level and slopes in the columns' units by name; an input that does not vary in the support rows has no slope."""
    names, values = unit_names(schema), levels_in_units(levels, schema)
    has_slope = [True, *(np.ptp(x, axis=0) > 0)] * (len(names) // (1 + x.shape[1]))
    return {name: float(value) for name, value, given in zip(names, values, has_slope, strict=True) if given}


def novelty_of(index: TaskIndex, measured: Mapping[str, float]) -> Json:
    """The out-of-distribution percentile, by which measure, and of how many tasks."""
    each, percentile = index.percentiles(measured), index.percentile(measured)
    return {
        "percentile": percentile,
        "percentiles": each,
        "furthest_by": max(each, key=lambda name: each[name]),
        "counted_tasks": int(index.counted.sum()),
        "counted": "known" if index.counts_training else "held-out",
        "unlike": percentile >= FAR,
    }


def shares(assignments: Sequence[np.ndarray]) -> list[list[float]]:
    """A task's shares of the clusters of each level below the root."""
    found, share = [], np.ones(1)
    for assignment in assignments:
        share = share @ assignment
        found.append([float(one) for one in share])
    return [level for level in found if len(level) > 1]


def described(about: Json) -> list[str]:
    """Format `FittedTask.about` as lines of text of limited length."""
    return [shortened(line, LONGEST_LINE) for line in _described(about)]


def _described(about: Json) -> list[str]:
    how = f"with its {about['learner']}" if about.get("learner") else f"by {about['inner_steps']} inner steps"
    lines = [f"adapted {about['run']} to {about['rows']} rows {how}"]
    for number, level in enumerate(about["clusters"], 1):
        parts = [f"{k + 1} ({100 * level[k]:.0f} %)" for k in np.argsort(level)[::-1] if level[k] >= 0.01]
        lines.append(f"clusters of level {number}: {', '.join(parts)}")
    if about.get("cluster_descriptions"):
        strongest = int(np.argmax(about["clusters"][0]))
        lines.append(f"cluster {strongest + 1}: {about['cluster_descriptions'][0][strongest]}")
    if levels := list(about.get("level_and_slopes", {}).items())[:SHOWN_LEVELS]:
        lines.append("level and slopes: " + ", ".join(f"{name} {value:.3g}" for name, value in levels))
    if similar := [one["task"] for one in about["most_like"] if "task" in one]:
        lines.append("most like: " + ", ".join(similar))
    if (percentile := about.get("percentile")) is not None:
        lines.append(f"out-of-distribution percentile: {percentile:.0f}, of {fineness(about)}")
    if about.get("unlike"):
        lines.append(
            "warning: this task looks unlike those the run was trained on; its predictions and intervals may be poor"
        )
    return lines


def fineness(about: Mapping[str, Any]) -> str:
    """Describe the number of tasks that the percentile counts, its resolution, and the measure that decides it."""
    count = about.get("counted_tasks")
    if not count:  # a task of version 0.1
        return "held-out tasks"
    counted, by = about.get("counted"), about.get("furthest_by")
    return f"{count} {counted} tasks (in steps of {100 / count:.2g} %), furthest by {by}"

"""Index of the known tasks: embeddings, shares of clusters, level and slopes, and measures of novelty.

A new task is compared with it: its most similar known tasks, and how far it is from the training tasks compared with
validation tasks, which training does not use either. The measures are the distance of the embedding to the nearest
centre and to the nearest training task, the distance of level and slopes to the nearest training task, the loss on the
support set after adapting, and those that a learner adds (`Info.novelty`). The percentile of a task is that of the
measure in which it exceeds most validation tasks. If these are few, training tasks count as well, each without itself.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from metagrove import files
from metagrove.errors import RunError, quoted
from metagrove.learner import Learner, Meta
from metagrove.task import Split
from metagrove.training import checkpoint
from metagrove.typed_json import raise_type_errors

ARRAYS = ("embeddings", "shares", "centers", "levels", "to_centers", "to_tasks")
VECTORS = ("embeddings", "shares", "centers", "levels")
"""The arrays with a row for each task or centre; the others have one number for each."""
WORDS = ("names", "families", "splits")
FEWEST_HELD_OUT = 20
"""With fewer validation tasks than this, percentiles also count training tasks."""
MEASURES = "measures."
"""Prefix of the names of other measures in the file of arrays."""


@dataclasses.dataclass(frozen=True)
class TaskIndex:
    """The training and the validation tasks, in this order; an array is None if the learner does not provide it."""

    names: tuple[str, ...]
    families: tuple[str, ...]
    splits: tuple[str, ...]
    embeddings: np.ndarray | None = None  # (tasks, d)
    shares: np.ndarray | None = None  # (tasks, K^1)
    centers: np.ndarray | None = None  # (K^1, d)
    to_centers: np.ndarray | None = None  # (tasks,) distance to the nearest centre
    to_tasks: np.ndarray | None = None  # (tasks,) distance to the nearest other training task
    levels: np.ndarray | None = None  # (tasks, y_dim (1 + x_dim)) level and slopes of the support rows
    measures: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # (tasks,) each, larger is more unlike
    clusters: tuple[tuple[str, ...], ...] = ()
    """Of each level below the root, a description of each cluster in the columns of the tables."""

    @property
    def distances(self) -> np.ndarray | None:
        """Each task's distance to the centres, or without them to the nearest other training task."""
        return self.to_tasks if self.to_centers is None else self.to_centers

    @property
    def known(self) -> dict[str, np.ndarray]:
        """Every measure of the known tasks by name."""
        both = {"embedding": self.to_tasks, "cluster centres": self.to_centers}
        return {name: values for name, values in both.items() if values is not None} | dict(self.measures)

    def of_split(self, split: Split) -> np.ndarray:
        """Mask of the tasks of a split."""
        return np.array([one == split for one in self.splits])

    def measured(
        self, embedding: np.ndarray | None, location: np.ndarray | None, levels: np.ndarray | None
    ) -> dict[str, float]:
        """The distances of a new task; `location` is compared with the centres."""
        refuse_other_run(embedding, self.embeddings, "embeddings")
        refuse_other_run(location, self.centers, "centers")
        refuse_other_run(levels, self.levels, "levels")
        found = {}
        if embedding is not None and self.embeddings is not None:
            found["embedding"] = nearest_of(embedding, self.train(self.embeddings))
        if location is not None and self.centers is not None:
            found["cluster centres"] = nearest_of(location, self.centers)
        if levels is not None and self.levels is not None:
            found[LEVELS] = nearest_of(levels / self.level_std, self.train(self.levels) / self.level_std)
        return found

    def percentiles(self, measured: Mapping[str, float]) -> dict[str, float]:
        """The percentile of each measure among the counted tasks."""
        return {
            name: float(100 * share_below(self.known[name][self.counted], np.array([value]))[0])
            for name, value in measured.items()
            if name in self.known
        }

    def percentile(self, measured: Mapping[str, float]) -> float:
        """Return the out-of-distribution percentile: each task counts by the measure in which it is most extreme."""
        each = self.percentiles(measured)
        known = [self.known[name][self.counted] for name in each]
        ranks = np.stack([share_below(values, values) for values in known]).max(0)
        return float(100 * share_below(ranks, np.array([max(each.values()) / 100]))[0])

    @property
    def counts_training(self) -> bool:
        """Whether percentiles also count training tasks: validation tasks alone are too few to resolve 5 %."""
        return int(self.of_split("validation").sum()) < FEWEST_HELD_OUT

    @property
    def counted(self) -> np.ndarray:
        """Mask of the tasks that percentiles count."""
        return np.ones(len(self.splits), bool) if self.counts_training else self.of_split("validation")

    def train(self, values: np.ndarray) -> np.ndarray:
        """The values of the training tasks."""
        return values[self.of_split("train")]

    @property
    def level_std(self) -> np.ndarray:
        """Standard deviation of level and slopes over training tasks, shape (1, ...)."""
        assert self.levels is not None
        return np.maximum(self.train(self.levels).std(0, keepdims=True), 1e-6)

    def most_like(self, embedding: np.ndarray | None, levels: np.ndarray | None, count: int = 5) -> list[dict]:
        """The known tasks nearest by level and slopes, or without these by embedding, with their distance."""
        if levels is not None and self.levels is not None:
            distances = np.linalg.norm((self.levels - levels[None]) / self.level_std, axis=1)
        elif embedding is not None and self.embeddings is not None:
            distances = np.linalg.norm(self.embeddings - embedding[None], axis=1)
        else:
            return []
        return [
            {"task": self.names[i], "kind": self.families[i], "split": self.splits[i], "distance": float(distances[i])}
            for i in np.argsort(distances, kind="stable")[:count]
        ]


LEVELS = "level and slope"
"""The measure by which level and slopes of a task are compared with those of training tasks."""


def share_below(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each value, the share of known values below it."""
    return (known[None] < values[:, None]).mean(1)


def nearest_of(location: np.ndarray, points: np.ndarray) -> float:
    """The distance to the nearest point."""
    return float(np.linalg.norm(points - location.reshape(1, -1), axis=1).min())


def read_index(folder: Path) -> TaskIndex | None:
    """Read the index of a run folder; None if it has none."""
    path = folder / "atlas.json"
    return _read(folder, path.stat().st_mtime_ns) if path.exists() else None


def refuse_misfits(path: Path, words: Mapping[str, tuple[str, ...]], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise a RunError if the words or the arrays are not one for each task, or arrays have another shape or type."""
    count = len(words["names"])
    incomplete = [name for name in WORDS if len(words[name]) != count]
    incomplete += [name for name, one in arrays.items() if name != "centers" and one.shape[:1] != (count,)]
    problems = [f"{', '.join(incomplete[:3])} must have an entry for each of {count} tasks"] if incomplete else []
    if "train" not in words["splits"] or not set(words["splits"]) <= {"train", "validation"}:
        problems += ["splits must be train or validation, and one of them train"]
    shaped = [name for name, one in arrays.items() if one.ndim != (2 if name in VECTORS else 1) or not one.size]
    shaped += [name for name, one in arrays.items() if one.dtype.kind != "f" or np.isnan(one).any()]
    problems += [f"{', '.join(map(quoted, shaped[:3]))} must be numbers, one or a row for each task"] if shaped else []
    raise_type_errors(problems, path)


def refuse_other_run(new: np.ndarray | None, known: np.ndarray | None, what: str) -> None:
    """Raise a RunError if a new task has vectors of another size than the known ones."""
    if new is not None and known is not None and new.size != known.shape[1]:
        raise RunError(
            f"the index of known tasks (atlas.json) does not fit the run: {what} has {known.shape[1]} values, expected "
            f"{new.size}; write it again with `metagrove calibrate`"
        )


@dataclasses.dataclass(frozen=True)
class IndexRecord:
    """atlas.json without the record of its arrays."""

    names: tuple[str, ...]
    families: tuple[str, ...]
    splits: tuple[str, ...]
    clusters: tuple[tuple[str, ...], ...] = ()


@functools.lru_cache(maxsize=4)
def _read(folder: Path, written: int) -> TaskIndex:
    """Read the index, cached by the modification time of its file."""
    del written
    arrays, _ = checkpoint.load_arrays(folder, "atlas")
    about = files.read_record(IndexRecord, folder / "atlas.json", needs=WORDS)
    parts: dict[str, Any] = {name: getattr(about, name) for name in WORDS}
    refuse_misfits(folder / "atlas.json", parts, arrays)
    parts.update({name: arrays.get(name) for name in ARRAYS})
    measures = {name.removeprefix(MEASURES): one for name, one in arrays.items() if name.startswith(MEASURES)}
    return TaskIndex(**parts, measures=measures, clusters=about.clusters)


def locations(learner: Learner, meta: Meta, embeddings: np.ndarray) -> np.ndarray:
    """The embeddings in the space where the learner takes distances to the centres."""
    return np.stack([np.asarray(learner.cluster_space(meta, jnp.asarray(one))) for one in embeddings])

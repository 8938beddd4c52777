"""Where the known tasks stand: embeddings, shares of the first clusters and distances, written beside a run.

A new task is set against it: which known tasks it is most like, and how far out it lies compared with validation tasks,
which training never saw either. Two distances tell of that, to the nearest centre and to the nearest training task; a
task is as far out as the one in which it is further out than more validation tasks.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from metagrove.learner import Learner, Meta
from metagrove.task import Split
from metagrove.training import checkpoint

ARRAYS = ("embeddings", "shares", "centers", "to_centers", "to_tasks")
WORDS = ("names", "families", "splits")


@dataclasses.dataclass(frozen=True)
class TaskIndex:
    """The training and the validation tasks, in this order; an array is None where the learner does not tell."""

    names: tuple[str, ...]
    families: tuple[str, ...]
    splits: tuple[str, ...]
    embeddings: np.ndarray | None = None  # (tasks, d)
    shares: np.ndarray | None = None  # (tasks, K^1)
    centers: np.ndarray | None = None  # (K^1, d)
    to_centers: np.ndarray | None = None  # (tasks,) distance to the nearest centre
    to_tasks: np.ndarray | None = None  # (tasks,) distance to the nearest other training task

    @property
    def distances(self) -> np.ndarray | None:
        """Each task's distance to the centres, or without them to the nearest other training task."""
        return self.to_tasks if self.to_centers is None else self.to_centers

    def of_split(self, split: Split) -> np.ndarray:
        """Which tasks are of this split."""
        return np.array([one == split for one in self.splits])

    def percentile(self, embedding: np.ndarray, place: np.ndarray) -> float:
        """How many of 100 validation tasks are less far out; `place` is what is compared with the centres."""
        found = [("to_tasks", self.train_embeddings(), embedding), ("to_centers", self.centers, place)]
        known = [(getattr(self, name), nearest_of(to, marks)) for name, marks, to in found if marks is not None]
        held_out = self.of_split("validation")
        ranks = np.stack([share_below(all_of[held_out], all_of[held_out]) for all_of, _ in known]).max(0)
        rank = max(share_below(all_of[held_out], np.array([new]))[0] for all_of, new in known)
        return float(100 * share_below(ranks, np.array([rank]))[0])

    def train_embeddings(self) -> np.ndarray:
        """Where the training tasks stand."""
        assert self.embeddings is not None
        return self.embeddings[self.of_split("train")]

    def most_like(self, embedding: np.ndarray, count: int = 5) -> list[dict[str, Any]]:
        """The known tasks whose embeddings are nearest, with their distance."""
        assert self.embeddings is not None
        distances = np.linalg.norm(self.embeddings - embedding[None], axis=1)
        return [
            {"task": self.names[i], "kind": self.families[i], "split": self.splits[i], "distance": float(distances[i])}
            for i in np.argsort(distances, kind="stable")[:count]
        ]


def share_below(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Of each value, the share of the known ones that are less."""
    return (known[None] < values[:, None]).mean(1)


def nearest_of(place: np.ndarray, marks: np.ndarray) -> float:
    """The distance to the nearest mark."""
    return float(np.linalg.norm(marks - place[None], axis=1).min())


def read_atlas(folder: Path) -> TaskIndex | None:
    """The atlas of a run folder; None if it has none."""
    path = folder / "atlas.json"
    return _read(folder, path.stat().st_mtime_ns) if path.exists() else None


@functools.lru_cache(maxsize=4)
def _read(folder: Path, written: int) -> TaskIndex:
    """The atlas as it was written at that time, kept for the next task."""
    del written
    arrays, about = checkpoint.load_arrays(folder, "atlas")
    parts: dict[str, Any] = {name: tuple(about[name]) for name in WORDS}
    parts.update({name: arrays.get(name) for name in ARRAYS})
    return TaskIndex(**parts)


def places(learner: Learner, meta: Meta, embeddings: np.ndarray) -> np.ndarray:
    """The embeddings in the space where the learner takes distances to the centres."""
    return np.stack([np.asarray(learner.cluster_space(meta, jnp.asarray(one))) for one in embeddings])

"""Where the known tasks stand: embeddings, shares of the first clusters and distances, written beside a run.

A new task is set against it: which known tasks it is most like, and how far out it lies compared with validation tasks,
which training never saw either. Two distances tell of that, to the nearest centre and to the nearest training task; a
task is as far out as the one in which it is further out than more validation tasks.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metagrove.keys import key_for
from metagrove.outer import map_drawn, whole_task
from metagrove.serve.run import Run
from metagrove.task import Split, Task
from metagrove.train import checkpoint

SPLITS: tuple[Split, ...] = ("train", "validation")
DRAWN = 200
"""Tasks of each split, of a source whose tasks have no names."""
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


def write_atlas(run: Run) -> TaskIndex:
    """Place every training and validation task, and keep that in the run folder."""
    atlas = make_atlas(run)
    arrays = {name: value for name in ARRAYS if (value := getattr(atlas, name)) is not None}
    words = {name: getattr(atlas, name) for name in WORDS}
    checkpoint.save(run.folder, "atlas", arrays, {**words, "step": run.about["step"]})
    return atlas


def read_atlas(folder: Path) -> TaskIndex | None:
    """The atlas of a run folder; None if it has none."""
    if not (folder / "atlas.json").exists():
        return None
    arrays, about = checkpoint.load_arrays(folder, "atlas")
    parts: dict[str, Any] = {name: tuple(about[name]) for name in WORDS}
    parts.update({name: arrays.get(name) for name in ARRAYS})
    return TaskIndex(**parts)


def make_atlas(run: Run) -> TaskIndex:
    """The atlas, from the supports of the known tasks alone."""
    known = [(split, name, task) for split in SPLITS for name, task in known_tasks(run, split)]
    infos = [adapted.info for adapted in run.adapt_many([real_support(task) for _, _, task in known], steps=0)]
    atlas = TaskIndex(
        names=tuple(name for _, name, _ in known),
        families=tuple(run.config.source.family_names[int(task.family)] for _, _, task in known),
        splits=tuple(split for split, _, _ in known),
        shares=np.stack([info.assignments[0][0] for info in infos]) if infos[0].assignments else None,
    )
    if infos[0].task_embedding is None:
        return atlas
    embeddings = np.stack([np.asarray(info.task_embedding) for info in infos])
    return with_distances(dataclasses.replace(atlas, embeddings=embeddings, centers=first_centers(run)), run)


def with_distances(atlas: TaskIndex, run: Run) -> TaskIndex:
    """The atlas with every known task's distances; a training task is not near to itself."""
    assert atlas.embeddings is not None
    apart = np.linalg.norm(atlas.embeddings[:, None] - atlas.train_embeddings()[None], axis=2)
    train = np.flatnonzero(atlas.of_split("train"))
    apart[train, np.arange(len(train))] = np.inf
    if atlas.centers is None:
        return dataclasses.replace(atlas, to_tasks=apart.min(1))
    to_centers = np.linalg.norm(places(run, atlas.embeddings)[:, None] - atlas.centers[None], axis=2).min(1)
    return dataclasses.replace(atlas, to_tasks=apart.min(1), to_centers=to_centers)


def real_support(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """The support rows that are not padding."""
    real = np.asarray(task.support.mask)
    return np.asarray(task.support.x)[real], np.asarray(task.support.y)[real]


def known_tasks(run: Run, split: Split) -> list[tuple[str, Task]]:
    """The tasks of a split by name; of a source that draws its tasks, some of them, numbered."""
    source = run.config.source
    if names := source.task_names(split):
        return [(name, source.task(split, i)) for i, name in enumerate(names)]
    keys = jax.random.split(key_for(split, run.config.training.seed), DRAWN)
    drawn = map_drawn(whole_task, source.split(split), keys)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], drawn) for i in range(DRAWN)]
    return [(f"{source.family_names[int(task.family)]} {i + 1}", task) for i, task in enumerate(each)]


def first_centers(run: Run) -> np.ndarray | None:
    """The centres of the first level, of a learner with clusters."""
    centers = run.config.learner.cluster_centers(run.meta)
    return None if centers is None else np.asarray(centers)


def places(run: Run, embeddings: np.ndarray) -> np.ndarray:
    """What is compared with the centres: the embeddings, in the space where the learner takes distances."""
    learner, meta = run.config.learner, run.meta
    return np.stack([np.asarray(learner.cluster_space(meta, jnp.asarray(one))) for one in embeddings])

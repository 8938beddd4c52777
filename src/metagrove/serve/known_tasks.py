"""The index of a run's known tasks, made from their support sets and written beside the run."""

import dataclasses

import jax
import numpy as np

from metagrove.keys import key_for
from metagrove.outer import map_drawn, whole_task
from metagrove.serve.index import ARRAYS, WORDS, TaskIndex, places
from metagrove.serve.run import Run
from metagrove.task import Split, Task
from metagrove.training import checkpoint

SPLITS: tuple[Split, ...] = ("train", "validation")
DRAWN = 200
"""Tasks of each split, of a source whose tasks have no names."""


def write_atlas(run: Run) -> TaskIndex:
    """Place every training and validation task, and keep that in the run folder."""
    atlas = make_atlas(run)
    arrays = {name: value for name in ARRAYS if (value := getattr(atlas, name)) is not None}
    words = {name: getattr(atlas, name) for name in WORDS}
    checkpoint.save(run.folder, "atlas", arrays, {**words, "step": run.about["step"]})
    return atlas


def make_atlas(run: Run) -> TaskIndex:
    """The atlas, from the supports of the known tasks alone."""
    known = [(split, name, task) for split in SPLITS for name, task in known_tasks(run, split)]
    fitted = run.adapt_many([real_support(task) for _, _, task in known], steps=0)
    atlas = TaskIndex(
        names=tuple(name for _, name, _ in known),
        families=tuple(run.config.source.family_names[int(task.family)] for _, _, task in known),
        splits=tuple(split for split, _, _ in known),
        shares=np.stack([levels[0][0] for levels in fitted.assignments]) if fitted.assignments[0] else None,
    )
    embeddings = fitted.task_embeddings
    if embeddings is None:
        return atlas
    return with_distances(dataclasses.replace(atlas, embeddings=embeddings, centers=first_centers(run)), run)


def with_distances(atlas: TaskIndex, run: Run) -> TaskIndex:
    """The atlas with every known task's distances; a training task is not near to itself."""
    assert atlas.embeddings is not None
    apart = np.linalg.norm(atlas.embeddings[:, None] - atlas.train_embeddings()[None], axis=2)
    train = np.flatnonzero(atlas.of_split("train"))
    apart[train, np.arange(len(train))] = np.inf
    if atlas.centers is None:
        return dataclasses.replace(atlas, to_tasks=apart.min(1))
    to_centers = np.linalg.norm(
        places(run.config.learner, run.meta, atlas.embeddings)[:, None] - atlas.centers[None], axis=2
    ).min(1)
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

"""Building the index of a run's known tasks from their support sets."""

import dataclasses
from typing import Any

import jax
import numpy as np

from metagrove.keys import key_for
from metagrove.outer import map_drawn, whole_task
from metagrove.serve.fitted_tasks import FittedTasks
from metagrove.serve.index import ARRAYS, LEVELS, MEASURES, WORDS, TaskIndex, locations
from metagrove.serve.levels import describe_group, level_and_slopes
from metagrove.serve.run import Run
from metagrove.serve.standing import shares
from metagrove.task import Examples, Split, Task
from metagrove.training import checkpoint

SPLITS: tuple[Split, ...] = ("train", "validation")
DRAWN, DRAWN_IMAGES = 200, 60
"""Number of tasks of each split, for a source whose tasks have no names."""


def write_index(run: Run) -> TaskIndex:
    """Index every training and validation task, and write the index into the run folder."""
    index = make_index(run)
    arrays = {name: value for name in ARRAYS if (value := getattr(index, name)) is not None}
    arrays |= {MEASURES + name: value for name, value in index.measures.items()}
    words = {name: getattr(index, name) for name in WORDS}
    checkpoint.save(run.folder, "atlas", arrays, {**words, "clusters": index.clusters, "step": run.about["step"]})
    return index


def make_index(run: Run) -> TaskIndex:
    """The index, from the supports of the known tasks; clusters are described by all rows of these tasks."""
    known = [(split, name, task) for split in SPLITS for name, task in known_tasks(run, split)]
    supports = [real_rows(task.support) for _, _, task in known]
    fitted = run.alone().adapt_many(supports)
    index = TaskIndex(
        names=tuple(name for _, name, _ in known),
        families=tuple(run.config.source.family_names[int(task.family)] for _, _, task in known),
        splits=tuple(split for split, _, _ in known),
        shares=np.stack([levels[0][0] for levels in fitted.assignments]) if fitted.assignments[0] else None,
        levels=None if run.config.source.spec.is_image else np.stack([level_and_slopes(*one) for one in supports]),
        measures=fitted.novelty,
        clusters=describe_clusters(run, fitted, [task for _, _, task in known]),
    )
    if fitted.task_embeddings is not None:
        index = dataclasses.replace(index, embeddings=fitted.task_embeddings, centers=first_centers(run))
    return with_distances(index, run)


def with_distances(index: TaskIndex, run: Run) -> TaskIndex:
    """The index with every known task's distances."""
    found: dict[str, Any] = {}
    if index.levels is not None:
        found["measures"] = {**index.measures, LEVELS: to_training_tasks(index, index.levels / index.level_std)}
    if index.embeddings is not None:
        found["to_tasks"] = to_training_tasks(index, index.embeddings)
    if index.embeddings is not None and index.centers is not None:
        here = locations(run.config.learner, run.meta, index.embeddings)
        found["to_centers"] = np.linalg.norm(here[:, None] - index.centers[None], axis=2).min(1)
    return dataclasses.replace(index, **found)


def to_training_tasks(index: TaskIndex, vectors: np.ndarray) -> np.ndarray:
    """Each task's distance to the nearest training task; a training task does not count for itself."""
    of_train = index.train(vectors)
    apart = np.stack([np.linalg.norm(of_train - one[None], axis=1) for one in vectors])
    train = np.flatnonzero(index.of_split("train"))
    apart[train, np.arange(len(train))] = np.inf
    return apart.min(1)


def describe_clusters(run: Run, fitted: FittedTasks, tasks: list[Task]) -> tuple[tuple[str, ...], ...]:
    """Describe each cluster of each level below the root in the columns of the tables; empty without columns."""
    schema = run.config.source.schema
    if schema is None or not fitted.assignments[0]:
        return ()
    rows = [[np.concatenate(both) for both in zip(*map(real_rows, (t.support, t.query)), strict=True)] for t in tasks]
    levels = np.stack([level_and_slopes(*one) for one in rows])
    by_level = [np.array(level) for level in zip(*map(shares, fitted.assignments), strict=True)]
    return tuple(
        tuple(describe_group(levels, share.argmax(1) == k, schema) for k in range(share.shape[1])) for share in by_level
    )


def real_rows(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """The rows that are not padding."""
    real = np.asarray(examples.mask)
    return np.asarray(examples.x)[real], np.asarray(examples.y)[real]


def known_tasks(run: Run, split: Split) -> list[tuple[str, Task]]:
    """The tasks of a split by name; for a source that draws its tasks, a numbered sample."""
    source = run.config.source
    if names := source.task_names(split):
        return [(name, source.task(split, i)) for i, name in enumerate(names)]
    count = DRAWN_IMAGES if source.spec.is_image else DRAWN
    keys = jax.random.split(key_for(split, run.config.training.seed), count)
    drawn = map_drawn(whole_task, source.split(split), keys, task_chunk_size=run.config.training.task_chunk_size)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], drawn) for i in range(count)]
    return [(f"{source.family_names[int(task.family)]} {i + 1}", task) for i, task in enumerate(each)]


def first_centers(run: Run) -> np.ndarray | None:
    """The centres of the first level, of a learner with clusters."""
    centers = run.config.learner.cluster_centers(run.meta)
    return None if centers is None else np.asarray(centers)

"""Data for fitting baselines: all rows of the training tasks, and validation tasks for selection."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metagrove.keys import Purpose, key_for
from metagrove.outer import map_drawn, task_keys, whole_task
from metagrove.sources.source import Source
from metagrove.task import Split, Task, join

MOST_TASKS = 2000
"""Largest number of training tasks that a baseline is fitted to."""
MOST_ROWS = 200
"""Largest number of rows of each."""
DRAWN_TASKS = 500
"""Training tasks of a source that draws them."""
VALIDATION_DRAWS = 5
"""Draws of each validation task, with different support rows."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of tasks as NumPy arrays, padded: x (tasks, n, d), y (tasks, n, o), mask (tasks, n)."""

    x: np.ndarray
    y: np.ndarray
    mask: np.ndarray

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The real rows of all tasks."""
        return self.x[self.mask], self.y[self.mask]


@dataclasses.dataclass(frozen=True)
class Draws:
    """Tasks with their support and query rows, axes (task, draw, row, column)."""

    support: Rows
    query: Rows
    family: np.ndarray

    def joined(self) -> tuple[Rows, Rows]:
        """Support and query with one axis of tasks, the draws of a task one after the other."""
        return tuple(
            Rows(*(array.reshape(-1, *array.shape[2:]) for array in (rows.x, rows.y, rows.mask)))
            for rows in (self.support, self.query)
        )  # pyright: ignore[reportReturnType]


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Training tasks, validation tasks and the kind of their targets."""

    train: Rows
    validation: Draws
    classifies: bool
    shots: int
    """Support rows of a task."""

    @property
    def curved(self) -> tuple[int, ...]:
        """Inputs with at least five values, which may have a curve; others (e.g. one-hot codes) have a slope."""
        x, _ = self.train.flat()
        return tuple(i for i in range(x.shape[1]) if len(np.unique(x[:1000, i])) >= 5)


def baseline_data(source: Source, *, classifies: bool) -> Data:
    """Read what baselines need from a source of tables."""
    validation = draw_tasks(source, "validation", num_draws=VALIDATION_DRAWS, seed=0)
    return Data(training_rows(source), validation, classifies, validation.support.mask.shape[2])


def training_rows(source: Source) -> Rows:
    """All rows of the training tasks; for a source that draws its tasks, those of a sample."""
    found = source.whole_tasks("train", MOST_TASKS)
    if found is None:
        keys = jax.random.split(key_for("train", 0), DRAWN_TASKS)
        found = map_drawn(whole_task, source.split("train"), keys)
    rows = jax.vmap(lambda task: join(task.support, task.query))(jax.tree.map(jnp.asarray, found))
    return packed(*(np.asarray(part) for part in (rows.x, rows.y, rows.mask)))


def packed(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Rows:
    """Real rows first, no more than `MOST_ROWS` of a task; in double precision."""
    order = np.argsort(~mask, axis=1, kind="stable")[:, : min(MOST_ROWS, int(mask.sum(1).max()))]
    each = [np.take_along_axis(array, order[..., None], 1).astype(np.float64) for array in (x, y)]
    return Rows(each[0], each[1], np.take_along_axis(mask, order, 1))


def draw_tasks(source: Source, split: Split, *, num_draws: int, seed: int) -> Draws:
    """Draw the same tasks, with the same support and query rows, as `Run.scores` does for that seed."""
    purpose: Purpose = "validation" if split == "validation" else "test"
    key = key_for(purpose, seed)
    drawn = [
        map_drawn(whole_task, part, task_keys(jax.random.fold_in(key, i), num_draws))
        for i, part in enumerate(source.parts(split))
    ]

    def stacked(pick: Callable[[Task], Any]) -> np.ndarray:
        return np.stack([np.asarray(pick(task)) for task in drawn])

    def rows(of: str) -> Rows:
        parts = [stacked(lambda t, name=name: getattr(getattr(t, of), name)) for name in ("x", "y", "mask")]
        return Rows(parts[0].astype(np.float64), parts[1].astype(np.float64), parts[2])

    return Draws(rows("support"), rows("query"), stacked(lambda t: t.family[0]))


def mean_loss(prediction: np.ndarray, query: Rows, *, classifies: bool) -> float:
    """Mean over tasks of the squared error, or of -log p of the true class for log-probabilities."""
    return float(task_losses(prediction, query, classifies=classifies).mean())


def task_losses(prediction: np.ndarray, query: Rows, *, classifies: bool) -> np.ndarray:
    """The same of each task."""
    each = -(prediction * query.y).sum(-1) if classifies else np.square(prediction - query.y).mean(-1)
    return mean_of_rows(each, query)


def task_accuracies(prediction: np.ndarray, query: Rows) -> np.ndarray:
    """Accuracy in percent of each task."""
    return mean_of_rows(100.0 * (prediction.argmax(-1) == query.y.argmax(-1)), query)


def mean_of_rows(values: np.ndarray, rows: Rows) -> np.ndarray:
    """Mean over the real rows of each task."""
    return np.where(rows.mask, values, 0).sum(1) / rows.mask.sum(1)

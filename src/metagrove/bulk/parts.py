"""Adapt to all tasks of a part and predict their rows, in batches of a fixed width."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from metagrove.bulk.store import Rows
from metagrove.errors import InputError, quoted
from metagrove.learner import Info, Predictor
from metagrove.nets.predictors import HasStd
from metagrove.outer import over_tasks
from metagrove.serve.compiled import adapt_batch, rows_alone
from metagrove.serve.fitted_task import refuse_not_finite
from metagrove.serve.fitted_tasks import Fit
from metagrove.serve.queries import QueryRows
from metagrove.serve.rows import padded_size
from metagrove.tables.schema import Schema
from metagrove.task import Examples

WIDTH = 256
"""Tasks of every compiled call; the last batch of a size is padded with its last task."""
QUERIES = 8
"""Rows of each task that are predicted in one compiled call."""
Columns = dict[str, np.ndarray]


def predict_part(fit: Fit, rows: Rows, schema: Schema, where: str) -> Columns:
    """Adapt to each task and predict its rows without targets, in the order of tasks and rows.

    Args:
        fit: A run, and how it is fitted to tasks.
        rows: Rows sorted by task.
        schema: Encoding of the columns.
        where: File of the rows, for messages.

    Returns:
        Columns task, row and the targets; with a std for each target if the learner has one.

    Raises:
        InputError: If a task has no row with a target, or a prediction is not finite; the message names the row.
    """
    supports, queries = Blocks(rows, rows.support, where), Blocks(rows, ~rows.support)
    values = np.zeros((len(rows.row), fit.config.source.spec.y_dim), np.float32)
    stds = None
    for tasks, predictors, _ in adapted_batches(fit, rows, supports, np.flatnonzero(queries.counts)):
        for start in range(0, int(queries.counts[tasks].max()), QUERIES):
            index, mask = queries.rows_of(filled(tasks), QUERIES, start)
            mask[len(tasks) :] = False
            answers, deviations = answer(predictors, jnp.asarray(rows.x[index]))
            values[index[mask]] = np.asarray(answers)[mask]
            if deviations is not None:
                stds = np.zeros_like(values) if stds is None else stds
                stds[index[mask]] = np.asarray(deviations)[mask]
    asked = ~rows.support
    columns = schema.decode_targets(values[asked])
    if stds is not None:
        columns |= std_columns(schema, stds[asked])
    refuse_not_finite(columns, QueryRows(rows.x, where=where, rows=rows.row[asked]))
    return {"task": rows.names[rows.task[asked]].astype(object), "row": rows.row[asked], **columns}


def std_columns(schema: Schema, stds: np.ndarray) -> Columns:
    """The standard deviations of predictions, in columns that end in _sd."""
    target = schema.targets[0].name
    names = [f"{target}={label}" for label in schema.labels] or [one.name for one in schema.targets]
    return {f"{name}_sd": values for name, values in zip(names, schema.decode_std(stds).T, strict=True)}


def adapt_part(fit: Fit, rows: Rows, where: str) -> Columns:
    """Adapt to each task and describe it: its rows, its share of the clusters of each level, and its embedding.

    Args:
        fit: A run, and how it is fitted to tasks.
        rows: Rows sorted by task.
        where: File of the rows, for messages.

    Returns:
        Columns task, rows, clusters_1, ..., embedding, with a line for each task.
    """
    supports = Blocks(rows, rows.support, where)
    found: dict[str, np.ndarray] = {}
    for tasks, _, info in adapted_batches(fit, rows, supports, np.arange(len(rows.names))):
        for name, values in description(info).items():
            found.setdefault(name, np.zeros((len(rows.names), values.shape[1]), np.float32))[tasks] = values[
                : len(tasks)
            ]
    return {"task": rows.names.astype(object), "rows": supports.counts, **found}


def description(info: Info) -> Columns:
    """Shares of the clusters of each level below the root, and the embeddings, of a batch of tasks."""
    found, share = {}, None
    for level, assignment in enumerate(info.assignments, 1):
        share = assignment[:, 0] if share is None else jnp.einsum("tk,tkl->tl", share, assignment)
        if share.shape[1] > 1:
            found[f"clusters_{level}"] = np.asarray(share)
    return found if info.task_embedding is None else {**found, "embedding": np.asarray(info.task_embedding)}


class Blocks:
    """Positions of the support rows, or the query rows, of each task."""

    def __init__(self, rows: Rows, chosen: np.ndarray, needed_in: str = ""):
        self.places = np.flatnonzero(chosen)
        self.counts = np.bincount(rows.task[chosen], minlength=len(rows.names))
        self.starts = np.cumsum(self.counts) - self.counts
        if needed_in and not self.counts.all():
            task = int(np.flatnonzero(self.counts == 0)[0])
            row = int(rows.row[rows.task == task][0])
            name = str(rows.names[task])
            raise InputError(
                f"{needed_in}, row {row}: the task {quoted(name)} has no row with its target: give at least one"
            )

    def rows_of(self, tasks: np.ndarray, size: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the rows `start` to `start + size` of tasks, (tasks, size), and a mask of those that exist."""
        place = start + np.arange(size)[None]
        mask = place < self.counts[tasks][:, None]
        return self.places[np.where(mask, self.starts[tasks][:, None] + place, 0)], mask


def adapted_batches(
    fit: Fit, rows: Rows, supports: Blocks, wanted: np.ndarray
) -> Iterator[tuple[np.ndarray, Predictor, Info]]:
    """Adapt to tasks, those of one padded size together; their indices and a batch of WIDTH predictors and infos."""
    sizes = np.array([padded_size(count) for count in range(int(supports.counts.max(initial=0)) + 1)])
    of_task = sizes[supports.counts[wanted]]
    for size in np.unique(of_task):
        members = wanted[of_task == size]
        for start in range(0, len(members), WIDTH):
            tasks = members[start : start + WIDTH]
            index, mask = supports.rows_of(filled(tasks), int(size))
            examples = Examples(*map(jnp.asarray, (rows.x[index], rows.y[index], mask)))
            yield tasks, *adapt_batch(fit.config.learner, fit.meta, examples, fit.steps, fit.statistics)


def filled(tasks: np.ndarray) -> np.ndarray:
    """The tasks of a batch, the last one repeated up to WIDTH."""
    return np.pad(tasks, (0, WIDTH - len(tasks)), mode="edge")


@eqx.filter_jit
def answer(predictors: Predictor, x: Array) -> tuple[Array, Array | None]:
    """Predictions and, where the predictors have them, their standard deviations for rows of each of many tasks."""

    def one(predictor: Predictor, x: Array) -> tuple[Array, Array | None]:
        std = rows_alone(predictor.std, x) if isinstance(predictor, HasStd) else None
        alone: Any = predictor
        return rows_alone(alone, x), std

    return over_tasks(one, predictors, x)

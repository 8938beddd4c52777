"""Fit a run to a new task from a file, and say where the task stands among those the run knows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.errors import InputError
from metagrove.serve.adapted import Adapted, adapt_once, adapt_one
from metagrove.serve.fitted import Fitted, fitted
from metagrove.serve.index import places, read_atlas
from metagrove.serve.rows import padded_examples
from metagrove.serve.run import Run
from metagrove.tables.read import Table, from_frame, read_table
from metagrove.tables.schema import Column, Schema, quote
from metagrove.task import Spec

FAR = 95.0
"""A task further out than so many of 100 held-out ones is said to be unlike them."""


def adapt(run: Run, support: Any, *, steps: int | None = None, once: bool = False) -> Fitted:
    """Fit a run to a new task: a table (a file, a DataFrame, columns), or for images a folder class/*.jpg.

    `once` compiles in less time to slower code, for a process that does nothing else.
    """
    if images(run.config.source.spec):
        from metagrove.serve.images import support_images

        classes, x, y = support_images(Path(support), run.config.source.spec)
        return fit(run, image_schema(classes), x, y, steps, (), once=once)
    table = read_table(support) if isinstance(support, str | Path) else from_frame(support)
    schema, ignored = schema_of(run), ignored_columns(run)
    refuse_unseen(table, schema, ignored)
    where = table.columns, table.where, table.rows.tolist()
    x, y = schema.encode_inputs(*where), schema.encode_targets(*where)
    return fit(run, schema, x, y, steps, ignored, once=once)


def fit(
    run: Run,
    schema: Schema,
    x: np.ndarray,
    y: np.ndarray,
    steps: int | None,
    ignored: tuple[str, ...] | None,
    *,
    once: bool = False,
) -> Fitted:
    """The same from encoded rows."""
    support, steps = padded_examples(x, y), run.inner_steps if steps is None else steps
    predictor, info = (adapt_once if once else adapt_one)(run.config.learner, run.meta, support, steps)
    task = Adapted(run.config.source.spec, predictor, info)
    about = {"run": run.folder.name, "rows": len(x), "inner_steps": steps, **standing(run, task)}
    return fitted(run.config, schema, predictor, support, about, ignored)


def images(spec: Spec) -> bool:
    """Are the inputs images?"""
    return len(spec.x_shape) == 3


def image_schema(classes: Sequence[str]) -> Schema:
    """A task's classes as the names of its target."""
    return Schema((), (Column("class", "category", categories=tuple(classes)),))


def schema_of(run: Run) -> Schema:
    """The run's columns; of one without any, x (or x1, x2, ...) and y, as they are."""
    source: Any = run.config.source
    if hasattr(source, "schema"):
        return source.schema
    if run.metric == "accuracy":
        raise InputError(f"{run.folder.name} classifies and names no columns: adapt it in Python, with Run.adapt")
    return Schema(plain_columns("x", source.spec.x_shape[0]), plain_columns("y", source.spec.y_dim))


def plain_columns(name: str, count: int) -> tuple[Column, ...]:
    """Columns of numbers that are not standardised."""
    names = [name] if count == 1 else [f"{name}{i + 1}" for i in range(count)]
    return tuple(Column(one, "number") for one in names)


def ignored_columns(run: Run) -> tuple[str, ...] | None:
    """Columns that may stand in a file and are not read; None if that is any, since the inputs were named."""
    source: Any = run.config.source
    if getattr(source, "inputs", ()):
        return None
    return tuple(name for key in ("task_column", "stratify", "group_column") if (name := getattr(source, key, "")))


def refuse_unseen(table: Table, schema: Schema, ignored: tuple[str, ...] | None) -> None:
    """Refuse a column that training did not have: it would be left unread without a word."""
    known = {column.name for column in schema.inputs + schema.targets} | set(ignored or ())
    unseen = [name for name in table.columns if name not in known]
    if unseen and ignored is not None:
        inputs = quote([column.name for column in schema.inputs])
        raise InputError(
            f"{table.where} has a column {quote(unseen)} that was not seen in training: leave it out; "
            f"the inputs are {inputs}"
        )


def standing(run: Run, task: Adapted) -> dict[str, Any]:
    """Where a task stands: its shares of the clusters of each level, the known tasks most like it, how far out."""
    atlas, embedding = read_atlas(run.folder), task.task_embedding
    if atlas is None or atlas.embeddings is None or embedding is None:
        return {"clusters": shares(task), "most_like": [], "percentile": None, "unlike": None}
    percentile = atlas.percentile(embedding, places(run, embedding[None])[0])
    return {
        "clusters": shares(task),
        "most_like": atlas.most_like(embedding),
        "percentile": percentile,
        "unlike": percentile >= FAR,
    }


def shares(task: Adapted) -> list[list[float]]:
    """The task's shares of the clusters of each level below the root."""
    found, share = [], np.ones(1)
    for assignment in task.assignments:
        share = share @ assignment
        found.append([float(one) for one in share])
    return [level for level in found if len(level) > 1]


def described(about: dict[str, Any]) -> list[str]:
    """What `standing` found, in words, a line each."""
    lines = [f"adapted {about['run']} to {about['rows']} rows by {about['inner_steps']} inner steps"]
    for number, level in enumerate(about["clusters"], 1):
        parts = [f"{k + 1} ({100 * level[k]:.0f} %)" for k in np.argsort(level)[::-1] if level[k] >= 0.01]
        lines.append(f"clusters of level {number}: {', '.join(parts)}")
    if about["most_like"]:
        lines.append("most like: " + ", ".join(one["task"] for one in about["most_like"]))
    if about["percentile"] is not None:
        lines.append(f"further out than {about['percentile']:.0f} % of held-out tasks")
    if about["unlike"]:
        lines.append("warning: this task looks unlike those the run was trained on; its predictions may be poor")
    return lines

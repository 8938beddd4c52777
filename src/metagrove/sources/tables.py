"""People's own tables: each task is some rows of one, a few to adapt on and others to be judged on.

The schema is part of the settings, so that a run adapts and predicts without the files; only drawing tasks reads them.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array, Float, Int, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.sources.images import draw
from metagrove.sources.source import Source
from metagrove.tables.cells import texts
from metagrove.tables.infer import infer_schema
from metagrove.tables.read import Table
from metagrove.tables.schema import Schema
from metagrove.tables.settings import TableData
from metagrove.tables.splits import FEWEST, split_tasks
from metagrove.tables.tasks import TaskRows, checksum, read_tasks
from metagrove.task import Examples, Spec, Split, Task

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
MOST_ROWS = 2000
"""Rows of a task that are kept on the device; of a larger one, a seeded choice."""


@dataclasses.dataclass(frozen=True)
class Tables(TableData, Source):
    """Tasks of people's own tables. `open_tables` fills in what it finds in the files."""

    schema: tyro.conf.Suppress[Schema] = Schema((), ())  # pyright: ignore[reportIncompatibleMethodOverride]
    """What the columns mean."""
    families: tyro.conf.Suppress[tuple[str, ...]] = ("task",)
    """The kinds of task."""
    sha256: tyro.conf.Suppress[str] = ""
    """Of the files, so that a run never goes on with others."""

    @property
    def spec(self) -> Spec:
        return self.schema.spec

    @property
    def family_names(self) -> tuple[str, ...]:
        return self.families

    @property
    def repeats_tasks(self) -> bool:
        return True

    @property
    def ignored_columns(self) -> tuple[str, ...] | None:
        """Columns about tasks; any, where the inputs were named."""
        return None if self.inputs else tuple(filter(None, (self.task_column, self.stratify, self.together)))

    def sample(self, key: PRNGKeyArray) -> Task:
        """A training task."""
        return self.split("train").sample(key)

    def split(self, name: Split) -> "TableTasks":
        """The tasks of a meta-split."""
        with jax.ensure_compile_time_eval():  # its arrays are kept, and must be arrays even if a function is traced now
            return open_split(self, name)

    def test_parts(self) -> "tuple[TableTasks, ...]":
        """Each test task."""
        return self.split("test").each()

    def task_names(self, split: Split) -> tuple[str, ...]:
        """The names of a split's tasks, in their order."""
        return tuple(task.name for task in open_tasks(self)[split])

    def task(self, split: Split, index: int) -> Task:
        """All rows of one task: `shots` of them as support, always the same ones, the others as query."""
        return _whole(self.split(split), jnp.asarray(index))


class TableTasks(eqx.Module):
    """The tasks of one meta-split; task t's rows are `starts[t]` to `starts[t] + counts[t]`."""

    x: Float[Array, "n x"]
    y: Float[Array, "n y"]
    starts: Int[Array, " t"]
    counts: Int[Array, " t"]
    families: Int[Array, " t"]
    which: Int[Array, " w"]
    """The tasks that are drawn from, each equally likely."""
    most: int = eqx.field(static=True)
    """The largest number of rows of a task."""
    shots: int = eqx.field(static=True)
    min_shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray) -> Task:
        """One task, and which of its rows are support and query."""
        task_key, row_key, size_key = jax.random.split(key, 3)
        task = self.which[jax.random.randint(task_key, (), 0, len(self.which))]
        largest = jnp.minimum(self.shots, self.counts[task] - 1)
        size = jax.random.randint(size_key, (), jnp.minimum(self.min_shots, largest), largest + 1)
        return self._task(row_key, task, size, self.queries)

    def whole(self, task: Int[Array, ""]) -> Task:
        """All rows of one task."""
        size = jnp.minimum(self.shots, self.counts[task] - 1)
        return self._task(jax.random.fold_in(jax.random.key(0), task), task, size, max(1, self.most - self.shots))

    def each(self) -> "tuple[TableTasks, ...]":
        """Each task apart."""
        return tuple(eqx.tree_at(lambda one: one.which, self, self.which[i : i + 1]) for i in range(len(self.which)))

    def _task(self, key: PRNGKeyArray, task: Array, size: Array, num_queries: int) -> Task:
        """`size` rows of a task as support, as many others as there are up to `num_queries` as query."""
        wanted = min(self.shots + num_queries, self.most)
        count = jnp.minimum(self.counts[task], wanted)
        rows = self.starts[task] + draw(key, jnp.arange(self.most) < self.counts[task], wanted)

        def examples(places: Array, last: Array) -> Examples:
            chosen = rows[jnp.minimum(places, wanted - 1)]
            return Examples(self.x[chosen], self.y[chosen], places < last)

        support = examples(jnp.arange(min(self.shots, self.most)), size)
        query = examples(size + jnp.arange(min(num_queries, self.most)), jnp.minimum(count, size + num_queries))
        return Task(support, query, self.families[task])


@eqx.filter_jit
def _whole(tasks: TableTasks, task: Int[Array, ""]) -> Task:
    return tasks.whole(task)


def open_tables(data: TableData) -> tuple[Tables, list[str]]:
    """The source of these files, with what their columns mean, and what a person should know of the reading."""
    if problems := data.validation_errors():
        raise InputError("; ".join(problems))
    tasks, roles, notes = read_tasks(data)
    split = split_tasks(tasks, data)
    training = [task.table for task in tasks if split[task.name] == "train"]
    settings = {field.name: getattr(data, field.name) for field in dataclasses.fields(TableData)}
    source = Tables(
        **settings,
        schema=infer_schema(data, roles, training, [task.table for task in tasks]),
        families=tuple(sorted({task.kind for task in tasks})),
        sha256=checksum(Path(data.tasks)),
    )
    for part in SPLITS:
        open_split(source, part)  # every bad cell is refused before anything is trained
    return source, notes + notes_of(source, tasks)


def notes_of(source: Tables, tasks: Sequence[TaskRows]) -> list[str]:
    """Tasks whose names for things no training task has, and rows that are not kept."""
    kept = {task.name for split in open_tasks(source).values() for task in split}
    gone = [task.name for task in tasks if task.name not in kept]
    large = [task.name for task in tasks if task.num_rows > MOST_ROWS]
    return [f"left out {name!r}: it has a category that is in no training task" for name in gone] + [
        f"{name!r} has more than {MOST_ROWS} rows: a seeded choice of so many is used" for name in large
    ]


@functools.lru_cache(maxsize=4)
def open_tasks(source: Tables) -> dict[Split, tuple[TaskRows, ...]]:
    """The tasks of each split, from the files that the run was begun with."""
    path = Path(source.tasks)
    if not path.exists():
        raise InputError(
            f"{path}, the run's tasks, does not exist: put it back, or work where it is (adapting needs none)"
        )
    if source.sha256 != checksum(path):
        raise InputError(
            f"{path} is not what the run was begun with (its checksum differs): put that back, or train anew"
        )
    tasks, _, _ = read_tasks(source)
    split = split_tasks(tasks, source)
    tasks = [task for task in tasks if split[task.name] == "train" or knows(source.schema, task)]
    found: dict[Split, tuple[TaskRows, ...]] = {
        part: tuple(task for task in tasks if split[task.name] == part) for part in SPLITS
    }
    for part, members in found.items():
        if len(members) < FEWEST:
            raise InputError(f"{path}: {len(members)} {part} tasks, at least {FEWEST} are needed: bring more tasks")
    return found


def knows(schema: Schema, task: TaskRows) -> bool:
    """Does the schema know every category of the task's inputs?"""
    named = [column for column in schema.inputs if column.kind == "category"]
    return all(set(texts(task.table.columns[c.name])) <= {*c.categories, None} for c in named)


@functools.lru_cache(maxsize=4)
def open_split(source: Tables, split: Split) -> TableTasks:
    """Read a meta-split onto the device."""
    tasks = open_tasks(source)[split]
    tables = [some_rows(task, seed) for seed, task in enumerate(tasks)]
    where = [(table.columns, table.where, table.rows.tolist()) for table in tables]
    counts = np.array([len(table.rows) for table in tables])
    most = int(counts.max())
    least = source.min_shots if source.min_shots and split == "train" else source.shots
    return TableTasks(
        x=jnp.asarray(np.concatenate([source.schema.encode_inputs(*one) for one in where])),
        y=jnp.asarray(np.concatenate([source.schema.encode_targets(*one) for one in where])),
        starts=jnp.asarray(np.cumsum([0, *counts[:-1]])),
        counts=jnp.asarray(counts),
        families=jnp.asarray([source.families.index(task.kind) for task in tasks]),
        which=jnp.arange(len(tasks)),
        most=most,
        shots=source.shots,
        min_shots=least,
        queries=min(source.queries, max(1, most - least)),
    )


def some_rows(task: TaskRows, seed: int) -> Table:
    """The task's table, of a very large one a seeded choice of its rows."""
    if task.num_rows <= MOST_ROWS:
        return task.table
    chosen = np.random.default_rng(seed).choice(task.num_rows, MOST_ROWS, replace=False)
    return task.table.take(np.sort(chosen))

"""Tasks from a user's own tables: some rows of a task are its support set, others its query set.

The schema is part of the settings, so that a run adapts and predicts without the files; only drawing tasks reads them.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError, quoted
from metagrove.sources.source import Source
from metagrove.sources.table_tasks import TableTasks, whole_task, whole_tasks
from metagrove.tables.cells import texts
from metagrove.tables.infer import infer_schema
from metagrove.tables.read import Table
from metagrove.tables.schema import Schema
from metagrove.tables.settings import TableData
from metagrove.tables.splits import FEWEST, split_tasks
from metagrove.tables.tasks import TaskRows, checksum, read_tasks
from metagrove.task import Spec, Split, Task

__all__ = ["Tables", "open_tables"]

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
MOST_ROWS = 2000
"""Largest number of rows of a task that is held on the device; a larger task is subsampled with a fixed seed."""


@dataclasses.dataclass(frozen=True)
class Tables(TableData, Source):
    """Regression or classification tasks from a user's own tables; `open_tables` creates it from files.

    Example:
        >>> from metagrove.sources.tables import open_tables
        >>> from metagrove.tables.settings import TableData
        >>> data = TableData(tasks="sensors.csv", task_column="sensor", target=("y",))
        >>> source, notes = open_tables(data)  # doctest: +SKIP
    """

    schema: tyro.conf.Suppress[Schema] = Schema((), ())  # pyright: ignore[reportIncompatibleMethodOverride]
    """Input and target columns and their encoding."""
    families: tyro.conf.Suppress[tuple[str, ...]] = ("task",)
    """Families of tasks, from the column `stratify`."""
    sha256: tyro.conf.Suppress[str] = ""
    """Checksum of the files, so that a run never continues on other data."""

    @property
    def spec(self) -> Spec:
        """Shapes of the encoded inputs and targets."""
        return self.schema.spec

    @property
    def family_names(self) -> tuple[str, ...]:
        """Names of the families, in the order of `Task.family`."""
        return self.families

    @property
    def repeats_tasks(self) -> bool:
        """Always true: the same tasks are drawn again with other support rows."""
        return True

    @property
    def ignored_columns(self) -> tuple[str, ...] | None:
        """Columns about tasks; any, where the inputs were named."""
        return None if self.inputs else tuple(filter(None, (self.task_column, self.stratify, self.group_column)))

    def sample(self, key: PRNGKeyArray) -> Task:
        """Draw one training task and its support and query rows.

        Args:
            key: Random key; it determines the task completely.

        Returns:
            The task, padded to `shots` support and `queries` query rows.
        """
        return self.split("train").sample(key)

    def split(self, name: Split) -> "TableTasks":
        """Load the tasks of a meta-split; the files are read once and the rows stay on the device.

        Args:
            name: "train", "validation" or "test".

        Returns:
            A module with `sample(key)` that holds the rows of the split.

        Raises:
            InputError: If the files are missing or have changed since training started.
        """
        with jax.ensure_compile_time_eval():  # cached, so its arrays must be concrete even while tracing
            return open_split(self, name)

    def parts(self, split: Split) -> "tuple[TableTasks, ...]":
        """Return each task of a split separately.

        Args:
            split: "train", "validation" or "test".

        Returns:
            A module with `sample(key)` for each task.
        """
        return self.split(split).each()

    def rows(self, split: Split) -> tuple[Float[Array, "n x"], Float[Array, "n y"]]:
        """Return all encoded rows of a split.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The inputs and the targets.
        """
        tasks = self.split(split)
        return tasks.x, tasks.y

    def task_names(self, split: Split) -> tuple[str, ...]:
        """Return the names of the tasks of a split, in their order.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The names of the tasks.
        """
        return tuple(task.name for task in open_tasks(self)[split])

    def task(self, split: Split, index: int) -> Task:
        """Return all rows of one task, with a fixed choice of `shots` support rows; the others are query rows.

        Args:
            split: "train", "validation" or "test".
            index: Index of the task in that split.

        Returns:
            The task.
        """
        return whole_task(self.split(split), jnp.asarray(index))

    def whole_tasks(self, split: Split, num_tasks: int) -> Task:
        """Return all rows of up to so many tasks of a split, evenly spaced; see `Source.whole_tasks`.

        Args:
            split: "train", "validation" or "test".
            num_tasks: Largest number of tasks.

        Returns:
            The tasks, with a leading axis.
        """
        tasks = self.split(split)
        last = len(tasks.which) - 1
        which = np.linspace(0, last, min(num_tasks, last + 1)).astype(int)
        return whole_tasks(tasks, jnp.asarray(which))


def open_tables(data: TableData) -> tuple[Tables, list[str]]:
    """Create a source from files: read and check the tables, split the tasks and infer the schema.

    Args:
        data: Where the tables are and how to read them.

    Returns:
        The source, and notes for the user about tasks and rows that were left out.

    Raises:
        InputError: If a setting or a table cannot be used; the message names file, row and column.
    """
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
        open_split(source, part)  # encodes every cell, so that an invalid one raises an error before training
    return source, notes + notes_of(source, tasks)


def notes_of(source: Tables, tasks: Sequence[TaskRows]) -> list[str]:
    """Describe the tasks that were left out for unseen categories, and those that were subsampled."""
    kept = {task.name for split in open_tasks(source).values() for task in split}
    gone = [task.name for task in tasks if task.name not in kept]
    large = [task.name for task in tasks if task.num_rows > MOST_ROWS]
    return [f"left out {quoted(name)}: it has a category that is in no training task" for name in gone] + [
        f"{quoted(name)} has more than {MOST_ROWS} rows: a random sample of {MOST_ROWS} is used" for name in large
    ]


@functools.lru_cache(maxsize=4)
def open_tasks(source: Tables) -> dict[Split, tuple[TaskRows, ...]]:
    """Read the tasks of each split and check that the files have not changed."""
    path = Path(source.tasks)
    if not path.exists():
        raise InputError(
            f"{path}, the run's tasks, does not exist: restore it, or run the command where it is (adapting to a new "
            "task does not need it)"
        )
    if source.sha256 != checksum(path):
        raise InputError(
            f"{path} has changed since training started (its checksum differs): restore it, or train a new run"
        )
    tasks, _, _ = read_tasks(source)
    split = split_tasks(tasks, source)
    tasks = [task for task in tasks if split[task.name] == "train" or has_all_categories(source.schema, task)]
    found: dict[Split, tuple[TaskRows, ...]] = {
        part: tuple(task for task in tasks if split[task.name] == part) for part in SPLITS
    }
    for part, members in found.items():
        if len(members) < FEWEST:
            raise InputError(f"{path}: {len(members)} {part} tasks, at least {FEWEST} are needed: add more tasks")
    return found


def has_all_categories(schema: Schema, task: TaskRows) -> bool:
    """Return whether the schema has every category of the inputs of a task."""
    named = [column for column in schema.inputs if column.kind == "category"]
    return all(set(texts(task.table.columns[c.name])) <= {*c.categories, None} for c in named)


@functools.lru_cache(maxsize=4)
def open_split(source: Tables, split: Split) -> TableTasks:
    """Encode the tasks of a meta-split and load them onto the device."""
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
    """Return the table of a task, subsampled with a fixed seed if it is very large."""
    if task.num_rows <= MOST_ROWS:
        return task.table
    chosen = np.random.default_rng(seed).choice(task.num_rows, MOST_ROWS, replace=False)
    return task.table.take(np.sort(chosen))

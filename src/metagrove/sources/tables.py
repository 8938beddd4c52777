"""Tasks from a user's own tables: some rows of a task are its support set, others its query set.

The schema is part of the settings, so that a run adapts and predicts without the files; only drawing tasks reads them.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.sources.open_tasks import OpenTasks, open_in_memory, open_on_disk
from metagrove.sources.source import Source
from metagrove.sources.table_tasks import TableTasks, whole_task, whole_tasks
from metagrove.tables.infer import infer_schema
from metagrove.tables.read import refuse_unreadable
from metagrove.tables.schema import Schema
from metagrove.tables.settings import TableData
from metagrove.tables.size import keeps_rows_on_disk
from metagrove.tables.store import find_or_write_store
from metagrove.tables.tasks import checksum, read_tasks
from metagrove.task import Spec, Split, Task

__all__ = ["Tables", "open_tables"]

MOST_LISTED: dict[Split, int] = {"train": 1000, "validation": 500, "test": 500}
"""Largest number of tasks of a split that are listed, for indices, calibration, baselines, scores and reports.

The time of calibration is quadratic in it."""


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
        """Load the tasks of a meta-split; the files are read once, and the rows stay on the device or on disk.

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
        """Return the listed tasks of a split separately; see `task_names`.

        Args:
            split: "train", "validation" or "test".

        Returns:
            A module with `sample(key)` for each task.
        """
        tasks = self.split(split)
        return tuple(tasks.one(int(task)) for task in self.listed(split))

    def rows(self, split: Split) -> tuple[Float[Array, "n x"], Float[Array, "n y"]]:
        """Return all encoded rows of a split, which are read into memory.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The inputs and the targets.
        """
        tasks = self.split(split)
        return tasks.rows.all()

    def num_tasks(self, split: Split) -> int:
        """Return the number of tasks of a split.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The number of all tasks, listed or not.
        """
        return int(self.split(split).count)

    def listed(self, split: Split) -> np.ndarray:
        """Return the indices of the listed tasks: all, or as many as `MOST_LISTED` says, evenly spaced.

        Args:
            split: "train", "validation" or "test".

        Returns:
            Indices of tasks, in order.
        """
        return evenly_spaced(self.num_tasks(split), MOST_LISTED[split])

    def task_names(self, split: Split) -> tuple[str, ...]:
        """Return the names of the listed tasks of a split, in their order; see `listed`.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The names of the tasks.
        """
        return opened(self).names(split, self.listed(split))

    def task(self, split: Split, index: int) -> Task:
        """Return all rows of one task, with a fixed choice of `shots` support rows; the others are query rows.

        Args:
            split: "train", "validation" or "test".
            index: Index of the task among the listed ones of that split.

        Returns:
            The task.
        """
        return whole_task(self.split(split), jnp.asarray(self.listed(split)[index]))

    def whole_tasks(self, split: Split, num_tasks: int) -> Task:
        """Return all rows of up to so many tasks of a split, evenly spaced; see `Source.whole_tasks`.

        Args:
            split: "train", "validation" or "test".
            num_tasks: Largest number of tasks.

        Returns:
            The tasks, with a leading axis.
        """
        return whole_tasks(self.split(split), jnp.asarray(evenly_spaced(self.num_tasks(split), num_tasks)))


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """The indices 0 to count - 1, or `most` of them."""
    return np.linspace(0, count - 1, min(most, count)).astype(int)


def open_tables(data: TableData) -> tuple[Tables, list[str]]:
    """Create a source from files: read and check the tables, split the tasks and infer the schema.

    Args:
        data: Where the tables are and how to read them.

    Returns:
        The source, and notes for the user about tasks and rows that were left out.

    Raises:
        InputError: If a setting or a table cannot be used; the message names file, row and column.
        RunError: If rows are kept on disk and cannot be written.
    """
    if problems := data.validation_errors():
        raise InputError("; ".join(problems))
    settings = {field.name: getattr(data, field.name) for field in dataclasses.fields(TableData)}
    if keeps_rows_on_disk(data):
        refuse_unreadable(Path(data.tasks))
        sha256 = checksum(Path(data.tasks))
        store = find_or_write_store(data, sha256)
        schema, families = store.schema, store.record.families
    else:
        tasks = read_tasks(data)
        schema, families, sha256 = infer_schema(data, tasks), tasks.families, checksum(Path(data.tasks))
    source = Tables(**settings, schema=schema, families=families, sha256=sha256)
    return source, list(opened(source).notes)  # encodes every cell: an invalid one raises an error before training


@functools.lru_cache(maxsize=4)
def opened(source: Tables) -> OpenTasks:
    """Encode the tasks of a source, or open their files; check that the table has not changed."""
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
    if keeps_rows_on_disk(source):
        return open_on_disk(source, source.sha256, source.schema)
    return open_in_memory(source, source.schema)


@functools.lru_cache(maxsize=12)
def open_split(source: Tables, split: Split) -> TableTasks:
    """The tasks of a meta-split, to draw from."""
    tasks = opened(source)
    most = tasks.sizes[split].most
    least = source.min_shots if source.min_shots and split == "train" else source.shots
    return TableTasks(
        rows=tasks.rows[split],
        first=jnp.asarray(0, jnp.int32),
        count=jnp.asarray(tasks.sizes[split].num_tasks, jnp.int32),
        most=most,
        shots=source.shots,
        min_shots=least,
        queries=min(source.queries, max(1, most - least)),
    )

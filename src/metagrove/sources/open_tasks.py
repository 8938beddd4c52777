"""The encoded tasks of a table, ready to be drawn from: in memory, or in files on disk."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from metagrove.errors import InputError
from metagrove.sources.table_rows import RowsInMemory, RowsOnDisk, read_names
from metagrove.tables.encode import Changed, EncodedTasks, encoded
from metagrove.tables.schema import Schema
from metagrove.tables.settings import TableData
from metagrove.tables.splits import FEWEST, SPLITS
from metagrove.tables.store import StoredSplit, find_or_write_store
from metagrove.tables.tasks import read_tasks
from metagrove.task import Split

__all__ = ["OpenTasks", "open_in_memory", "open_on_disk"]


@dataclasses.dataclass(frozen=True)
class OpenTasks:
    """The encoded tasks of each split."""

    rows: dict[Split, RowsInMemory | RowsOnDisk]
    sizes: dict[Split, StoredSplit]
    names: Callable[[Split, np.ndarray], tuple[str, ...]]
    """Names of some tasks of a split."""
    notes: tuple[str, ...]
    """What was skipped, for the user."""


def open_in_memory(data: TableData, schema: Schema) -> OpenTasks:
    """Read and encode all tasks.

    Args:
        data: Where the tables are and how to read them.
        schema: Encoding of the columns.

    Returns:
        The tasks, whose rows are on the device.

    Raises:
        InputError: If a table cannot be used; the message names file, row and column.
    """
    tasks, changed = read_tasks(data), Changed()
    parts: dict[Split, list[EncodedTasks]] = {split: [] for split in SPLITS}
    for some in encoded(tasks, schema, changed):
        parts[some.split].append(some)
    refuse_few(data, {split: sum(len(one.names) for one in some) for split, some in parts.items()})
    names = {split: np.concatenate([one.names for one in some]) for split, some in parts.items()}
    return OpenTasks(
        {split: joined(some) for split, some in parts.items()},
        {
            split: StoredSplit(len(names[split]), most=max(int(one.counts.max()) for one in parts[split]))
            for split in SPLITS
        },
        lambda split, which: tuple(names[split][which].tolist()),
        (*tasks.notes, *changed.notes()),
    )


def joined(parts: list[EncodedTasks]) -> RowsInMemory:
    """The rows of all parts on the device."""
    counts = np.concatenate([one.counts for one in parts])
    return RowsInMemory(
        x=jnp.asarray(np.concatenate([one.x for one in parts])),
        y=jnp.asarray(np.concatenate([one.y for one in parts])),
        starts=jnp.asarray(np.cumsum(counts) - counts),
        counts=jnp.asarray(counts),
        families=jnp.asarray(np.concatenate([one.family for one in parts])),
    )


def open_on_disk(data: TableData, sha256: str, schema: Schema) -> OpenTasks:
    """Open the files of a table's encoded tasks; they are written if they are not there.

    Args:
        data: One long table, and how to read it.
        sha256: Its checksum.
        schema: Encoding of the columns.

    Returns:
        The tasks, whose rows are read when they are drawn.

    Raises:
        InputError: If the table cannot be used; the message names file, row and column.
        RunError: If the files cannot be written.
    """
    store = find_or_write_store(data, sha256, schema)
    sizes: dict[Split, StoredSplit] = {split: store.record.splits[split] for split in SPLITS}
    refuse_few(data, {split: one.num_tasks for split, one in sizes.items()})
    folder = str(store.path.resolve())
    return OpenTasks(
        {split: RowsOnDisk(folder, split, schema.x_dim, schema.y_dim) for split in SPLITS},
        sizes,
        functools.partial(read_names, store),
        store.record.notes,
    )


def refuse_few(data: TableData, num_tasks: Mapping[Split, int]) -> None:
    """Raise an InputError if a split has too few tasks."""
    for split, count in num_tasks.items():
        if count < FEWEST:
            needed = f"at least {FEWEST} are needed: add more tasks"
            raise InputError(f"{Path(data.tasks)}: {count} {split} tasks, {needed}")

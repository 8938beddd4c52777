"""Encode the rows of tasks for the net, part after part."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from metagrove.errors import quoted
from metagrove.tables.cells import texts
from metagrove.tables.schema import Schema
from metagrove.tables.splits import SPLITS
from metagrove.tables.task_table import TaskTable
from metagrove.tables.tasks import TaskSet
from metagrove.task import Split

MOST_ROWS = 2000
"""Largest number of rows of a task that are kept; a larger task is subsampled with a fixed seed."""
NAMED = 10
"""Tasks that are noted by name."""


@dataclasses.dataclass(frozen=True)
class EncodedTasks:
    """Whole tasks of one split: the rows of the first one, of the second one, and so on."""

    split: Split
    names: np.ndarray
    counts: np.ndarray
    """Number of rows of each task."""
    family: np.ndarray
    """Index of the family of each task."""
    x: np.ndarray
    y: np.ndarray


@dataclasses.dataclass
class Changed:
    """Tasks that were left out for unseen categories, and those that were subsampled."""

    unseen: list[str] = dataclasses.field(default_factory=list)
    """Names of the first ones."""
    num_unseen: int = 0
    large: list[str] = dataclasses.field(default_factory=list)
    """Names of the first ones."""
    num_large: int = 0

    def notes(self) -> list[str]:
        """Describe them, a line for each."""
        found = [f"left out {quoted(name)}: it has a category that is in no training task" for name in self.unseen]
        if (more := self.num_unseen - NAMED) > 0:
            found.append(f"left out {more} other tasks with a category that is in no training task")
        sampled = f"more than {MOST_ROWS} rows: a random sample of {MOST_ROWS} is used"
        found += [f"{quoted(name)} has {sampled}" for name in self.large]
        if (more := self.num_large - NAMED) > 0:
            found.append(f"{more} other tasks have {sampled}")
        return found

    def add_unseen(self, names: np.ndarray) -> None:
        """Count tasks that were left out."""
        self.unseen += names[: NAMED - len(self.unseen)].tolist()
        self.num_unseen += len(names)

    def add_large(self, names: np.ndarray) -> None:
        """Count tasks that were subsampled."""
        self.large += names[: NAMED - len(self.large)].tolist()
        self.num_large += len(names)


def encoded(tasks: TaskSet, schema: Schema, changed: Changed) -> Iterator[EncodedTasks]:
    """Encode the tasks of each split, in the order of the tasks.

    Validation and test tasks with a category that is in no training task are left out.

    Args:
        tasks: The tasks.
        schema: Encoding of the columns.
        changed: Counts to add to.

    Yields:
        Tasks of one split.

    Raises:
        InputError: If a cell cannot be encoded; the message names file, row and column.
    """
    so_far = dict.fromkeys(SPLITS, 0)
    for part, family, which in tasks.each():
        known = has_all_categories(schema, part)
        changed.add_unseen(part.names[~known & (which != SPLITS.index("train"))])
        for number, split in enumerate(SPLITS):
            chosen = (which == number) & (known | (split == "train"))
            if chosen.any():
                some = subsampled(part.take_tasks(chosen), so_far[split], changed)
                so_far[split] += len(some.names)
                given = some.table.columns, some.table.where, some.table.rows.tolist()
                rows = schema.encode_inputs(*given), schema.encode_targets(*given)
                yield EncodedTasks(split, some.names, some.counts, family[chosen], *rows)


def has_all_categories(schema: Schema, tasks: TaskTable) -> np.ndarray:
    """Whether the schema has every category of the inputs of each task."""
    known = np.ones(len(tasks.table.rows), bool)
    for column in schema.inputs:
        if column.kind == "category":
            allowed = {*column.categories, None}
            known &= np.fromiter(
                (cell in allowed for cell in texts(tasks.table.columns[column.name])), bool, len(known)
            )
    unknown = np.repeat(np.arange(len(tasks.counts)), tasks.counts)[~known]
    return np.bincount(unknown, minlength=len(tasks.counts)) == 0


def subsampled(tasks: TaskTable, first: int, changed: Changed) -> TaskTable:
    """Subsample the rows of very large tasks; the seed is the number of the task, counted from `first`."""
    kept = np.ones(len(tasks.table.rows), bool)
    large = np.flatnonzero(tasks.counts > MOST_ROWS)
    for task in large:
        count = int(tasks.counts[task])
        chosen = np.random.default_rng(first + int(task)).choice(count, MOST_ROWS, replace=False)
        here = kept[tasks.starts[task] :][:count]
        here[:] = False
        here[chosen] = True
    changed.add_large(tasks.names[large])
    return tasks.take_rows(kept)

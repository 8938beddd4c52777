"""The rows of whole tasks in one table, task after task."""

import dataclasses
from typing import Any

import numpy as np

from metagrove.errors import InputError, quoted
from metagrove.tables.cells import refuse, texts
from metagrove.tables.read import LONGEST_NAME, Table
from metagrove.tables.schema import quote


@dataclasses.dataclass(frozen=True)
class TaskTable:
    """Whole tasks: the rows of the first one, of the second one, and so on."""

    table: Table
    names: np.ndarray
    """Names of the tasks."""
    counts: np.ndarray
    """Number of rows of each task."""

    @property
    def starts(self) -> np.ndarray:
        """Index of the first row of each task."""
        return np.cumsum(self.counts) - self.counts

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """Repeat a value of each task for its rows."""
        return np.repeat(values, self.counts)

    def take_rows(self, chosen: np.ndarray) -> "TaskTable":
        """Select rows by mask; a task without rows stays."""
        if chosen.all():
            return self
        number = self.of_rows(np.arange(len(self.counts)))
        counts = np.bincount(number[chosen], minlength=len(self.counts))
        return TaskTable(self.table.take(chosen), self.names, counts)

    def take_tasks(self, chosen: np.ndarray) -> "TaskTable":
        """Select tasks by mask."""
        if chosen.all():
            return self
        return TaskTable(self.table.take(self.of_rows(chosen)), self.names[chosen], self.counts[chosen])


def sorted_by_task(table: Table, task_column: str) -> TaskTable:
    """Sort the rows of a table by the name of their task; the rows of a task stay in their order.

    Args:
        table: Rows of several tasks.
        task_column: Column that names the task of each row.

    Returns:
        The tasks, sorted by name.

    Raises:
        InputError: If there is no such column, or a name is missing or too long.
    """
    refuse_no_task_column(table, task_column)
    names, codes = task_names(table, task_column)
    ordered = sorted(set(names))
    place_of = {name: at for at, name in enumerate(ordered)}
    which = np.array([place_of[name] for name in names], np.int64)[codes]
    order = np.argsort(which, kind="stable")
    return TaskTable(table.take(order), np.array(ordered, object), np.bincount(which, minlength=len(ordered)))


def refuse_no_task_column(table: Table, task_column: str) -> None:
    """Raise an InputError if a table has no task column."""
    if task_column not in table.columns:
        only = quote(list(table.columns))
        raise InputError(f"{table.where} has no column {quoted(task_column)} (--task-column), only {only}")


def task_names(table: Table, task_column: str) -> tuple[np.ndarray, np.ndarray]:
    """The names of the tasks of some rows, and the index of the task of each row.

    Cells that differ in surrounding whitespace give the same name twice.
    """
    distinct, codes = factorized(table.columns[task_column])
    names = texts(distinct)  # objects: an array of text would be as wide as the longest name
    if unnamed := [code for code, name in enumerate(names) if name is None]:
        at = int(np.flatnonzero(np.isin(codes, unnamed))[0])
        refuse(table.where, int(table.rows[at]), task_column, "the task's name is missing: fill it in")
    if long := [code for code, name in enumerate(names) if len(name) > LONGEST_NAME]:
        at = int(np.flatnonzero(codes == long[0])[0])
        refuse(table.where, int(table.rows[at]), task_column, long_name(names[long[0]]))
    return names, codes


def long_name(name: str) -> str:
    """What is said of the name of a task that is too long."""
    return f"the task's name {quoted(name)} is too long: the limit is {LONGEST_NAME:,} characters"


def factorized(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct cells of a column, and the index of each cell among them."""
    if cells.dtype.kind in "iufb":
        return np.unique(cells, return_inverse=True)
    places: dict[Any, int] = {}
    codes = np.fromiter((places.setdefault(cell, len(places)) for cell in cells), np.int64, len(cells))
    return np.array(list(places), object), codes


def values_of_tasks(tasks: TaskTable, column: str) -> np.ndarray:
    """The text in a column that must be the same in all rows of a task, for each task.

    Raises:
        InputError: If a cell differs from the first one of its task or is missing; the message names file and row.
    """
    cells = texts(tasks.table.columns[column])
    first = cells[tasks.starts]
    expected = tasks.of_rows(first)
    wrong = np.flatnonzero([one is None or one != other for one, other in zip(cells, expected, strict=True)])
    if len(wrong):
        at = int(wrong[0])
        task = tasks.of_rows(tasks.names)[at]
        as_others = f"expected {quoted(expected[at])} as in the other rows of the task {quoted(task)}"
        got = "nothing" if cells[at] is None else quoted(cells[at])
        refuse(tasks.table.where, int(tasks.table.rows[at]), column, f"{as_others}, got {got}")
    return first

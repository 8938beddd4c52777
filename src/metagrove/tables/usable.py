"""The rows and tasks of tables that can be used, and notes on those that cannot."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from metagrove.errors import quoted
from metagrove.tables.cells import missing_cells
from metagrove.tables.roles import Roles
from metagrove.tables.schema import quote
from metagrove.tables.settings import TableData
from metagrove.tables.task_table import TaskTable

NAMED = 10
"""Tasks that a note names."""


@dataclasses.dataclass
class Tally:
    """Counts of what is dropped, imputed or left out."""

    rows: int = 0
    dropped: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)
    """Places of the first rows that were dropped."""
    missing: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Missing values of each column."""
    small: int = 0
    small_names: list[str] = dataclasses.field(default_factory=list)
    few: int = 0
    """Tasks with no more rows than a support set."""

    def notes(self, roles: Roles, data: TableData) -> list[str]:
        """Describe the counts, a line for each kind."""
        found = []
        if self.dropped:
            what = "a missing value" if data.missing == "drop" else "no target"
            more = f" and {self.dropped - 3} others" if self.dropped > 3 else ""
            found.append(f"dropped {self.dropped} rows with {what}: {', '.join(self.examples)}{more}")
        how = "the mean of the training tasks" + (" and an indicator column" if data.missing == "impute" else "")
        for column in filter(self.missing.__getitem__, roles.inputs):
            part = f"{self.missing[column]} of {self.rows} values are missing"
            found.append(f"{quoted(column)}: {part} ({100 * self.missing[column] / self.rows:.2g} %), imputed by {how}")
        if self.small:
            more = f" and {self.small - NAMED} others" if self.small > NAMED else ""
            needed = f"a task needs {data.fewest_rows} rows"
            found.append(f"left out {self.small} small tasks ({needed}): {quote(self.small_names)}{more}")
        if self.few:
            found.append(f"{self.few} tasks have no more than {data.shots} rows: all but one are their support set")
        return found


def usable(tasks: TaskTable, roles: Roles, data: TableData, tally: Tally | None = None) -> TaskTable:
    """Drop rows with missing values as the settings say, and then tasks with too few rows.

    With missing="refuse", no row is dropped: encoding raises an error later.

    Args:
        tasks: Whole tasks.
        roles: Roles of the columns.
        data: The settings.
        tally: Counts to add to.

    Returns:
        The tasks that are left.
    """
    tally = Tally() if tally is None else tally
    if data.missing != "refuse":
        tasks = without_missing(tasks, roles, data, tally)
    small = np.flatnonzero(tasks.counts < data.fewest_rows)
    some = small[: NAMED - len(tally.small_names)]
    tally.small_names += [
        f"{name} ({count})" for name, count in zip(tasks.names[some], tasks.counts[some], strict=True)
    ]
    tally.small += len(small)
    tally.few += int(((tasks.counts >= data.fewest_rows) & (tasks.counts <= data.shots)).sum())
    return tasks.take_tasks(tasks.counts >= data.fewest_rows)


def without_missing(tasks: TaskTable, roles: Roles, data: TableData, tally: Tally) -> TaskTable:
    """Drop rows with missing values, and count the missing values of the others."""
    table, must_be = tasks.table, roles.all if data.missing == "drop" else roles.targets
    gone = np.logical_or.reduce([missing_cells(table.columns[column]) for column in must_be])
    tally.dropped += int(gone.sum())
    tally.examples += [f"{table.where} row {row}" for row in table.rows[gone][: 3 - len(tally.examples)]]
    tasks = tasks.take_rows(~gone)
    tally.rows += len(tasks.table.rows)
    if data.missing != "drop":
        for column in roles.inputs:
            tally.missing[column] += int(missing_cells(tasks.table.columns[column]).sum())
    return tasks


class UsableParts:
    """The usable tasks of parts that are read again in each iteration.

    Args:
        parts: Whole tasks, in parts.
        roles: Roles of the columns.
        data: The settings.
    """

    def __init__(self, parts: Iterable[TaskTable], roles: Roles, data: TableData):
        self.parts, self.roles, self.data = parts, roles, data
        self.tally = Tally()
        """Counts of the last iteration."""

    def __iter__(self) -> Iterator[TaskTable]:
        self.tally = Tally()
        for tasks in self.parts:
            yield usable(tasks, self.roles, self.data, self.tally)

"""Infer the schema of tables from training tasks: numbers and dates with mean and std, or categories.

The tables are read twice, a part at a time: first to find the kind of each column, then for its values.
"""

import collections
import dataclasses
from collections.abc import Iterator

import numpy as np

from metagrove.errors import InputError, quoted
from metagrove.tables.cells import as_days, as_number, days, each_once, missing_cells, numbers, texts
from metagrove.tables.moments import Values
from metagrove.tables.read import LONGEST_NAME, Table
from metagrove.tables.schema import Column, Kind, Schema
from metagrove.tables.settings import TableData
from metagrove.tables.splits import SPLITS
from metagrove.tables.tasks import TaskSet

MOST_CATEGORIES = 100
"""Largest number of categories of a column; more distinct texts suggest an identifier."""
MOST_INPUTS = 4_000
"""Most values of an encoded input row; the memory of a training grows with it."""


@dataclasses.dataclass
class Census:
    """Counts of the cells of a column that are numbers, dates and other texts, and whether one is missing."""

    numbers: int = 0
    texts: int = 0
    dates: int = 0
    missing: bool = False
    is_categorical: bool = False

    def add(self, cells: np.ndarray) -> None:
        """Count cells."""
        if self.is_categorical:
            return
        if cells.dtype.kind in "iuf":
            self.numbers += len(cells)
            return
        present = cells[~missing_cells(cells)]
        parsed = sum(number is not None for number in each_once(as_number, present))
        self.numbers, self.texts = self.numbers + parsed, self.texts + len(present) - parsed
        if parsed < len(present):
            self.dates += sum(day is not None for day in each_once(as_days, present))

    @property
    def kind(self) -> Kind:
        """Number or date if most cells are numbers or dates, so that a stray text raises an error later."""
        if self.is_categorical:
            return "category"
        if self.dates > max(self.numbers, self.texts - self.dates):
            return "date"
        return "category" if self.texts > self.numbers else "number"


def infer_schema(data: TableData, tasks: TaskSet, values: Values | None = None) -> Schema:
    """Infer the schema; class labels come from all tasks, everything else from training tasks only.

    Args:
        data: The settings.
        tasks: All tasks.
        values: Where the numbers of training tasks are kept meanwhile; by default in memory.

    Returns:
        The schema.

    Raises:
        InputError: If a column cannot be encoded; the message names it.
    """
    census = count_cells(data, tasks)
    kinds: dict[str, Kind] = {name: one.kind for name, one in census.items()}
    found = find_columns(data, tasks, kinds, Values() if values is None else values)
    targets = tuple(found[name] for name in tasks.roles.targets)
    for target in targets:
        if target.kind == "category":
            refuse_labels(target, len(targets), data.tasks)
        if target.kind == "date":
            raise InputError(
                f"{data.tasks}: the target {quoted(target.name)} is a date: turn it into a number, e.g. of days"
            )
    indicate = data.missing == "impute"
    inputs = tuple(dataclasses.replace(found[n], indicator=indicate and census[n].missing) for n in tasks.roles.inputs)
    schema = Schema(inputs, targets, fill_missing=data.missing == "mean")
    if schema.x_dim > MOST_INPUTS:
        raise InputError(
            f"{data.tasks}: {len(inputs):,} inputs are encoded as {schema.x_dim:,} values, at most {MOST_INPUTS:,} "
            "fit in memory: name the important ones, --inputs NAME ..."
        )
    return schema


def training_rows(tasks: TaskSet) -> Iterator[tuple[Table, Table]]:
    """Iterate over the tables of the parts, and their rows of training tasks."""
    for part, _, split in tasks.each():
        yield part.table, part.take_tasks(split == SPLITS.index("train")).table


def count_cells(data: TableData, tasks: TaskSet) -> dict[str, Census]:
    """Count the cells of each column: of a target in all tasks, of an input in training tasks."""
    found = {name: Census(is_categorical=name in data.categorical) for name in tasks.roles.all}
    for everything, training in training_rows(tasks):
        for name, census in found.items():
            census.add((everything if name in tasks.roles.targets else training).columns[name])
            census.missing |= bool(missing_cells(everything.columns[name]).any())
    return found


def find_columns(data: TableData, tasks: TaskSet, kinds: dict[str, Kind], values: Values) -> dict[str, Column]:
    """Find the categories of each column, or its mean and standard deviation."""
    categories, where = collections.defaultdict[str, set[str]](set), ""
    for everything, training in training_rows(tasks):
        where, rows = where or everything.where, training.rows.tolist()
        for name, kind in kinds.items():
            if kind == "category":
                cells = (everything if name in tasks.roles.targets else training).columns[name]
                add_categories(categories[name], cells, name, everything.where)
            else:
                parse = days if kind == "date" else numbers
                values.add(name, parse(training.columns[name], name, training.where, rows))
    return {
        name: Column(name, kind, categories=tuple(sorted(categories[name])))
        if kind == "category"
        else standardised(name, kind, values, where)
        for name, kind in kinds.items()
    }


def standardised(name: str, kind: Kind, values: Values, where: str) -> Column:
    """A column of numbers or dates with its mean and standard deviation."""
    moments = values.mean_and_std(name)
    if moments is None:
        raise InputError(f"{where}: the column {quoted(name)} has no value in any training task: leave it out")
    mean, std = moments
    return Column(name, kind, mean, std if std > 1e-12 * abs(mean) else 1.0)


def add_categories(categories: set[str], cells: np.ndarray, name: str, where: str) -> None:
    """Add the categories of some cells; raise an InputError if they are too long or too many."""
    categories |= {cell for cell in texts(cells) if cell is not None}
    fix = "leave it out (--inputs names the others), or turn it into numbers"
    if long := sorted(one for one in categories if len(one) > LONGEST_NAME):
        raise InputError(f"{where}: the column {quoted(name)} has texts that are too long, {quoted(long[0])}: {fix}")
    if len(categories) > MOST_CATEGORIES:
        raise InputError(f"{where}: the column {quoted(name)} has more than {MOST_CATEGORIES} different texts: {fix}")


def refuse_labels(target: Column, num_targets: int, where: str) -> None:
    """Raise an InputError for a categorical target next to others, or with fewer than two classes."""
    if num_targets > 1:
        raise InputError(
            f"the target {quoted(target.name)} is categorical, so it must be the only one, got {num_targets} targets"
        )
    if len(target.categories) < 2:
        only = (
            f"every row's {quoted(target.name)} is {quoted(target.categories[0])}"
            if target.categories
            else "it has no label"
        )
        raise InputError(f"{where}: {only}: classification needs two classes or more")

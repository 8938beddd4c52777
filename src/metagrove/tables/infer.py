"""Infer the schema of tables from training tasks: numeric columns with mean and std, or categorical columns."""

from collections.abc import Sequence

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.cells import as_number, missing_cells, numbers, texts
from metagrove.tables.read import Table
from metagrove.tables.schema import Column, Kind, Schema
from metagrove.tables.settings import TableData
from metagrove.tables.tasks import Roles

MOST_CATEGORIES = 100
"""Largest number of categories of a column; more distinct texts suggest an identifier or a date."""


def infer_schema(data: TableData, roles: Roles, training: Sequence[Table], everything: Sequence[Table]) -> Schema:
    """Infer the schema; class labels come from all tasks, everything else from training tasks only."""
    targets = tuple(infer_column(name, data, everything, training) for name in roles.targets)
    for target in targets:
        if target.kind == "category":
            refuse_labels(target, len(targets), data.tasks)
    inputs = tuple(infer_column(name, data, training, training) for name in roles.inputs)
    return Schema(inputs, targets, fill_missing=data.missing == "mean")


def refuse_labels(target: Column, num_targets: int, where: str) -> None:
    """Raise an InputError for a categorical target next to others, or with fewer than two classes."""
    if num_targets > 1:
        raise InputError(
            f"the target {target.name!r} is categorical, so it must be the only one, got {num_targets} targets"
        )
    if len(target.categories) < 2:
        only = f"every row's {target.name!r} is {target.categories[0]!r}" if target.categories else "it has no label"
        raise InputError(f"{where}: {only}: classification needs two classes or more")


def infer_column(name: str, data: TableData, tables: Sequence[Table], training: Sequence[Table]) -> Column:
    """Infer one column: its categories from `tables`, its mean and standard deviation from training tasks."""
    if infer_kind(name, tables, categorical=name in data.categorical) == "category":
        return Column(name, "category", categories=find_categories(name, tables))
    values = np.concatenate([numbers(t.columns[name], name, t.where, t.rows.tolist()) for t in training])
    values = values[~np.isnan(values)]
    if not len(values):
        raise InputError(f"{tables[0].where}: the column {name!r} has no value in any training task: leave it out")
    std = float(values.std())
    return Column(name, "number", float(values.mean()), std if std > 1e-12 * abs(values.mean()) else 1.0)


def infer_kind(name: str, tables: Sequence[Table], *, categorical: bool) -> Kind:
    """Return "number" if most cells are numbers, so that a stray text raises an error later."""
    if categorical:
        return "category"
    num_numbers = num_texts = 0
    for table in tables:
        cells = table.columns[name]
        if cells.dtype.kind in "iuf":
            num_numbers += len(cells)
            continue
        present = cells[~missing_cells(cells)]
        parsed = sum(as_number(cell) is not None for cell in present)
        num_numbers, num_texts = num_numbers + parsed, num_texts + len(present) - parsed
    return "category" if num_texts > num_numbers else "number"


def find_categories(name: str, tables: Sequence[Table]) -> tuple[str, ...]:
    """Return the sorted categories of a column."""
    categories = sorted({cell for table in tables for cell in texts(table.columns[name]) if cell is not None})
    if len(categories) > MOST_CATEGORIES:
        fix = "leave it out (--inputs names the others), or turn it into numbers"
        raise InputError(f"{tables[0].where}: the column {name!r} has {len(categories)} different texts: {fix}")
    return tuple(categories)

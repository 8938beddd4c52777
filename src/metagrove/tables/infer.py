"""Infer the schema of tables from training tasks: numbers and dates with mean and std, or categories."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from metagrove.errors import InputError, quoted
from metagrove.tables.cells import as_days, as_number, days, each_once, missing_cells, numbers, texts
from metagrove.tables.read import LONGEST_NAME, Table
from metagrove.tables.schema import Column, Kind, Schema
from metagrove.tables.settings import TableData
from metagrove.tables.tasks import Roles

MOST_CATEGORIES = 100
"""Largest number of categories of a column; more distinct texts suggest an identifier."""
MOST_INPUTS = 5_000
"""Most values of an encoded input row; the memory of a training grows with it."""


def infer_schema(data: TableData, roles: Roles, training: Sequence[Table], everything: Sequence[Table]) -> Schema:
    """Infer the schema; class labels come from all tasks, everything else from training tasks only."""
    targets = tuple(infer_column(name, data, everything, training) for name in roles.targets)
    for target in targets:
        if target.kind == "category":
            refuse_labels(target, len(targets), data.tasks)
        if target.kind == "date":
            raise InputError(
                f"{data.tasks}: the target {quoted(target.name)} is a date: turn it into a number, e.g. of days"
            )
    inputs = tuple(infer_column(name, data, training, training) for name in roles.inputs)
    if data.missing == "impute":
        inputs = tuple(dataclasses.replace(c, indicator=has_missing(c.name, everything)) for c in inputs)
    schema = Schema(inputs, targets, fill_missing=data.missing == "mean")
    if schema.x_dim > MOST_INPUTS:
        raise InputError(
            f"{data.tasks}: {len(inputs):,} inputs are encoded as {schema.x_dim:,} values, at most {MOST_INPUTS:,} "
            "fit in memory: name the important ones, --inputs NAME ..."
        )
    return schema


def has_missing(name: str, tables: Sequence[Table]) -> bool:
    """Return whether a column has a missing value in any table."""
    return any(missing_cells(table.columns[name]).any() for table in tables)


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


def infer_column(name: str, data: TableData, tables: Sequence[Table], training: Sequence[Table]) -> Column:
    """Infer one column: its categories from `tables`, its mean and standard deviation from training tasks."""
    kind = infer_kind(name, tables, categorical=name in data.categorical)
    if kind == "category":
        return Column(name, "category", categories=find_categories(name, tables))
    parse = days if kind == "date" else numbers
    values = np.concatenate([parse(t.columns[name], name, t.where, t.rows.tolist()) for t in training])
    values = values[~np.isnan(values)]
    if not len(values):
        raise InputError(
            f"{tables[0].where}: the column {quoted(name)} has no value in any training task: leave it out"
        )
    std = float(values.std())
    return Column(name, kind, float(values.mean()), std if std > 1e-12 * abs(values.mean()) else 1.0)


def infer_kind(name: str, tables: Sequence[Table], *, categorical: bool) -> Kind:
    """Return "number" or "date" if most cells are numbers or dates, so that a stray text raises an error later."""
    if categorical:
        return "category"
    num_numbers = num_texts = num_dates = 0
    for table in tables:
        cells = table.columns[name]
        if cells.dtype.kind in "iuf":
            num_numbers += len(cells)
            continue
        present = cells[~missing_cells(cells)]
        parsed = sum(number is not None for number in each_once(as_number, present))
        num_numbers, num_texts = num_numbers + parsed, num_texts + len(present) - parsed
        if parsed < len(present):
            num_dates += sum(day is not None for day in each_once(as_days, present))
    if num_dates > max(num_numbers, num_texts - num_dates):
        return "date"
    return "category" if num_texts > num_numbers else "number"


def find_categories(name: str, tables: Sequence[Table]) -> tuple[str, ...]:
    """Return the sorted categories of a column."""
    categories = sorted({cell for table in tables for cell in texts(table.columns[name]) if cell is not None})
    fix = "leave it out (--inputs names the others), or turn it into numbers"
    if long := [one for one in categories if len(one) > LONGEST_NAME]:
        raise InputError(
            f"{tables[0].where}: the column {quoted(name)} has texts that are too long, {quoted(long[0])}: {fix}"
        )
    if len(categories) > MOST_CATEGORIES:
        raise InputError(f"{tables[0].where}: the column {quoted(name)} has {len(categories)} different texts: {fix}")
    return tuple(categories)

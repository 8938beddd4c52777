"""What a table's columns hold, from training tasks: numbers with mean and spread, or names."""

from collections.abc import Sequence

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.cells import as_number, missing_cells, numbers, texts
from metagrove.tables.read import Table
from metagrove.tables.schema import Column, Kind, Schema
from metagrove.tables.settings import TableData
from metagrove.tables.tasks import Roles

MOST_CATEGORIES = 100
"""More different texts are not a category but a name of the row, or a date."""


def infer_schema(data: TableData, roles: Roles, training: Sequence[Table], everything: Sequence[Table]) -> Schema:
    """The schema: labels of all tasks, everything else of training tasks alone."""
    targets = tuple(infer_column(name, data, everything, training) for name in roles.targets)
    for target in targets:
        if target.kind == "category":
            refuse_labels(target, len(targets), data.tasks)
    inputs = tuple(infer_column(name, data, training, training) for name in roles.inputs)
    return Schema(inputs, targets, fill_missing=data.missing == "mean")


def refuse_labels(target: Column, num_targets: int, where: str) -> None:
    """Refuse classes that cannot be learned."""
    if num_targets > 1:
        raise InputError(f"the target {target.name!r} holds names, so it must be the only one, got {num_targets}")
    if len(target.categories) < 2:
        only = f"every row's {target.name!r} is {target.categories[0]!r}" if target.categories else "it has no label"
        raise InputError(f"{where}: {only}: classification needs two classes or more")


def infer_column(name: str, data: TableData, tables: Sequence[Table], training: Sequence[Table]) -> Column:
    """One column, its names from `tables`, its mean and spread from training tasks."""
    if kind_of(name, tables, said=name in data.categorical) == "category":
        return Column(name, "category", categories=names_in(name, tables))
    values = np.concatenate([numbers(t.columns[name], name, t.where, t.rows.tolist()) for t in training])
    values = values[~np.isnan(values)]
    if not len(values):
        raise InputError(f"{tables[0].where}: the column {name!r} has no value in any training task: leave it out")
    sd = float(values.std())
    return Column(name, "number", float(values.mean()), sd if sd > 1e-12 * abs(values.mean()) else 1.0)


def kind_of(name: str, tables: Sequence[Table], *, said: bool) -> Kind:
    """Numbers where most cells are, so that a stray text among them is refused and not taken for a name."""
    if said:
        return "category"
    num_numbers = num_texts = 0
    for table in tables:
        cells = table.columns[name]
        if cells.dtype.kind in "iuf":
            num_numbers += len(cells)
            continue
        present = cells[~missing_cells(cells)]
        found = sum(as_number(cell) is not None for cell in present)
        num_numbers, num_texts = num_numbers + found, num_texts + len(present) - found
    return "category" if num_texts > num_numbers else "number"


def names_in(name: str, tables: Sequence[Table]) -> tuple[str, ...]:
    """The different names of a column, sorted."""
    found = sorted({cell for table in tables for cell in texts(table.columns[name]) if cell is not None})
    if len(found) > MOST_CATEGORIES:
        mend = "leave it out (--inputs names the others), or turn it into numbers"
        raise InputError(f"{tables[0].where}: the column {name!r} has {len(found)} different texts: {mend}")
    return tuple(found)

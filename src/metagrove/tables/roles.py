"""Roles of the columns of tables: inputs and targets."""

import dataclasses
from collections.abc import Iterable

from metagrove.errors import InputError, quoted
from metagrove.tables.read import Table
from metagrove.tables.schema import quote
from metagrove.tables.settings import TableData


@dataclasses.dataclass(frozen=True)
class Roles:
    """Roles of the columns: inputs and targets."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Inputs and targets."""
        return self.inputs + self.targets


def find_roles(data: TableData, tables: Iterable[Table]) -> Roles:
    """Find inputs and targets; every table must have them and, unless the inputs are named, no other column.

    Args:
        data: The settings.
        tables: At least one table.

    Returns:
        The roles.

    Raises:
        InputError: If a table lacks a column or has one more, or a column has two roles.
    """
    tables = list(tables)
    first = tables[0]
    other_roles = (data.task_column, data.stratify, data.group_column)
    taken = {*data.target, *other_roles}
    inputs = data.inputs or tuple(name for name in first.columns if name not in taken)
    roles = Roles(inputs, data.target)
    known = {*roles.all, *other_roles}
    for table in tables:
        refuse_columns(table, roles, data)
        extra = [name for name in table.columns if name not in known]
        if extra and not data.inputs:
            here = f"{table.where} has a column {quoted(extra[0])} that {first.where} does not have"
            raise InputError(f"{here}: name the inputs, e.g. --inputs {' '.join(inputs[:10])}")
    return roles


def refuse_columns(table: Table, roles: Roles, data: TableData) -> None:
    """Raise an InputError if a table lacks a column, or a column has two roles."""
    asked = {"target": roles.targets, "inputs": roles.inputs, "categorical": data.categorical}
    asked |= {"stratify": (data.stratify,) * bool(data.stratify)}
    asked |= {"group-column": (data.group_column,) * bool(data.group_column)}
    for option, names in asked.items():
        if lacking := [name for name in names if name not in table.columns]:
            only = quote(list(table.columns))
            raise InputError(f"{table.where} has no column {quote(lacking)} (--{option}), only {only}")
    if both := set(roles.inputs) & set(roles.targets):
        raise InputError(f"{quoted(sorted(both)[0])} is an input and a target: leave it out of --inputs")
    if not roles.inputs:
        raise InputError(f"{table.where} has no column to predict from: expected inputs besides {quote(roles.targets)}")

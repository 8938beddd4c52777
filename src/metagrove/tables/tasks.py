"""Tasks from tables: one file each, or one long table cut by its task column."""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.cells import missing_cells, refuse, texts
from metagrove.tables.read import SUFFIXES, Table, read_table
from metagrove.tables.schema import shown
from metagrove.tables.settings import TableData


@dataclasses.dataclass(frozen=True)
class Roles:
    """What a table's columns are for."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Both."""
        return self.inputs + self.targets


@dataclasses.dataclass(frozen=True)
class TaskRows:
    """One task's rows, its kind, and what it must not be parted from."""

    name: str
    table: Table
    kind: str
    group: str

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return len(self.table.rows)


def read_tasks(data: TableData) -> tuple[list[TaskRows], Roles, list[str]]:
    """Every task that is large enough, what its columns are for, and what a person should know of the reading."""
    path = Path(data.tasks)
    notes: list[str] = []
    named = tables_of_folder(path, notes) if path.is_dir() else tables_of_file(path, data.task_column)
    roles = roles_of(data, named)
    named = [(name, without_missing(table, roles, data, notes)) for name, table in named]
    tasks = [TaskRows(name, table, *told(data, name, table)) for name, table in large_enough(named, data, notes)]
    return tasks, roles, notes


def tables_of_folder(folder: Path, notes: list[str]) -> list[tuple[str, Table]]:
    """The table of each file; its name without the ending is the task's."""
    seen = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files = [path for path in seen if path.is_file() and path.suffix.lower() in SUFFIXES]
    if not files:
        raise InputError(f"{folder} holds no table: expected a file for each task, {', '.join(SUFFIXES)}")
    if stray := [path.name for path in seen if path not in files]:
        notes.append(f"{folder}: skipped what is no table: {shown(stray)}")
    names = [path.stem for path in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{folder}: two files are the task {twice[0]!r}: rename one")
    return [(path.stem, read_table(path)) for path in files]


def tables_of_file(path: Path, task_column: str) -> list[tuple[str, Table]]:
    """The rows of each task of one long table, in the order of their names."""
    table = read_table(path)
    if not task_column:
        raise InputError(f"{path} is one table: say which column names the task, --task-column NAME")
    if task_column not in table.columns:
        raise InputError(f"{path} has no column {task_column!r} (--task-column), only {shown(list(table.columns))}")
    cells = texts(table.columns[task_column])
    for at, cell in enumerate(cells):
        if cell is None:
            refuse(path.as_posix(), int(table.rows[at]), task_column, "the task's name is missing: fill it in")
    names, which = np.unique(cells.astype(str), return_inverse=True)
    places = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
    return [(str(name), table.take(place)) for name, place in zip(names, places, strict=True)]


def roles_of(data: TableData, named: Sequence[tuple[str, Table]]) -> Roles:
    """Inputs and targets; every table must have them, and where nobody named the inputs, nothing else."""
    first = named[0][1]
    known = (data.task_column, data.stratify, data.together)
    inputs = data.inputs or tuple(name for name in first.columns if name not in (*data.target, *known))
    roles = Roles(inputs, data.target)
    for table in {table.where: table for _, table in named}.values():
        refuse_columns(table, roles, data)
        extra = [name for name in table.columns if name not in (*roles.all, *known)]
        if extra and not data.inputs:
            here = f"{table.where} has a column {extra[0]!r} that {first.where} has not"
            raise InputError(f"{here}: name the inputs, e.g. --inputs {' '.join(inputs)}")
    return roles


def refuse_columns(table: Table, roles: Roles, data: TableData) -> None:
    """Refuse a table that lacks a column, and one column in two roles."""
    asked = {"target": roles.targets, "inputs": roles.inputs, "categorical": data.categorical}
    asked |= {"stratify": (data.stratify,) if data.stratify else (), "together": (data.together,) * bool(data.together)}
    for option, names in asked.items():
        if lacking := [name for name in names if name not in table.columns]:
            only = shown(list(table.columns))
            raise InputError(f"{table.where} has no column {shown(lacking)} (--{option}), only {only}")
    if both := set(roles.inputs) & set(roles.targets):
        raise InputError(f"{sorted(both)[0]!r} is an input and a target: leave it out of --inputs")
    if not roles.inputs:
        raise InputError(f"{table.where} has no column to predict from: expected inputs beside {shown(roles.targets)}")


def without_missing(table: Table, roles: Roles, data: TableData, notes: list[str]) -> Table:
    """The rows that can be used; by default a missing value is refused, later, by the column's encoding."""
    if data.missing == "refuse":
        return table
    must_be = roles.all if data.missing == "drop" else roles.targets
    gone = np.logical_or.reduce([missing_cells(table.columns[name]) for name in must_be])
    if gone.any():
        rows = shown([str(row) for row in table.rows[gone]], 5).replace("'", "")
        notes.append(f"{table.where}: dropped {gone.sum()} rows with a missing value: {rows}")
    return table.take(np.flatnonzero(~gone))


def large_enough(named: Iterable[tuple[str, Table]], data: TableData, notes: list[str]) -> list[tuple[str, Table]]:
    """The tasks that give a support and a query; the others are named."""
    named = list(named)
    small = [f"{name} ({len(table.rows)})" for name, table in named if len(table.rows) < data.fewest_rows]
    if small:
        needed = f"a task needs {data.fewest_rows} rows"
        notes.append(f"left out {len(small)} small tasks ({needed}): {shown(small)}; --min-shots lets smaller ones in")
    return [(name, table) for name, table in named if len(table.rows) >= data.fewest_rows]


def told(data: TableData, name: str, table: Table) -> tuple[str, str]:
    """A task's kind and group, as their columns say; without a column, one kind, and each task its own group."""
    kind = one_value(table, data.stratify, name) if data.stratify else "task"
    return kind, one_value(table, data.together, name) if data.together else name


def one_value(table: Table, column: str, task: str) -> str:
    """The value of a column that is the same in all of a task's rows."""
    cells = texts(table.columns[column])
    for at, cell in enumerate(cells):
        if cell is None or cell != cells[0]:
            expected = f"expected {cells[0]!r} as in the other rows of the task {task!r}"
            refuse(
                table.where, int(table.rows[at]), column, f"{expected}, got {'nothing' if cell is None else repr(cell)}"
            )
    return str(cells[0])


def checksum(path: Path) -> str:
    """SHA-256 of the table, or of all tables of the folder and their names."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.glob("*") if p.suffix.lower() in SUFFIXES)
    for file in files:
        digest.update(file.name.encode() if path.is_dir() else b"")
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()

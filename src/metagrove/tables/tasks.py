"""Read tasks from tables: one file per task, or one long table with a task column."""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from metagrove.errors import InputError, quoted
from metagrove.tables.cells import missing_cells, refuse, texts
from metagrove.tables.read import LONGEST_NAME, SUFFIXES, Table, read_table
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


@dataclasses.dataclass(frozen=True)
class TaskRows:
    """The rows of one task, its family (`kind`), and the group that stays in one split."""

    name: str
    table: Table
    kind: str
    group: str

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.table.rows)


def read_tasks(data: TableData) -> tuple[list[TaskRows], Roles, list[str]]:
    """Read all tasks that have enough rows.

    Args:
        data: Where the tables are and how to read them.

    Returns:
        The tasks, the roles of their columns, and notes for the user about what was skipped.

    Raises:
        InputError: If a table cannot be used; the message names file, row and column.
    """
    path = Path(data.tasks)
    notes: list[str] = []
    named = tables_of_folder(path, notes) if path.is_dir() else tables_of_file(path, data.task_column)
    roles = find_roles(data, named)
    named = handle_missing(named, roles, data, notes)
    tasks = [
        TaskRows(name, table, *kind_and_group(data, name, table)) for name, table in large_enough(named, data, notes)
    ]
    return tasks, roles, notes


def tables_of_folder(folder: Path, notes: list[str]) -> list[tuple[str, Table]]:
    """Read one table per file; the file name without its suffix is the name of the task."""
    seen = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files = [path for path in seen if is_table_file(path)]
    if not files:
        raise InputError(f"{folder} holds no table: expected a file for each task, {', '.join(SUFFIXES)}")
    if stray := [path.name for path in seen if path not in files]:
        notes.append(f"{folder}: skipped files that are not tables: {quote(stray)}")
    names = [path.stem for path in files]
    if twice := sorted(name for name, count in collections.Counter(names).items() if count > 1):
        raise InputError(f"{folder}: two files name the task {quoted(twice[0])}: rename one")
    return [(path.stem, read_table(path)) for path in files]


def is_table_file(path: Path) -> bool:
    """Whether a path in a folder of tables is one of them: a plain file, no folder, pipe or device."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def tables_of_file(path: Path, task_column: str) -> list[tuple[str, Table]]:
    """Split one long table by its task column; tasks are sorted by name."""
    table = read_table(path)
    if not task_column:
        raise InputError(f"{path} is one table: name its task column, --task-column NAME")
    if task_column not in table.columns:
        raise InputError(
            f"{path} has no column {quoted(task_column)} (--task-column), only {quote(list(table.columns))}"
        )
    cells = texts(table.columns[task_column])
    for at, cell in enumerate(cells):
        if cell is None:
            refuse(path.as_posix(), int(table.rows[at]), task_column, "the task's name is missing: fill it in")
        if len(cell) > LONGEST_NAME:
            refuse(path.as_posix(), int(table.rows[at]), task_column, long_name(cell))
    names = sorted(set(cells))  # objects: an array of text would be as wide as the longest name
    place_of = {name: at for at, name in enumerate(names)}
    which = np.fromiter((place_of[cell] for cell in cells), np.int64, len(cells))
    rows_of = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
    return [(name, table.take(rows)) for name, rows in zip(names, rows_of, strict=True)]


def long_name(name: str) -> str:
    """What is said of the name of a task that is too long."""
    return f"the task's name {quoted(name)} is too long: the limit is {LONGEST_NAME:,} characters"


def find_roles(data: TableData, named: Sequence[tuple[str, Table]]) -> Roles:
    """Find inputs and targets; every table must have them and, unless the inputs are named, no other column."""
    first = named[0][1]
    other_roles = (data.task_column, data.stratify, data.group_column)
    taken = {*data.target, *other_roles}
    inputs = data.inputs or tuple(name for name in first.columns if name not in taken)
    roles = Roles(inputs, data.target)
    known = {*roles.all, *other_roles}
    for table in {table.where: table for _, table in named}.values():
        refuse_columns(table, roles, data)
        extra = [name for name in table.columns if name not in known]
        if extra and not data.inputs:
            here = f"{table.where} has a column {quoted(extra[0])} that {first.where} does not have"
            raise InputError(f"{here}: name the inputs, e.g. --inputs {' '.join(inputs[:10])}")
    return roles


def refuse_columns(table: Table, roles: Roles, data: TableData) -> None:
    """Raise an InputError if a table lacks a column, or a column has two roles."""
    columns_of = {"target": roles.targets, "inputs": roles.inputs, "categorical": data.categorical}
    columns_of |= {"stratify": (data.stratify,) * bool(data.stratify)}
    columns_of |= {"group-column": (data.group_column,) * bool(data.group_column)}
    for option, names in columns_of.items():
        if lacking := [name for name in names if name not in table.columns]:
            only = quote(list(table.columns))
            raise InputError(f"{table.where} has no column {quote(lacking)} (--{option}), only {only}")
    if both := set(roles.inputs) & set(roles.targets):
        raise InputError(f"{quoted(sorted(both)[0])} is an input and a target: leave it out of --inputs")
    if not roles.inputs:
        raise InputError(f"{table.where} has no column to predict from: expected inputs besides {quote(roles.targets)}")


def handle_missing(
    named: Sequence[tuple[str, Table]], roles: Roles, data: TableData, notes: list[str]
) -> list[tuple[str, Table]]:
    """Drop rows with missing values as the settings say, and note how many values are missing in each column.

    With "refuse", encoding raises an error later.
    """
    if data.missing == "refuse":
        return list(named)
    must_be = roles.all if data.missing == "drop" else roles.targets
    complete, dropped, examples = [], 0, []
    for name, table in named:
        gone = np.logical_or.reduce([missing_cells(table.columns[column]) for column in must_be])
        dropped += int(gone.sum())
        examples += [f"{table.where} row {row}" for row in table.rows[gone][: 3 - len(examples)]]
        complete.append((name, table.take(np.flatnonzero(~gone))))
    if dropped:
        what = "a missing value" if data.missing == "drop" else "no target"
        more = f" and {dropped - 3} others" if dropped > 3 else ""
        notes.append(f"dropped {dropped} rows with {what}: {', '.join(examples)}{more}")
    if data.missing != "drop":
        note_missing(complete, roles, data, notes)
    return complete


def note_missing(named: list[tuple[str, Table]], roles: Roles, data: TableData, notes: list[str]) -> None:
    """Note how many values of each input are missing and imputed."""
    rows = sum(len(table.rows) for _, table in named)
    how = "the mean of the training tasks" + (" and an indicator column" if data.missing == "impute" else "")
    for column in roles.inputs:
        count = sum(int(missing_cells(table.columns[column]).sum()) for _, table in named)
        if count:
            notes.append(
                f"{quoted(column)}: {count} of {rows} values are missing ({100 * count / rows:.2g} %), imputed by {how}"
            )


def large_enough(named: Iterable[tuple[str, Table]], data: TableData, notes: list[str]) -> list[tuple[str, Table]]:
    """Keep the tasks with enough rows for a support and a query set; note the names of the others."""
    named = list(named)
    small = [f"{name} ({len(table.rows)})" for name, table in named if len(table.rows) < data.fewest_rows]
    if small:
        needed = f"a task needs {data.fewest_rows} rows"
        notes.append(f"left out {len(small)} small tasks ({needed}): {quote(small)}")
    few = sum(data.fewest_rows <= len(table.rows) <= data.shots for _, table in named)
    if few:
        notes.append(f"{few} tasks have no more than {data.shots} rows: all but one are their support set")
    return [(name, table) for name, table in named if len(table.rows) >= data.fewest_rows]


def kind_and_group(data: TableData, name: str, table: Table) -> tuple[str, str]:
    """Read the family and the group of a task; without their columns, one family, and each task its own group."""
    kind = one_value(table, data.stratify, name) if data.stratify else "task"
    return kind, one_value(table, data.group_column, name) if data.group_column else name


def one_value(table: Table, column: str, task: str) -> str:
    """Return the value of a column that must be the same in all rows of a task."""
    cells = texts(table.columns[column])
    for at, cell in enumerate(cells):
        if cell is None or cell != cells[0]:
            expected = f"expected {quoted(cells[0])} as in the other rows of the task {quoted(task)}"
            refuse(
                table.where,
                int(table.rows[at]),
                column,
                f"{expected}, got {'nothing' if cell is None else quoted(cell)}",
            )
    return str(cells[0])


def checksum(path: Path) -> str:
    """Compute the SHA-256 checksum of a table, or of the names and contents of all tables of a folder."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.glob("*") if is_table_file(p))
    for file in files:
        digest.update(file.name.encode() if path.is_dir() else b"")
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()

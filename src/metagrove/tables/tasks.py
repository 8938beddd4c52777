"""Read tasks from tables: one file per task, or one long table with a task column."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from metagrove.errors import InputError, quoted
from metagrove.tables.read import SUFFIXES, read_table
from metagrove.tables.roles import Roles, find_roles
from metagrove.tables.schema import quote
from metagrove.tables.settings import TableData
from metagrove.tables.splits import split_tasks
from metagrove.tables.task_table import TaskTable, sorted_by_task, values_of_tasks
from metagrove.tables.usable import Tally, usable


@dataclasses.dataclass(frozen=True)
class TaskSet:
    """Tasks with enough rows, and what is known of all of them.

    In memory, `parts` is a list; of a table on disk, each iteration reads its parts again.
    """

    parts: Iterable[TaskTable]
    roles: Roles
    notes: tuple[str, ...]
    """What was skipped, for the user."""
    families: tuple[str, ...]
    family: np.ndarray
    """Index of the family of each task."""
    split: np.ndarray
    """Index of the split of each task among `splits.SPLITS`."""

    def each(self) -> Iterator[tuple[TaskTable, np.ndarray, np.ndarray]]:
        """Iterate over the parts, with the family and the split of their tasks."""
        start = 0
        for tasks in self.parts:
            here = slice(start, start + len(tasks.names))
            start = here.stop
            yield tasks, self.family[here], self.split[here]


def read_tasks(data: TableData) -> TaskSet:
    """Read all tasks that have enough rows into memory, and split them.

    Args:
        data: Where the tables are and how to read them.

    Returns:
        The tasks, the roles of their columns, and notes for the user about what was skipped.

    Raises:
        InputError: If a table cannot be used; the message names file, row and column.
    """
    path = Path(data.tasks)
    notes: list[str] = []
    tables = tables_of_folder(path, notes) if path.is_dir() else [table_of_file(path, data.task_column)]
    roles, tally = find_roles(data, [tasks.table for tasks in tables]), Tally()
    parts = [usable(tasks, roles, data, tally) for tasks in tables]
    return survey(parts, roles, data, lambda: [*notes, *tally.notes(roles, data)])


def tables_of_folder(folder: Path, notes: list[str]) -> list[TaskTable]:
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
    tables = map(read_table, files)
    return [
        TaskTable(table, np.array([path.stem], object), np.array([len(table.rows)]))
        for path, table in zip(files, tables, strict=True)
    ]


def is_table_file(path: Path) -> bool:
    """Whether a path in a folder of tables is one of them: a plain file, no folder, pipe or device."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def table_of_file(path: Path, task_column: str) -> TaskTable:
    """Read one long table and sort it by its task column."""
    table = read_table(path)
    refuse_no_task_setting(path, task_column)
    return sorted_by_task(table, task_column)


def refuse_no_task_setting(path: Path, task_column: str) -> None:
    """Raise an InputError if the settings of a long table do not name its task column."""
    if not task_column:
        raise InputError(f"{path} is one table: name its task column, --task-column NAME")


def survey(parts: Iterable[TaskTable], roles: Roles, data: TableData, notes: Callable[[], list[str]]) -> TaskSet:
    """Read the family and the group of each task, and split the tasks.

    Args:
        parts: Tasks with enough rows; iterated over once here, and later again.
        roles: Roles of the columns.
        data: The settings.
        notes: Called after the iteration; notes for the user.

    Returns:
        The tasks with their families and splits.

    Raises:
        InputError: If the family or the group differs within a task, or there are too few tasks.
    """
    in_folder = Path(data.tasks).is_dir()
    families, groups = Codes(), Codes()
    num_tasks = 0
    for tasks in parts:
        num_tasks += len(tasks.names)
        one = np.full(len(tasks.names), "task", object)  # the family of all, unless a column tells
        families.add(values_of_tasks(tasks, data.stratify) if data.stratify else one)
        if data.group_column or in_folder:  # otherwise each task is its own group, and tasks are sorted by name
            groups.add(values_of_tasks(tasks, data.group_column) if data.group_column else tasks.names)
    family = families.ranks()
    group = groups.ranks() if data.group_column or in_folder else np.arange(num_tasks)
    return TaskSet(
        parts, roles, tuple(notes()), tuple(sorted(families.known)), family, split_tasks(family, group, data)
    )


class Codes:
    """Texts as indices among all different ones."""

    def __init__(self):
        self.known: dict[str, int] = {}
        self.codes: list[np.ndarray] = []

    def add(self, texts: np.ndarray) -> None:
        """Append texts."""
        known = self.known
        self.codes.append(np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int32, len(texts)))

    def ranks(self) -> np.ndarray:
        """The index of each text among the sorted different ones."""
        place_of = {text: at for at, text in enumerate(sorted(self.known))}
        return np.array([place_of[text] for text in self.known], np.int32)[np.concatenate(self.codes)]


def checksum(path: Path) -> str:
    """Compute the SHA-256 checksum of a table, or of the names and contents of all tables of a folder."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.glob("*") if is_table_file(p))
    for file in files:
        digest.update(file.name.encode() if path.is_dir() else b"")
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()

"""The encoded tasks of a table in files on disk, from which training draws: `store.json` and three files per split.

    SPLIT.rows     inputs and targets of each row, float32, task after task
    SPLIT.tasks    of each task its first row, number of rows and family, and where its name is
    SPLIT.names    names of the tasks, UTF-8

The folder of a table has a store for each combination of settings that decide what is encoded. A store is complete or
not there; what killed processes left behind is removed by the next that writes.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from metagrove import files
from metagrove.files import Json
from metagrove.notes import note
from metagrove.tables.encode import Changed, EncodedTasks, encoded
from metagrove.tables.infer import infer_schema
from metagrove.tables.moments import Values
from metagrove.tables.read import rows_of
from metagrove.tables.roles import find_roles
from metagrove.tables.schema import Schema
from metagrove.tables.settings import TableData
from metagrove.tables.sort import sort_by_task
from metagrove.tables.splits import SPLITS
from metagrove.tables.tasks import TaskSet, refuse_no_task_setting, survey
from metagrove.tables.usable import UsableParts
from metagrove.task import Split

TASK = np.dtype([("start", "<i8"), ("name", "<i8"), ("count", "<i4"), ("family", "<i4"), ("name_size", "<i4")])
"""An entry of SPLIT.tasks."""
ELSEWHERE = ("tasks", "queries", "keep_rows", "store")
"""Settings that do not change what is encoded."""
VERSION = 1
"""Version of the files, increased when older ones cannot be read."""


@dataclasses.dataclass(frozen=True)
class StoredSplit:
    """Sizes of a split."""

    num_tasks: int = 0
    num_rows: int = 0
    most: int = 0
    """Largest number of rows of a task."""
    name_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class StoreRecord:
    """store.json."""

    version: int
    sha256: str
    """Checksum of the table."""
    settings: Json
    schema: Json
    families: tuple[str, ...]
    notes: tuple[str, ...]
    splits: dict[str, StoredSplit]


@dataclasses.dataclass(frozen=True)
class Store:
    """A folder of encoded tasks."""

    path: Path
    record: StoreRecord

    @property
    def schema(self) -> Schema:
        """Encoding of the columns."""
        return Schema.from_json(self.record.schema)

    def file(self, split: Split, kind: str) -> Path:
        """A file of a split."""
        return self.path / f"{split}.{kind}"

    def is_complete(self) -> bool:
        """Whether the files have the sizes that store.json tells."""
        width = 4 * (self.schema.x_dim + self.schema.y_dim)
        for split, sizes in self.record.splits.items():
            expected = {"rows": sizes.num_rows * width, "tasks": sizes.num_tasks * TASK.itemsize}
            for kind, size in {**expected, "names": sizes.name_bytes}.items():
                path = self.path / f"{split}.{kind}"
                if not path.is_file() or path.stat().st_size != size:
                    return False
        return True


def find_or_write_store(data: TableData, sha256: str, schema: Schema | None = None) -> Store:
    """Open the store of a table, or sort the table by task, encode it and write the store.

    Args:
        data: One long table, and how to read it.
        sha256: Its checksum.
        schema: Encoding of the columns, of a run that was trained before; by default it is inferred.

    Returns:
        The store.

    Raises:
        InputError: If the table cannot be used; the message names file, row and column.
        RunError: If the files cannot be written.
    """
    folder = Path(data.store) if data.store else Path(f"{data.tasks}.store")
    found = find_store(folder, data, sha256, schema)
    if found is not None:
        return found
    note(f"sorting {data.tasks} by task and encoding it once, in {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.remove_abandoned(folder)
        if not data.store:
            remove_stale(folder, sha256)
        with new_folder(folder) as temporary:
            record = write_store(data, sha256, schema, temporary)
            same = find_store(folder, data, sha256, schema)  # another process may have written it meanwhile
            return same or Store(move_into_place(temporary, folder, record), record)
    except OSError as error:
        raise files.save_error(folder, error) from error


def move_into_place(temporary: Path, folder: Path, record: StoreRecord) -> Path:
    """Give a finished store its name, in place of a damaged one."""
    path = folder / files.checksum_of(files.as_json(record))[:12]
    shutil.rmtree(path, ignore_errors=True)
    os.replace(temporary, path)
    return path


def find_store(folder: Path, data: TableData, sha256: str, schema: Schema | None) -> Store | None:
    """The store of a table with these settings; None if there is none, or it is damaged."""
    for path in sorted(folder.glob("[!.]*/store.json")):
        store = Store(path.parent, files.read_record(StoreRecord, path))
        here = store.record
        same = here.version == VERSION and here.sha256 == sha256 and here.settings == settings_of(data)
        if same and schema in (None, store.schema) and store.is_complete():
            return store
    return None


def settings_of(data: TableData) -> Json:
    """The settings that decide what is encoded, as JSON has them."""
    names = [field.name for field in dataclasses.fields(TableData) if field.name not in ELSEWHERE]
    return {name: files.as_json(getattr(data, name)) for name in names}


def remove_stale(folder: Path, sha256: str) -> None:
    """Remove the stores of former contents of the table."""
    for path in folder.glob("[!.]*/store.json"):
        if files.read_json(path).get("sha256") != sha256:
            shutil.rmtree(path.parent, ignore_errors=True)


@contextlib.contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder that the caller moves into place, and that is removed otherwise; locked while in use."""
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=".", suffix=files.TEMPORARY))
    descriptor = os.open(temporary, os.O_RDONLY) if hasattr(os, "O_DIRECTORY") else None
    lock = None if descriptor is None else files.hold(descriptor)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for one in (descriptor, lock):
            if one is not None:
                os.close(one)


def write_store(data: TableData, sha256: str, schema: Schema | None, folder: Path) -> StoreRecord:
    """Sort a table, infer its schema unless it is given, and write the encoded tasks."""
    tasks, changed = sorted_tasks(data, folder / "sorted"), Changed()
    (folder / "values").mkdir()
    schema = infer_schema(data, tasks, Values(folder / "values")) if schema is None else schema
    with contextlib.ExitStack() as stack:
        writers = {split: SplitWriter(folder, split, stack) for split in SPLITS}
        for some in encoded(tasks, schema, changed):
            writers[some.split].write(some)
    for part in ("sorted", "values"):
        shutil.rmtree(folder / part)
    record = StoreRecord(
        VERSION,
        sha256,
        settings_of(data),
        schema.to_json(),
        tasks.families,
        (*tasks.notes, *changed.notes()),
        {split: writer.sizes for split, writer in writers.items()},
    )
    files.write_json(folder / "store.json", {"format": files.FORMAT, **files.as_json(record)})
    return record


def sorted_tasks(data: TableData, folder: Path) -> TaskSet:
    """Sort a table by task into files, and split its tasks."""
    path = Path(data.tasks)
    first = next(iter(rows_of(path, 1)))
    refuse_no_task_setting(path, data.task_column)
    roles = find_roles(data, [first])
    wanted = dict.fromkeys((data.task_column, *roles.all, data.stratify, data.group_column))
    parts = sort_by_task(path, [name for name in wanted if name], folder)
    usable = UsableParts(parts, roles, data)
    return survey(usable, roles, data, lambda: usable.tally.notes(roles, data))


class SplitWriter:
    """Appends encoded tasks to the files of a split.

    Args:
        folder: The folder of the store.
        split: "train", "validation" or "test".
        stack: Closes the files.
    """

    def __init__(self, folder: Path, split: Split, stack: contextlib.ExitStack):
        self.sizes = StoredSplit()
        self.files: dict[str, Any] = {
            kind: stack.enter_context((folder / f"{split}.{kind}").open("wb")) for kind in ("rows", "tasks", "names")
        }

    def write(self, some: EncodedTasks) -> None:
        """Append tasks."""
        had, names = self.sizes, [name.encode() for name in some.names]
        sizes, counts = np.array([len(name) for name in names]), some.counts
        entries = np.zeros(len(names), TASK)
        entries["start"] = had.num_rows + np.cumsum(counts) - counts
        entries["name"] = had.name_bytes + np.cumsum(sizes) - sizes
        entries["count"], entries["family"], entries["name_size"] = counts, some.family, sizes
        self.files["rows"].write(np.concatenate([some.x, some.y], axis=1).astype("<f4").tobytes())
        self.files["tasks"].write(entries.tobytes())
        self.files["names"].write(b"".join(names))
        self.sizes = StoredSplit(
            had.num_tasks + len(names),
            had.num_rows + int(counts.sum()),
            max(had.most, int(counts.max())),
            had.name_bytes + int(sizes.sum()),
        )

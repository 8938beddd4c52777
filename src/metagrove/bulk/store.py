"""The rows of a table, encoded and sorted into parts by the name of their task: Arrow files on disk.

Tasks are assigned to parts by ranges of their names, so that the parts one after another are sorted. Ranges come from
a sample of the names; memory does not grow with the number of rows or tasks. Every cell is checked on the way: an error
names file, row and column before any task is adapted.
"""

import dataclasses
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.errors import InputError, quoted
from metagrove.tables.cells import missing_cells, refuse, texts
from metagrove.tables.read import Table, rows_of
from metagrove.tables.schema import Schema, quote
from metagrove.tables.tasks import LONGEST_NAME, long_name

PIECE = 65_536
"""Rows that are read at a time."""
SAMPLE = 20_000
"""Most names of tasks in the sample."""
TASKS_PER_PART, ROWS_PER_PART = 16_384, 262_144


@dataclasses.dataclass(frozen=True)
class Rows:
    """Encoded rows."""

    names: np.ndarray
    """Names of tasks."""
    task: np.ndarray
    """Index of the task of each row among `names`."""
    row: np.ndarray
    """Number of each row in the file."""
    support: np.ndarray
    """Whether the row has its targets."""
    x: np.ndarray
    y: np.ndarray

    def take(self, chosen: np.ndarray) -> "Rows":
        """Select rows by index or by mask."""
        parts = (self.task, self.row, self.support, self.x, self.y)
        return Rows(self.names, *(part[chosen] for part in parts))


def write_store(path: Path, schema: Schema, task_column: str, folder: Path) -> tuple[int, int]:
    """Encode the rows of a table and sort them into parts.

    Args:
        path: CSV or Parquet file with a task column, inputs and targets; rows without targets are to be predicted.
        schema: Encoding of the columns.
        task_column: Column that names the task of each row.
        folder: Folder of the parts.

    Returns:
        Number of parts, and number of rows to predict.

    Raises:
        InputError: If a cell cannot be used; the message names file, row and column.
    """
    splitters = find_splitters(path, task_column)
    folder.mkdir(parents=True, exist_ok=True)
    num_queries = 0
    writers = [PartWriter(part_path(folder, number), schema) for number in range(len(splitters) + 1)]
    try:
        for table in rows_of(path, PIECE):
            rows = encode_rows(table, schema, task_column)
            parts = np.searchsorted(splitters, rows.names, side="right")[rows.task]
            num_queries += int((~rows.support).sum())
            for number in np.unique(parts):
                writers[number].write(rows.take(parts == number))
    finally:
        for writer in writers:
            writer.close()
    return len(writers), num_queries


def part_path(folder: Path, number: int) -> Path:
    """The file of a part of the store."""
    return folder / f"part-{number:05d}.arrow"


def encode_rows(table: Table, schema: Schema, task_column: str) -> Rows:
    """Check and encode some rows of a table."""
    where = str(table.where)
    missing = np.stack(
        [missing_cells(table.columns[target.name]) for target in schema.targets if target.name in table.columns]
        or [np.ones(len(table.rows), bool)]
    )
    some = missing.any(0) & ~missing.all(0)
    if some.any():
        at = int(np.flatnonzero(some)[0])
        name = schema.targets[int(missing[:, at].argmax())].name
        refuse(
            where, int(table.rows[at]), name, "the value is missing, but the row has other targets: give all or none"
        )
    support = np.asarray(~missing.all(0))
    y = np.zeros((len(support), schema.y_dim), np.float32)
    if support.any():
        given = table.take(support)
        y[support] = schema.encode_targets(given.columns, where, given.rows.tolist())
    x = schema.encode_inputs(table.columns, where, table.rows.tolist())
    return Rows(*task_names(table, task_column), table.rows, support, x, y)


def refuse_no_task_column(table: Table, task_column: str) -> None:
    """Raise an InputError if a table has no task column."""
    if task_column not in table.columns:
        only = quote(list(table.columns))
        raise InputError(f"{table.where} has no column {quoted(task_column)} (--task-column), only {only}")


def task_names(table: Table, task_column: str) -> tuple[np.ndarray, np.ndarray]:
    """The names of the tasks of some rows, and the index of the task of each row."""
    distinct, codes = factorized(table.columns[task_column])
    names = texts(distinct)
    if unnamed := [code for code, name in enumerate(names) if name is None]:
        at = int(np.flatnonzero(np.isin(codes, unnamed))[0])
        refuse(str(table.where), int(table.rows[at]), task_column, "the task's name is missing: fill it in")
    if long := [code for code, name in enumerate(names) if len(name) > LONGEST_NAME]:
        at = int(np.flatnonzero(codes == long[0])[0])
        refuse(str(table.where), int(table.rows[at]), task_column, long_name(names[long[0]]))
    return names.astype(str), codes


def factorized(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct cells of a column, and the index of each cell among them."""
    if cells.dtype.kind in "iufb":
        return np.unique(cells, return_inverse=True)
    places: dict[Any, int] = {}
    codes = np.fromiter((places.setdefault(cell, len(places)) for cell in cells), np.int64, len(cells))
    return np.array(list(places), object), codes


def find_splitters(path: Path, task_column: str) -> np.ndarray:
    """The names of tasks at which parts begin, from a sample: the names whose hash is divisible by a number."""
    divisor, num_rows, sample = 1, 0, set[str]()
    for table in rows_of(path, PIECE, columns=(task_column,)):
        num_rows += len(table.rows)
        refuse_no_task_column(table, task_column)
        names, _ = task_names(table, task_column)
        sample |= {name for name in names.tolist() if zlib.crc32(name.encode()) % divisor == 0}
        while len(sample) > SAMPLE:
            divisor *= 2
            sample = {name for name in sample if zlib.crc32(name.encode()) % divisor == 0}
    num_parts = max(math.ceil(len(sample) * divisor / TASKS_PER_PART), math.ceil(num_rows / ROWS_PER_PART))
    ordered = np.array(sorted(sample))
    places = np.arange(1, num_parts) * len(ordered) // num_parts
    return np.unique(ordered[places])


class PartWriter:
    """Appends rows to an Arrow stream."""

    def __init__(self, path: Path, schema: Schema):
        import pyarrow as pa

        widths = {"x": schema.x_dim, "y": schema.y_dim}
        plain = [("task", pa.string()), ("row", pa.int64()), ("support", pa.bool_())]
        lists = [(name, pa.list_(pa.float32(), width)) for name, width in widths.items()]
        self.schema = pa.schema([*plain, *lists])
        self.writer = pa.ipc.new_stream(path, self.schema)

    def write(self, rows: Rows) -> None:
        """Append rows."""
        import pyarrow as pa

        lists = [pa.FixedSizeListArray.from_arrays(pa.array(of.ravel()), of.shape[1]) for of in (rows.x, rows.y)]
        task = pa.array(rows.names.astype(object)).take(pa.array(rows.task))
        columns = [task, pa.array(rows.row), pa.array(rows.support), *lists]
        self.writer.write_batch(pa.record_batch(columns, schema=self.schema))

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()


def read_part(path: Path) -> Rows:
    """Read a part, sorted by the name of the task and the number of the row."""
    import pyarrow as pa

    with pa.ipc.open_stream(path) as stream:
        table = stream.read_all().combine_chunks()
    tasks = table.column("task").combine_chunks().dictionary_encode()
    names = np.array(tasks.dictionary.to_pylist(), str)
    order = np.argsort(names)
    task = np.argsort(order)[tasks.indices.to_numpy()]
    row, support = (table.column(name).to_numpy() for name in ("row", "support"))
    x, y = (table.column(name).combine_chunks().flatten().to_numpy().reshape(len(row), -1) for name in ("x", "y"))
    return Rows(names[order], task, row, support, x, y).take(np.lexsort((row, task)))

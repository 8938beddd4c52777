"""Sort the rows of a table of any size by task: parts of whole tasks in Arrow files on disk.

Tasks are assigned to parts by ranges of their names, so that the parts one after another are sorted. Ranges come from
a sample of the names; memory does not grow with the number of rows or tasks.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.tables.read import Table, cells_of, explain_parquet_errors, parquet_batches, rows_of
from metagrove.tables.task_table import TaskTable, refuse_no_task_column, sorted_by_task, task_names

PIECE = 65_536
"""Rows that are read at a time."""
SAMPLE = 20_000
"""Most names of tasks in the sample."""
TASKS_PER_PART, ROWS_PER_PART, CELLS_PER_PART = 16_384, 262_144, 2**21
MOST_PARTS = 500
"""Files that are written at the same time."""


def find_splitters(path: Path, task_column: str, num_columns: int = 1) -> np.ndarray:
    """Find the names of tasks at which parts begin, from a sample: the names whose hash is divisible by a number.

    Args:
        path: CSV or Parquet file.
        task_column: Column that names the task of each row.
        num_columns: Number of columns of cells that a part holds.

    Returns:
        The names, sorted; there is one part more.

    Raises:
        InputError: If there is no such column, or a name is missing or too long.
    """
    divisor, num_rows, sample = 1, 0, set[str]()
    for table in rows_of(path, PIECE, columns=(task_column,)):
        num_rows += len(table.rows)
        refuse_no_task_column(table, task_column)
        names, _ = task_names(table, task_column)
        sample |= {name for name in names.tolist() if zlib.crc32(name.encode()) % divisor == 0}
        while len(sample) > SAMPLE:
            divisor *= 2
            sample = {name for name in sample if zlib.crc32(name.encode()) % divisor == 0}
    rows_per_part = min(ROWS_PER_PART, math.ceil(CELLS_PER_PART / num_columns))
    num_parts = max(math.ceil(len(sample) * divisor / TASKS_PER_PART), math.ceil(num_rows / rows_per_part))
    ordered, num_parts = np.array(sorted(sample), object), min(num_parts, MOST_PARTS)
    return np.unique(ordered[np.arange(1, num_parts) * len(ordered) // num_parts])


def part_path(folder: Path, number: int) -> Path:
    """The file of a part."""
    return folder / f"part-{number:05d}.arrow"


class PartWriters:
    """Appends Arrow record batches to the files of parts; a context manager.

    Args:
        folder: Folder of the parts; it is created.
        splitters: Names of tasks at which parts begin.
        schema: Arrow schema of the batches.
    """

    def __init__(self, folder: Path, splitters: np.ndarray, schema: Any):
        import pyarrow as pa

        folder.mkdir(parents=True, exist_ok=True)
        self.splitters = splitters
        self.paths = [part_path(folder, number) for number in range(len(splitters) + 1)]
        self.writers = [pa.ipc.new_stream(path, schema) for path in self.paths]

    def write(self, batch: Any, names: np.ndarray, task: np.ndarray) -> None:
        """Append the rows of a batch to the parts of their tasks.

        Args:
            batch: The rows.
            names: Names of tasks.
            task: Index of the task of each row among the names.
        """
        part = np.searchsorted(self.splitters, names, side="right")[task]
        batch = batch.take(np.argsort(part, kind="stable"))
        stops = np.cumsum(np.bincount(part, minlength=len(self.paths)))
        for writer, start, stop in zip(self.writers, [0, *stops], stops, strict=False):
            if stop > start:
                writer.write_batch(batch.slice(start, stop - start))

    def __enter__(self) -> "PartWriters":
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self.writers:
            writer.close()


class SortedParts:
    """A long table sorted by task, in files; each iteration reads them again, one at a time.

    Args:
        where: The table, for messages.
        task_column: Column that names the task of each row.
        paths: Files of the parts, whose first column is the number of the row.
    """

    def __init__(self, where: Path, task_column: str, paths: Sequence[Path]):
        self.where, self.task_column, self.paths = str(where), task_column, paths

    def __iter__(self) -> Iterator[TaskTable]:
        import pyarrow as pa

        for path in self.paths:
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                table = stream.read_all().combine_chunks()
            if table.num_rows:
                row, *cells = (column.combine_chunks() for column in table.columns)
                columns = dict(zip(table.column_names[1:], map(cells_of, cells), strict=True))
                yield sorted_by_task(Table(self.where, columns, row.to_numpy()), self.task_column)


def sort_by_task(path: Path, columns: Sequence[str], folder: Path) -> SortedParts:
    """Sort the rows of a table into parts of whole tasks.

    Args:
        path: CSV or Parquet file.
        columns: Columns to keep; the first names the task of each row.
        folder: Folder of the parts.

    Returns:
        The parts.

    Raises:
        InputError: If the file cannot be read, or a name is missing or too long; the message names file and row.
    """
    task_column = columns[0]
    splitters = find_splitters(path, task_column, len(columns))
    batches = arrow_batches(path, columns)
    table, first = next(batches)
    with PartWriters(folder, splitters, first.schema) as parts:
        parts.write(first, *task_names(table, task_column))
        for table, batch in batches:
            parts.write(batch, *task_names(table, task_column))
    return SortedParts(path, task_column, parts.paths)


def arrow_batches(path: Path, columns: Sequence[str]) -> Iterator[tuple[Table, Any]]:
    """Iterate over chunks of a file: a table with the first column, and a record batch of rows' numbers and cells."""
    import pyarrow as pa

    def batch_of(rows: np.ndarray, cells: list[Any]) -> Any:
        return pa.record_batch([pa.array(rows), *cells], names=["row", *columns])

    if path.suffix.lower() == ".csv":
        for table in rows_of(path, PIECE):
            yield table, batch_of(table.rows, [pa.array(table.columns[name], pa.string()) for name in columns])
        return
    with explain_parquet_errors(path):
        for rows, batch in parquet_batches(path, PIECE, columns):
            cells = [batch.column(name) for name in columns]
            table = Table(str(path), {columns[0]: cells_of(cells[0])}, rows)
            yield (
                table,
                batch_of(rows, [one.dictionary_decode() if hasattr(one, "dictionary") else one for one in cells]),
            )

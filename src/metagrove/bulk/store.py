"""The rows of a table, encoded and sorted into parts by the name of their task: Arrow files on disk.

Memory does not grow with the number of rows or tasks. Every cell is checked on the way: an error names file, row and
column before any task is adapted.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.tables import sort
from metagrove.tables.cells import missing_cells, refuse
from metagrove.tables.read import Table, rows_of
from metagrove.tables.schema import Schema
from metagrove.tables.sort import PartWriters, find_splitters
from metagrove.tables.task_table import task_names


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
    splitters, num_queries = find_splitters(path, task_column), 0
    with PartWriters(folder, splitters, arrow_schema(schema)) as parts:
        for table in rows_of(path, sort.PIECE):
            rows = encode_rows(table, schema, task_column)
            num_queries += int((~rows.support).sum())
            parts.write(arrow_batch(rows, arrow_schema(schema)), rows.names, rows.task)
    return len(splitters) + 1, num_queries


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


def arrow_schema(schema: Schema) -> Any:
    """The columns of a part."""
    import pyarrow as pa

    widths = {"x": schema.x_dim, "y": schema.y_dim}
    plain = [("task", pa.string()), ("row", pa.int64()), ("support", pa.bool_())]
    return pa.schema([*plain, *((name, pa.list_(pa.float32(), width)) for name, width in widths.items())])


def arrow_batch(rows: Rows, schema: Any) -> Any:
    """Rows as an Arrow record batch."""
    import pyarrow as pa

    lists = [pa.FixedSizeListArray.from_arrays(pa.array(of.ravel()), of.shape[1]) for of in (rows.x, rows.y)]
    task = pa.array(rows.names).take(pa.array(rows.task))
    return pa.record_batch([task, pa.array(rows.row), pa.array(rows.support), *lists], schema=schema)


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

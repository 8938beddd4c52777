"""Tables from CSV or Parquet files, in pieces: exact row numbers, and every flaw named by file, row and column."""

import contextlib
import csv
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.schema import FIRST_ROW

SUFFIXES = (".csv", ".parquet", ".pq")
PIECE = 10_000
"""Rows read at a time."""
OTHER_DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns of cells, as they stand in the file `where`; `rows` are their numbers there, the header being row 1."""

    where: str
    columns: Mapping[str, np.ndarray]
    rows: np.ndarray

    def take(self, chosen: np.ndarray) -> "Table":
        """Some of the rows, by place or by mask."""
        columns = {name: cells[chosen] for name, cells in self.columns.items()}
        return Table(self.where, columns, self.rows[chosen])


def rows_of(path: str | Path, size: int = PIECE) -> Iterator[Table]:
    """The file's rows, some at a time, so that a file of any size takes little memory."""
    path = Path(path)
    refuse_unreadable(path)
    read = csv_pieces if path.suffix.lower() == ".csv" else parquet_pieces
    empty = True
    for piece in read(path, size):
        empty = False
        yield piece
    if empty:
        raise InputError(f"{path} has a header and no rows: give at least one row below it")


def read_table(path: str | Path) -> Table:
    """The whole file."""
    return joined(list(rows_of(path)))


def joined(pieces: Sequence[Table]) -> Table:
    """Pieces of one table as one."""
    columns = {name: np.concatenate([piece.columns[name] for piece in pieces]) for name in pieces[0].columns}
    return Table(pieces[0].where, columns, np.concatenate([piece.rows for piece in pieces]))


def is_table(given: Any) -> bool:
    """Is this a table: a path, a `Table`, a DataFrame, or a mapping of names to columns? Otherwise it is an array."""
    return isinstance(given, str | Path | Table | Mapping) or hasattr(given, "columns")


def open_table(given: Any) -> Table:
    """Whatever `is_table` holds for, as a table."""
    if isinstance(given, Table):
        return given
    return read_table(given) if isinstance(given, str | Path) else from_frame(given)


def from_frame(frame: Any) -> Table:
    """A DataFrame, or a mapping of names to columns, as a table; rows count from 1."""
    names = [str(name) for name in (frame.columns if hasattr(frame, "columns") else frame)]
    refuse_header(names, "the DataFrame")
    given = list(frame.columns) if hasattr(frame, "columns") else list(frame)
    columns = {name: plain_cells(np.asarray(frame[key])) for name, key in zip(names, given, strict=True)}
    sizes = {name: len(cells) for name, cells in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the columns must have the same number of rows, got {sizes}")
    num_rows = next(iter(sizes.values()))
    if num_rows == 0:
        raise InputError("the DataFrame has no rows: give at least one")
    return Table("the DataFrame", columns, np.arange(1, num_rows + 1))


def refuse_unreadable(path: Path) -> None:
    """Refuse what is no table before it is opened."""
    if not path.exists():
        raise InputError(f"{path} does not exist: check the name")
    if path.is_dir():
        raise InputError(f"{path} is a folder: expected a table, one of {', '.join(SUFFIXES)}")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} must end in one of {', '.join(SUFFIXES)}: save it as CSV or Parquet")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty: expected a header and rows")


def csv_pieces(path: Path, size: int) -> Iterator[Table]:
    """A CSV file with commas, UTF-8 with or without a byte-order mark."""
    with explained(path), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, None)
        if header is None:
            raise InputError(f"{path} is empty: expected a header and rows")
        names = [name.strip() for name in header]
        refuse_header(names, str(path))
        numbered = ((number, cells) for number, cells in enumerate(reader, FIRST_ROW) if cells)
        while some := list(itertools.islice(numbered, size)):
            yield csv_table(some, names, path)


def csv_table(numbered: list[tuple[int, list[str]]], names: list[str], path: Path) -> Table:
    """One piece; a blank line counts as a row and is left out."""
    for number, cells in numbered:
        if len(cells) != len(names):
            mend = "a cell with a comma in it must stand in quotes" if len(cells) > len(names) else "fill up the row"
            raise InputError(f"{path}, row {number}: {len(cells)} cells, but the header has {len(names)}: {mend}")
    by_column = zip(*(cells for _, cells in numbered), strict=True)
    columns = {name: np.array(cells, object) for name, cells in zip(names, by_column, strict=True)}
    return Table(str(path), columns, np.array([number for number, _ in numbered]))


def refuse_header(names: Sequence[str], where: str) -> None:
    """Refuse column names that cannot be told apart, and a header that another sign divides."""
    if len(names) == 1 and (signs := [word for sign, word in OTHER_DELIMITERS.items() if sign in names[0]]):
        raise InputError(f"{where}, row 1: one column {names[0]!r}, divided by {signs[0]}? Save it with commas between")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        places = [i + 1 for i, name in enumerate(names) if name == twice[0]]
        raise InputError(f"{where}, row 1: columns {places} are all called {twice[0]!r}: give each its own name")
    if "" in names:
        raise InputError(f"{where}, row 1: column {names.index('') + 1} has no name: give it one")


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say in words what is wrong with a file that is no CSV."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}): save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise InputError(f"{path} is not CSV ({error}): save it anew as CSV with commas") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error


def parquet_pieces(path: Path, size: int) -> Iterator[Table]:
    """A Parquet file, whose rows count from 1."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'metagrove[own]', or save as CSV") from error
    try:
        with pq.ParquetFile(path) as file:
            refuse_header(file.schema_arrow.names, str(path))
            first = 1
            for batch in file.iter_batches(batch_size=size):
                columns = {name: cells_of(batch.column(name)) for name in batch.schema.names}
                yield Table(str(path), columns, np.arange(first, first + batch.num_rows))
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not Parquet, or is damaged ({error}): write it again") from error


def cells_of(array: Any) -> np.ndarray:
    """One Arrow column; names that are stored once become cells again, dates and lists become text."""
    array = array.dictionary_decode() if hasattr(array, "dictionary_decode") else array
    return plain_cells(array.to_numpy(zero_copy_only=False))


def plain_cells(cells: np.ndarray) -> np.ndarray:
    """Numbers and text as they are, anything else as text."""
    if cells.dtype.kind in "mM":
        return cells.astype(str).astype(object)
    if cells.dtype.kind == "O" and any(isinstance(cell, list | dict | np.ndarray) for cell in cells):
        return np.array([str(cell) for cell in cells], object)
    return cells

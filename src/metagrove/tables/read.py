"""Read CSV and Parquet files in chunks; errors name file, row and column."""

import collections
import contextlib
import csv
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from metagrove.errors import InputError, quoted
from metagrove.tables.csv_text import plain_text
from metagrove.tables.schema import FIRST_ROW

SUFFIXES = (".csv", ".parquet", ".pq")
PIECE = 10_000
"""Rows per chunk."""
MAX_LINE, MAX_PIECE = 1 << 24, 1 << 25
"""Characters of a line and of a chunk of a CSV file."""
LONGEST_NAME = 1_000
"""Characters of the name of a column or a category."""
MAX_CELLS = 50_000_000
"""Cells of a table that is read as a whole."""
MAX_BLOCK_BYTES = 1 << 30
"""Bytes that a column of a row group of a Parquet file may unpack to."""
OTHER_DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns of cells of the file `where`; `rows` are the row numbers in that file, the header being row 1."""

    where: str
    columns: Mapping[str, np.ndarray]
    rows: np.ndarray

    def take(self, chosen: np.ndarray) -> "Table":
        """Select rows by index or by mask."""
        columns = {name: cells[chosen] for name, cells in self.columns.items()}
        return Table(self.where, columns, self.rows[chosen])


def rows_of(path: str | Path, size: int = PIECE, columns: Sequence[str] | None = None) -> Iterator[Table]:
    """Iterate over chunks of a file's rows, so that a file of any size needs little memory.

    Args:
        path: CSV or Parquet file.
        size: Rows per chunk.
        columns: Columns that are needed; of a Parquet file no others are read.
    """
    path = Path(path)
    refuse_unreadable(path)
    pieces = csv_pieces(path, size) if path.suffix.lower() == ".csv" else parquet_pieces(path, size, columns)
    empty = True
    for piece in pieces:
        empty = False
        yield piece
    if empty:
        raise InputError(f"{path} has a header and no rows: give at least one row below it")


def read_table(path: str | Path) -> Table:
    """Read a whole file.

    Args:
        path: CSV or Parquet file.

    Returns:
        The table.

    Raises:
        InputError: If the file is missing, damaged, too large or has no rows.
    """
    pieces, cells = [], 0
    for piece in rows_of(path):
        pieces.append(piece)
        cells += len(piece.rows) * len(piece.columns)
        if cells > MAX_CELLS:
            raise InputError(f"{path} has more than {MAX_CELLS:,} cells: split it, or leave columns out")
    return concatenate(pieces)


def concatenate(pieces: Sequence[Table]) -> Table:
    """Concatenate the chunks of one table."""
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
    """Convert a DataFrame, or a mapping from names to columns, to a table whose rows count from 1."""
    names = [str(name) for name in (frame.columns if hasattr(frame, "columns") else frame)]
    refuse_header(names, "the DataFrame")
    given = list(frame.columns) if hasattr(frame, "columns") else list(frame)
    columns = {name: plain_cells(np.asarray(frame[key])) for name, key in zip(names, given, strict=True)}
    sizes = {name: len(cells) for name, cells in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the columns must have the same number of rows, got {quoted(sizes, 200)}")
    num_rows = next(iter(sizes.values()))
    if num_rows == 0:
        raise InputError("the DataFrame has no rows: give at least one")
    return Table("the DataFrame", columns, np.arange(1, num_rows + 1))


def refuse_unreadable(path: Path) -> None:
    """Raise an InputError for a path that is missing, a folder, empty, or neither CSV nor Parquet."""
    if not path.exists():
        raise InputError(f"{path} does not exist: check the name")
    if path.is_dir():
        raise InputError(f"{path} is a folder: expected a table, one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise InputError(f"{path} is not a plain file: save the table as CSV or Parquet")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} must end in one of {', '.join(SUFFIXES)}: save it as CSV or Parquet")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty: expected a header and rows")


def csv_pieces(path: Path, size: int) -> Iterator[Table]:
    """Iterate over chunks of a comma-separated UTF-8 file, with or without a byte-order mark."""
    with explain_csv_errors(path), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(short_lines(file, path), strict=True)
        header = next(reader, None)
        if header is None:
            raise InputError(f"{path} is empty: expected a header and rows")
        names = [plain_text(name.strip()) for name in header]
        refuse_header(names, str(path))
        numbered = ((number, cells) for number, cells in enumerate(reader, FIRST_ROW) if cells)
        while some := next_piece(numbered, size):
            yield csv_table(some, names, path)


def short_lines(file: TextIO, path: Path) -> Iterator[str]:
    """Iterate over the lines of a file; one that would fill the memory is refused before it does."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise InputError(f"{path} has a line of {MAX_LINE:,} characters or more: save it again as CSV with commas")
        yield line


def next_piece(numbered: Iterator[tuple[int, list[str]]], size: int) -> list[tuple[int, list[str]]]:
    """Take the next rows, as many as fit in a chunk."""
    piece, characters = [], 0
    for row in itertools.islice(numbered, size):
        piece.append(row)
        characters += sum(map(len, row[1]))
        if characters > MAX_PIECE:
            break
    return piece


def csv_table(numbered: list[tuple[int, list[str]]], names: list[str], path: Path) -> Table:
    """Make a table of one chunk; a blank line is skipped but counts as a row."""
    for number, cells in numbered:
        if len(cells) != len(names):
            fix = "put a cell with a comma in quotes" if len(cells) > len(names) else "complete the row"
            raise InputError(f"{path}, row {number}: {len(cells)} cells, but the header has {len(names)}: {fix}")
    by_column = zip(*(cells for _, cells in numbered), strict=True)
    columns = {name: text_column(cells) for name, cells in zip(names, by_column, strict=True)}
    return Table(str(path), columns, np.array([number for number, _ in numbered]))


def text_column(cells: Sequence[str]) -> np.ndarray:
    """The cells of a column of a CSV file; equal ones are the same object, so that repeated text takes no memory."""
    plain: dict[str, str] = {}
    for cell in cells:
        if cell not in plain:
            plain[cell] = plain_text(cell) if cell.startswith("'") else cell
    return np.array([plain[cell] for cell in cells], object)


def refuse_header(names: Sequence[str], where: str) -> None:
    """Raise an InputError for duplicate, empty or too long column names, or another delimiter than a comma."""
    if len(names) == 1 and (signs := [word for sign, word in OTHER_DELIMITERS.items() if sign in names[0]]):
        raise InputError(f"{where}, row 1: one column {quoted(names[0])}, delimited by {signs[0]}? Save it with commas")
    twice = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    if twice:
        positions = [i + 1 for i, name in enumerate(names) if name == twice[0]]
        shown = ", ".join(map(str, positions[:10])) + ("…" if len(positions) > 10 else "")
        raise InputError(f"{where}, row 1: columns [{shown}] are all called {quoted(twice[0])}: give each its own name")
    if long := [name for name in names if len(name) > LONGEST_NAME]:
        raise InputError(f"{where}, row 1: the column's name {quoted(long[0])} is too long, at most {LONGEST_NAME:,}")
    if "" in names:
        raise InputError(f"{where}, row 1: column {names.index('') + 1} has no name: give it one")


@contextlib.contextmanager
def explain_csv_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading a CSV file to InputErrors that say how to fix them."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}): save it as CSV in UTF-8") from error
    except csv.Error as error:
        raise InputError(f"{path} is not CSV ({error}): save it again as CSV with commas") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error


def parquet_pieces(path: Path, size: int, wanted: Sequence[str] | None = None) -> Iterator[Table]:
    """Iterate over chunks of a Parquet file, whose rows count from 1."""
    with explain_parquet_errors(path):
        for rows, batch in parquet_batches(path, size, wanted):
            columns = {name: cells_of(batch.column(name)) for name in batch.schema.names}
            yield Table(str(path), columns, rows)


def parquet_batches(path: Path, size: int, wanted: Sequence[str] | None = None) -> Iterator[tuple[np.ndarray, Any]]:
    """Iterate over chunks of a Parquet file as Arrow record batches, with the numbers of their rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [field.name for field in pq.read_schema(path) if pa.types.is_string(field.type)]
    with pq.ParquetFile(path, read_dictionary=texts) as file:  # repeated text takes no memory
        refuse_header(file.schema_arrow.names, str(path))
        refuse_large_blocks(file.metadata, path)
        first = 1
        present = None if wanted is None else [name for name in wanted if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=size, columns=present or None):
            yield np.arange(first, first + batch.num_rows), batch
            first += batch.num_rows


@contextlib.contextmanager
def explain_parquet_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading a Parquet file to InputErrors that say how to fix them."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'metagrove[own]', or save as CSV") from error
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not Parquet, or is damaged ({error}): write it again") from error


def refuse_large_blocks(about: Any, path: Path) -> None:
    """Raise an InputError for a Parquet file that has to be unpacked in blocks that are too large."""
    for group in map(about.row_group, range(about.num_row_groups)):
        if any(group.column(at).total_uncompressed_size > MAX_BLOCK_BYTES for at in range(group.num_columns)):
            raise InputError(f"{path} unpacks to blocks above {MAX_BLOCK_BYTES:,} bytes: write smaller row groups")


def cells_of(array: Any) -> np.ndarray:
    """Convert an Arrow column to cells; dictionary encoding is undone, dates and lists become text."""
    if hasattr(array, "dictionary"):
        values = np.array([*array.dictionary.to_pylist(), None], object)
        return plain_cells(values[array.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)])
    return plain_cells(array.to_numpy(zero_copy_only=False))


def plain_cells(cells: np.ndarray) -> np.ndarray:
    """Keep numbers and text, and convert all other cells to text."""
    if cells.dtype.kind in "mM":
        return cells.astype(str).astype(object)
    if cells.dtype.kind == "O" and any(isinstance(cell, list | dict | np.ndarray) for cell in cells):
        return np.array([str(cell) for cell in cells], object)
    return cells

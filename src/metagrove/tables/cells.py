"""Cells of a column: parsing numbers and text, and recognising missing values."""

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from metagrove.errors import InputError, quoted, shortened

MISSING = frozenset({"", "na", "n/a", "<na>", "nan", "nat", "null", "none"})
"""Lower-case texts that denote a missing value."""
DATE = re.compile(r"\d{4}-\d{1,2}(-\d{1,2}(T.*)?)?$")
SECONDS_PER_DAY = 86400.0
LARGEST = 1e30
"""Largest absolute value that is accepted."""


def refuse(where: str, row: int, column: str, what: str) -> NoReturn:
    """Raise an InputError about one cell, naming file, row and column."""
    raise InputError(f"{where}, row {row}, column {quoted(column)}: {what}")


def is_missing(cell: object) -> bool:
    """Return whether a cell is empty, a text that denotes a missing value, None, NaN, NA or NaT."""
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or bool(cell != cell)


def missing_cells(cells: np.ndarray) -> np.ndarray:
    """Return a mask of the missing cells of a column."""
    if cells.dtype.kind == "f":
        return np.isnan(cells)
    if cells.dtype.kind in "biu":
        return np.zeros(len(cells), bool)
    return np.fromiter(each_once(is_missing, cells), bool, len(cells))


def each_once(function: Callable[[Any], Any], cells: np.ndarray) -> Iterator[Any]:
    """`function` of each cell, called once for equal texts: a file of kilobytes may repeat a long one many times."""
    known: dict[str, Any] = {}
    for cell in cells:
        if not isinstance(cell, str):
            yield function(cell)
            continue
        if cell not in known:
            known[cell] = function(cell)
        yield known[cell]


def as_number(cell: object) -> float | None:
    """Parse a cell as a number; None if it is not one."""
    try:
        return None if isinstance(cell, bool | np.bool_) else float(cell)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return None


def numbers(cells: np.ndarray, column: str, where: str, rows: Sequence[int]) -> np.ndarray:
    """Parse a column as float64, with NaN for missing values; text, infinities and huge numbers raise an error."""
    values = cells.astype(np.float64) if cells.dtype.kind in "iuf" else _parsed(cells, column, where, rows)
    if (wild := np.flatnonzero(np.isinf(values) | (np.abs(values) > LARGEST))).size:
        at = int(wild[0])
        refuse(
            where,
            rows[at],
            column,
            f"{shortened(cells[at])} is too large: the limit is {LARGEST:g}; correct or drop that row",
        )
    return values


def _parsed(cells: np.ndarray, column: str, where: str, rows: Sequence[int]) -> np.ndarray:
    try:
        return np.array([float(cell) for cell in cells], np.float64)  # fast path: every cell is a number
    except (TypeError, ValueError):
        pass
    values = np.full(len(cells), np.nan)
    for at, cell in enumerate(cells):
        if is_missing(cell):
            continue
        value = as_number(cell)
        if value is None:
            fix = f"correct that cell, or pass --categorical {quoted(column)} if the column is categorical"
            refuse(where, rows[at], column, f"expected a number, got {quoted(str(cell))}: {fix}")
        values[at] = value
    return values


def as_days(cell: object) -> float | None:
    """Parse a date or a time as days since 1970-01-01; None if it is neither.

    ISO 8601 (2024-05-01, 2024-05, 2024-05-01T12:30) and year/month/day are read; 01/05/2024 is ambiguous and is not.
    """
    text = str(cell).strip().replace("/", "-").replace(" ", "T")
    if not DATE.match(text):
        return None
    try:
        moment = (
            datetime.datetime.fromisoformat(text) if len(text) > 7 else datetime.datetime.fromisoformat(text + "-01")
        )
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp() / SECONDS_PER_DAY


def days(cells: np.ndarray, column: str, where: str, rows: Sequence[int]) -> np.ndarray:
    """Parse a column of dates as days since 1970-01-01, with NaN for missing values; other text raises an error."""
    values = np.full(len(cells), np.nan)
    for at, cell in enumerate(cells):
        if is_missing(cell):
            continue
        value = as_days(cell)
        if value is None:
            refuse(
                where,
                rows[at],
                column,
                f"expected a date such as 2024-05-01, got {quoted(str(cell))}: correct that cell",
            )
        values[at] = value
    return values


def texts(cells: np.ndarray) -> np.ndarray:
    """Convert a column to text, with None for missing values and no decimal point in whole numbers."""
    return np.array(list(each_once(lambda cell: None if is_missing(cell) else as_text(cell), cells)), object)


def as_text(cell: object) -> str:
    """Convert a cell to the name of a category, without surrounding whitespace."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()

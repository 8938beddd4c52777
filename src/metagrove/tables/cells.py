"""The cells of a column: numbers, texts, and what stands for a missing value."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from metagrove.errors import InputError

MISSING = frozenset({"", "na", "n/a", "<na>", "nan", "nat", "null", "none"})
"""What stands for a missing value, in any case."""
LARGEST = 1e30
"""Numbers beyond are not measurements."""


def refuse(where: str, row: int, column: str, what: str) -> NoReturn:
    """One bad cell, by file, row and column."""
    raise InputError(f"{where}, row {row}, column {column!r}: {what}")


def is_missing(cell: object) -> bool:
    """Is this cell empty, a word for empty, NaN, or what pandas has for it?"""
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or bool(cell != cell)


def missing_cells(cells: np.ndarray) -> np.ndarray:
    """Where a column has no value."""
    if cells.dtype.kind == "f":
        return np.isnan(cells)
    if cells.dtype.kind in "biu":
        return np.zeros(len(cells), bool)
    return np.fromiter((is_missing(cell) for cell in cells), bool, len(cells))


def as_number(cell: object) -> float | None:
    """The cell's number, if it is one."""
    try:
        return None if isinstance(cell, bool | np.bool_) else float(cell)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return None


def numbers(cells: np.ndarray, column: str, where: str, rows: Sequence[int]) -> np.ndarray:
    """The column as float64, NaN where a value is missing; text, infinities and huge numbers are refused."""
    values = cells.astype(np.float64) if cells.dtype.kind in "iuf" else _parsed(cells, column, where, rows)
    if (wild := np.flatnonzero(np.isinf(values) | (np.abs(values) > LARGEST))).size:
        at = int(wild[0])
        refuse(
            where, rows[at], column, f"{cells[at]} is too large: numbers go up to {LARGEST:g}; mend or drop that row"
        )
    return values


def _parsed(cells: np.ndarray, column: str, where: str, rows: Sequence[int]) -> np.ndarray:
    try:
        return np.array([float(cell) for cell in cells], np.float64)  # the fast way, where every cell is a number
    except (TypeError, ValueError):
        pass
    values = np.full(len(cells), np.nan)
    for at, cell in enumerate(cells):
        if is_missing(cell):
            continue
        value = as_number(cell)
        if value is None:
            mend = f"mend that cell, or say --categorical {column!r} if its values are names"
            refuse(where, rows[at], column, f"expected a number, got {str(cell)!r}: {mend}")
        values[at] = value
    return values


def texts(cells: np.ndarray) -> np.ndarray:
    """The column as text, None where a value is missing; a whole number has no point."""
    return np.array([None if is_missing(cell) else as_text(cell) for cell in cells], object)


def as_text(cell: object) -> str:
    """A name of a category: the cell without blanks around it."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()

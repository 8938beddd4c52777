"""Whether the rows of a table are kept in memory or on disk."""

import importlib.util
from pathlib import Path

from metagrove.errors import InputError
from metagrove.tables.read import explain_parquet_errors, refuse_unreadable
from metagrove.tables.settings import TableData

MOST_CELLS_IN_MEMORY = 10_000_000
"""Largest number of cells of a table that is kept in memory unless the settings say otherwise."""
BYTES_PER_CELL = 8
"""Of a CSV file, roughly."""


def keeps_rows_on_disk(data: TableData) -> bool:
    """Return whether the rows are kept on disk: as the settings say, by default those of a large long table.

    Args:
        data: The settings.

    Returns:
        Whether they are kept on disk. By default never for a folder of tables, or without pyarrow.

    Raises:
        InputError: If the table cannot be read, or a folder is to be kept on disk.
    """
    is_folder = Path(data.tasks).is_dir()
    if data.keep_rows == "disk" and is_folder:
        raise InputError(f"{data.tasks} is a folder: --keep-rows disk needs one long table with a task column")
    if data.keep_rows != "auto":
        return data.keep_rows == "disk"
    if is_folder or importlib.util.find_spec("pyarrow") is None:
        return False
    return about_cells(Path(data.tasks)) > MOST_CELLS_IN_MEMORY


def about_cells(path: Path) -> int:
    """The number of cells of a table, without reading it: exactly of a Parquet file, roughly of a CSV file."""
    refuse_unreadable(path)
    if path.suffix.lower() == ".csv":
        return path.stat().st_size // BYTES_PER_CELL
    with explain_parquet_errors(path):
        import pyarrow.parquet as pq

        about = pq.read_metadata(path)
        return about.num_rows * about.num_columns

"""Predictions for a file of rows or a folder of images, read in batches and written atomically as CSV."""

import csv
from pathlib import Path

import numpy as np

from metagrove import files
from metagrove.errors import InputError
from metagrove.serve.calibration import COVERAGE
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.queries import QueryRows, query_pieces
from metagrove.tables.csv_text import csv_text


def predict_file(fitted: FittedTask, source: Path, out: Path, coverage: float = COVERAGE) -> int:
    """Write a line for each row (or image) of `source`, in its order: its columns, then the predictions.

    Args:
        fitted: The fitted task.
        source: Rows: CSV or Parquet of any size; for images a folder.
        out: The CSV file.
        coverage: Coverage of the intervals.

    Returns:
        The number of lines.

    Raises:
        InputError: If the rows cannot be read or predicted.
    """
    if out.suffix.lower() != ".csv":
        raise InputError(f"{out} must end in .csv: predictions are written as CSV")
    if out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"{out} is the input itself: choose another file for the predictions")
    if fitted.statistics == "query":
        raise InputError(
            "a transductive task normalises by all rows of one call, but a file is read in batches: "
            "predict in Python, or adapt with the support set's statistics"
        )
    count = 0
    with files.open_atomically(out) as file:
        writer = csv.writer(file, lineterminator="\n")
        for queries in query_pieces(source, fitted.spec, fitted.schema, fitted.ignored):
            columns = given_columns(fitted, queries) | fitted.columns(queries, coverage)
            if count == 0:
                writer.writerow(map(csv_text, columns))
            cells = [written(values) for values in columns.values()]
            writer.writerows(zip(*cells, strict=True))
            count += len(cells[0])
    return count


def given_columns(fitted: FittedTask, queries: QueryRows) -> dict[str, np.ndarray]:
    """The columns of the input, identifiers among them; a target in the input is called TARGET_given."""
    targets = {column.name for column in fitted.schema.targets}
    return {f"{name}_given" if name in targets else name: cells for name, cells in (queries.given or {}).items()}


def written(values: np.ndarray) -> list[str]:
    """A column's cells as text; nine digits are exact in single precision, and text cannot be a formula."""
    return (
        [f"{value:.9g}" for value in values.tolist()]
        if values.dtype.kind == "f"
        else [csv_text(str(v)) for v in values]
    )

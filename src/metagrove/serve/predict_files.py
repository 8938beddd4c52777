"""Predictions for a file of rows or a folder of images, written as CSV: some rows at a time, whole or not at all."""

import csv
from pathlib import Path

import numpy as np

from metagrove import files
from metagrove.errors import InputError
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.queries import query_pieces


def predict_file(fitted: FittedTask, source: Path, out: Path) -> int:
    """Write a line for each row (or image) of `source`, in its order; how many there were."""
    if out.suffix.lower() != ".csv":
        raise InputError(f"{out} must end in .csv: predictions are written as CSV")
    if out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"{out} is the input itself: choose another file for the predictions")
    if fitted.statistics == "query":
        raise InputError(
            "a transductive task normalises by all rows that are asked for, and a file is read piece by piece: "
            "predict in Python, or adapt with the support set's statistics"
        )
    count = 0
    with files.open_atomically(out) as file:
        writer = csv.writer(file, lineterminator="\n")
        for queries in query_pieces(source, fitted.spec, fitted.schema, fitted.ignored):
            columns = fitted.columns(queries)
            if count == 0:
                writer.writerow(columns)
            cells = [written(values) for values in columns.values()]
            writer.writerows(zip(*cells, strict=True))
            count += len(cells[0])
    return count


def written(values: np.ndarray) -> list[str]:
    """A column's cells as text; nine digits tell every number of single precision apart."""
    return [f"{value:.9g}" for value in values.tolist()] if values.dtype.kind == "f" else [str(v) for v in values]

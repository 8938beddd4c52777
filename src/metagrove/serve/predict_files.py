"""Predictions for a file of rows or a folder of images, written as CSV: some rows at a time, whole or not at all."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from metagrove import files
from metagrove.errors import InputError
from metagrove.serve.adapt import images, refuse_unseen
from metagrove.serve.fitted import Fitted
from metagrove.tables.read import rows_of

Columns = dict[str, np.ndarray]


def predict_file(fitted: Fitted, source: Path, out: Path) -> int:
    """Write a line for each row (or image) of `source`, in its order; how many there were."""
    if out.suffix.lower() != ".csv":
        raise InputError(f"{out} must end in .csv: predictions are written as CSV")
    if out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"{out} is the input itself: choose another file for the predictions")
    find = predict_images if images(fitted.spec) else predict_rows
    count = 0
    with files.open_atomically(out) as file:
        writer = csv.writer(file, lineterminator="\n")
        for columns in find(fitted, source):
            if count == 0:
                writer.writerow(columns)
            cells = [written(values) for values in columns.values()]
            writer.writerows(zip(*cells, strict=True))
            count += len(cells[0])
    return count


def predict_rows(fitted: Fitted, source: Path) -> Iterator[Columns]:
    """Predictions for a table, a piece of it at a time."""
    for table in rows_of(source):
        refuse_unseen(table, fitted.schema, fitted.ignored)
        x = fitted.schema.encode_inputs(table.columns, table.where, table.rows.tolist())
        yield finite(fitted.columns(x), table.where, table.rows)


def predict_images(fitted: Fitted, source: Path) -> Iterator[Columns]:
    """Classes of the images below a folder, some of them at a time."""
    from metagrove.serve.images import decoded, list_images

    for names, x in decoded(source, list_images(source).images, fitted.spec.x_shape[0]):
        yield {"file": np.array(names, object), **fitted.columns(x)}


def finite(columns: Columns, where: str, rows: np.ndarray) -> Columns:
    """The columns, if every number in them is one."""
    for name, values in columns.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(rows[int(np.flatnonzero(~np.isfinite(values))[0])])
            raise InputError(f"{where}, row {row}: {name!r} cannot be predicted, its inputs lie too far out: mend them")
    return columns


def written(values: np.ndarray) -> list[str]:
    """A column's cells as text; nine digits tell every number of single precision apart."""
    return [f"{value:.9g}" for value in values.tolist()] if values.dtype.kind == "f" else [str(v) for v in values]

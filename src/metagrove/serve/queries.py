"""What a person asks predictions for (a table or a folder of images), encoded: whole, or some rows at a time."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.serve.images import decoded, list_images
from metagrove.serve.support import folder_of, refuse_unseen
from metagrove.tables.read import Table, open_table, rows_of
from metagrove.tables.schema import Schema
from metagrove.task import Spec


@dataclasses.dataclass(frozen=True)
class QueryRows:
    """Encoded inputs, and where they come from."""

    x: np.ndarray
    files: np.ndarray | None = None
    """Names of images."""
    where: str = ""
    rows: np.ndarray | None = None
    """The rows' numbers in the file `where`, for messages."""


def read_queries(given: Any, spec: Spec, schema: Schema, ignored: tuple[str, ...] | None) -> QueryRows:
    """All rows of a table, or all images of a folder."""
    if not spec.is_image:
        return encoded(open_table(given), schema, ignored)
    pieces = list(image_pieces(folder_of(given), spec))
    names = [piece.files for piece in pieces if piece.files is not None]
    return QueryRows(np.concatenate([piece.x for piece in pieces]), np.concatenate(names), pieces[0].where)


def query_pieces(path: Path, spec: Spec, schema: Schema, ignored: tuple[str, ...] | None) -> Iterator[QueryRows]:
    """The same of a file or folder of any size, some rows at a time."""
    if spec.is_image:
        yield from image_pieces(path, spec)
        return
    for table in rows_of(path):
        yield encoded(table, schema, ignored)


def encoded(table: Table, schema: Schema, ignored: tuple[str, ...] | None) -> QueryRows:
    """A table's inputs in the net's units."""
    refuse_unseen(table, schema, ignored)
    x = schema.encode_inputs(table.columns, table.where, table.rows.tolist())
    return QueryRows(x, where=table.where, rows=table.rows)


def image_pieces(folder: Path, spec: Spec) -> Iterator[QueryRows]:
    """The images below a folder."""
    for names, x in decoded(folder, list_images(folder).images, spec.x_shape[0]):
        yield QueryRows(x, np.array(names, object), str(folder))

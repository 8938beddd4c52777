"""Encoding of query rows from a table or a folder of images, at once or in batches."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.serve.images import decoded, is_image_file, list_images, read_image_file
from metagrove.serve.support import folder_of, note_unused
from metagrove.tables.read import Table, is_table, open_table, rows_of
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
    given: Mapping[str, np.ndarray] | None = None
    """All columns of the table, unchanged."""


def read_queries(given: Any, spec: Spec, schema: Schema, ignored: tuple[str, ...] | None) -> QueryRows:
    """Encode all rows of a table, or all images of a folder."""
    if not spec.is_image:
        table = open_table(given)
        note_unused(table, schema, ignored)
        return encoded(table, schema)
    if is_path_list(given):
        return image_files([Path(one) for one in given], spec)
    if isinstance(given, str | Path) and is_image_file(Path(given)):
        return image_files([Path(given)], spec)
    pieces = list(image_pieces(folder_of(given), spec))
    names = [piece.files for piece in pieces if piece.files is not None]
    return QueryRows(np.concatenate([piece.x for piece in pieces]), np.concatenate(names), pieces[0].where)


def has_names(given: Any) -> bool:
    """Whether the prediction has named columns: for a table, or paths of images."""
    return is_table(given) or is_path_list(given)


def is_path_list(given: Any) -> bool:
    """Whether a value is a list of paths."""
    return isinstance(given, list | tuple) and bool(given) and all(isinstance(one, str | Path) for one in given)


def image_files(paths: list[Path], spec: Spec) -> QueryRows:
    """Read images by their paths."""
    x = np.stack([read_image_file(path, spec.x_shape[0]) for path in paths])
    return QueryRows(x, np.array([str(path) for path in paths], object), str(paths[0].parent))


def query_pieces(path: Path, spec: Spec, schema: Schema, ignored: tuple[str, ...] | None) -> Iterator[QueryRows]:
    """Encode a file or folder of any size in batches."""
    if spec.is_image:
        yield from image_pieces(path, spec)
        return
    for number, table in enumerate(rows_of(path)):
        if number == 0:
            note_unused(table, schema, ignored)
        yield encoded(table, schema)


def encoded(table: Table, schema: Schema) -> QueryRows:
    """Encode the inputs of a table."""
    x = schema.encode_inputs(table.columns, table.where, table.rows.tolist())
    return QueryRows(x, where=table.where, rows=table.rows, given=table.columns)


def image_pieces(folder: Path, spec: Spec) -> Iterator[QueryRows]:
    """The images below a folder."""
    for names, x in decoded(folder, list_images(folder).images, spec.x_shape[0]):
        yield QueryRows(x, np.array(names, object), str(folder))

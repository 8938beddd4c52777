"""Encoding of a support set that is given as arrays, a table or a folder of images."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metagrove.errors import InputError
from metagrove.notes import note
from metagrove.serve.images import support_images
from metagrove.serve.rows import Inputs, support_rows
from metagrove.sources.source import Source
from metagrove.tables.read import Table, is_table, open_table
from metagrove.tables.schema import Column, Schema, quote
from metagrove.task import Spec


@dataclasses.dataclass(frozen=True)
class SupportRows:
    """A support set in the net's units, with the names of its columns or classes."""

    x: np.ndarray
    y: np.ndarray
    schema: Schema


def read_support(source: Source, support: Any, y: ArrayLike | None, *, classifies: bool) -> SupportRows:
    """Check and encode a support set.

    Args:
        source: The source that the run was trained on.
        support: Inputs as an array if `y` is given; otherwise a table with inputs and targets (a path, a DataFrame, a
            mapping of columns), or for images a folder class/*.jpg.
        y: Targets as an array; for a classifier, class indices or names.
        classifies: Whether the targets are classes.

    Raises:
        InputError: If the rows do not fit the run, naming row and column.
    """
    if y is not None:
        return from_arrays(source, support, y, classifies=classifies)
    if not is_table(support):
        raise InputError("an array of inputs needs its targets: give y as well, or a table with both")
    if source.spec.is_image:
        classes, x, codes = support_images(folder_of(support), source.spec)
        return SupportRows(x, codes, class_schema(classes))
    schema = table_schema(source, classifies=classifies)
    if schema is None:
        raise InputError("this run classifies and names no columns: give arrays, run.adapt(x, y)")
    table = open_table(support)
    note_unused(table, schema, source.ignored_columns)
    where = table.columns, table.where, table.rows.tolist()
    return SupportRows(schema.encode_inputs(*where), schema.encode_targets(*where), schema)


def from_arrays(source: Source, x: Inputs, y: ArrayLike, *, classifies: bool) -> SupportRows:
    """Rows from arrays, in the net's units."""
    spec, schema = source.spec, table_schema(source, classifies=classifies)
    if classifies and (names := class_names(y)):
        schema = schema or class_schema(sorted(set(names)))
        y = encode_names(names, schema, spec.y_dim)
    inputs, targets = support_rows(x, y, spec, classifies=classifies)
    return SupportRows(inputs, targets, schema or array_schema(source, classifies=classifies))


def class_names(y: ArrayLike) -> list[str]:
    """The classes of rows if they are given by name."""
    array = np.asarray(y)
    return [str(name) for name in array] if array.ndim == 1 and array.dtype.kind in "OSU" else []


def encode_names(names: list[str], schema: Schema, ways: int) -> np.ndarray:
    """One-hot codes of named classes."""
    found = len(schema.labels)
    if not 2 <= found <= ways:
        raise InputError(f"y has {found} classes, but the run distinguishes 2 to {ways}")
    target = {schema.targets[0].name: np.array(names, object)}
    codes = schema.encode_targets(target, "y", range(len(names)))
    return np.pad(codes, ((0, 0), (0, ways - found)))


def folder_of(support: Any) -> Path:
    """The folder of a support set of images."""
    if not isinstance(support, str | Path):
        raise InputError("images are given as a folder class/*.jpg, or as arrays: run.adapt(x, y)")
    return Path(support)


def table_schema(source: Source, *, classifies: bool) -> Schema | None:
    """The run's columns; without names x (or x1, x2, ...) and y, unscaled; None if it takes no table."""
    if source.schema is not None or classifies or source.spec.is_image:
        return source.schema
    return unnamed_schema(source.spec, classifies=False)


def array_schema(source: Source, *, classifies: bool) -> Schema:
    """The columns of a task that is given as arrays: the run's, or numbered ones."""
    return table_schema(source, classifies=classifies) or unnamed_schema(source.spec, classifies=classifies)


def unnamed_schema(spec: Spec, *, classifies: bool) -> Schema:
    """Columns of a run without column names."""
    if classifies:
        return class_schema(map(str, range(spec.y_dim)))
    inputs = () if spec.is_image else plain_columns("x", spec.x_shape[0])
    return Schema(inputs, plain_columns("y", spec.y_dim))


def class_schema(classes: Iterable[str]) -> Schema:
    """A task's classes as the names of its target."""
    return Schema((), (Column("class", "category", categories=tuple(classes)),))


def plain_columns(name: str, count: int) -> tuple[Column, ...]:
    """Columns of numbers that are not standardised."""
    names = [name] if count == 1 else [f"{name}{i + 1}" for i in range(count)]
    return tuple(Column(one, "number") for one in names)


def note_unused(table: Table, schema: Schema, ignored: tuple[str, ...] | None) -> None:
    """Note columns that training did not have, e.g. an identifier; they are not used."""
    known = {column.name for column in schema.inputs + schema.targets} | set(ignored or ())
    unseen = [name for name in table.columns if name not in known]
    if unseen and ignored is not None:
        inputs = quote([column.name for column in schema.inputs])
        note(f"{table.where}: {quote(unseen)} not used, since training had no such column; the inputs are {inputs}")

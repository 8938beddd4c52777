"""Schema of tables: encode columns as inputs and targets of a net, and decode predictions.

Numeric columns are standardised by the mean and standard deviation of the training tasks, dates likewise as days since
1970; categorical columns are one-hot encoded. A column with missing values has an indicator of them besides. The schema
is stored with a run, so that the run adapts and predicts without its training files.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from metagrove.errors import InputError, quoted, shortened
from metagrove.files import Json
from metagrove.tables.cells import days, numbers, refuse, texts
from metagrove.task import Spec

Kind = Literal["number", "category", "date"]
Columns = Mapping[str, np.ndarray]
"""A table: a mapping from column names to cells."""
FIRST_ROW = 2
"""Number of the first row below the header, which is row 1 as in a spreadsheet."""
FARTHEST = 1e12
"""Largest distance from the mean in standard deviations; its square is finite in single precision."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column: a number or a date with its mean and standard deviation, or categorical with its categories."""

    name: str
    kind: Kind
    mean: float = 0.0
    std: float = 1.0
    categories: tuple[str, ...] = ()
    indicator: bool = False
    """Whether one more value tells if the cell is missing, 0 or 1; the cell is then encoded as zeros."""

    @property
    def width(self) -> int:
        """Number of values that encode one cell."""
        return len(self.encoded_names)

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """A name for each value that encodes a cell: the column's, or COLUMN=CATEGORY, and COLUMN missing."""
        each = tuple(f"{self.name}={one}" for one in self.categories) if self.kind == "category" else (self.name,)
        return (*each, f"{self.name} missing") if self.indicator else each

    def encode(self, cells: np.ndarray, where: str, rows: Sequence[int], *, fill: bool) -> np.ndarray:
        """Encode cells as an array of shape (n, width).

        A missing value raises an InputError, or with `fill` is encoded as zeros: the mean, or no category.
        """
        code = self._one_hot if self.kind == "category" else self._standardise
        encoded, missing = code(cells, where, rows)
        if missing.any() and not (fill or self.indicator):
            fix = "fill it in, or leave that row out: in the training tasks that column was complete"
            refuse(where, rows[int(np.flatnonzero(missing)[0])], self.name, f"the value is missing: {fix}")
        return np.concatenate([encoded, missing[:, None]], 1) if self.indicator else encoded

    def _standardise(self, cells: np.ndarray, where: str, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        values = (days if self.kind == "date" else numbers)(cells, self.name, where, rows)
        missing = np.isnan(values)
        standard = np.where(missing, 0.0, (values - self.mean) / self.std)
        if (far := np.flatnonzero(np.abs(standard) > FARTHEST)).size:
            at = int(far[0])
            refuse(
                where,
                rows[at],
                self.name,
                f"{shortened(cells[at])} is too far from the training tasks' mean, {self.mean:g}",
            )
        return standard[:, None], missing

    def _one_hot(self, cells: np.ndarray, where: str, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        names = texts(cells)
        index = {name: i for i, name in enumerate(self.categories)}
        codes = np.zeros((len(names), len(self.categories)))
        for at, name in enumerate(names):
            if name is None:
                continue
            if name not in index:
                refuse(
                    where,
                    rows[at],
                    self.name,
                    f"{quoted(name)} was not seen in training, only {quote(self.categories)}",
                )
            codes[at, index[name]] = 1.0
        return codes, np.array([name is None for name in names], bool)


@dataclasses.dataclass(frozen=True)
class Schema:
    """The input columns of a run and the target columns that it predicts."""

    inputs: tuple[Column, ...]
    targets: tuple[Column, ...]
    fill_missing: bool = False
    """Encode a missing input as the mean of the training tasks (a category: as zeros) instead of raising an error."""

    @property
    def classifies(self) -> bool:
        """Whether the target is categorical."""
        return self.targets[0].kind == "category"

    @property
    def x_dim(self) -> int:
        """Size of an encoded input row."""
        return sum(column.width for column in self.inputs)

    @property
    def y_dim(self) -> int:
        """Size of an encoded target row."""
        return sum(column.width for column in self.targets)

    @property
    def spec(self) -> Spec:
        """Shapes of the encoded inputs and targets."""
        return Spec(x_shape=(self.x_dim,), y_dim=self.y_dim)

    @property
    def labels(self) -> tuple[str, ...]:
        """Classes of a categorical target; empty for numeric targets."""
        return self.targets[0].categories

    def encode_inputs(self, columns: Columns, where: str, rows: Sequence[int] | None = None) -> np.ndarray:
        """Encode the input columns as an array of shape (n, x_dim).

        `rows` are row numbers in the file `where`, for error messages; by default they count from 2.
        """
        return encode(self.inputs, columns, where, rows, fill=self.fill_missing)

    def encode_targets(self, columns: Columns, where: str, rows: Sequence[int] | None = None) -> np.ndarray:
        """Encode the target columns as an array of shape (n, y_dim): standardised values, or one-hot labels."""
        return encode(self.targets, columns, where, rows, fill=False)

    def decode_targets(self, predictions: np.ndarray) -> dict[str, np.ndarray]:
        """Decode predictions to the user's units, or to the most probable label and columns TARGET=LABEL.

        The latter hold the probability of each label.
        """
        if self.classifies:
            return self._decode_labels(np.asarray(predictions, np.float64))
        values = np.asarray(predictions, np.float64)
        return {t.name: values[:, i] * t.std + t.mean for i, t in enumerate(self.targets)}

    def _decode_labels(self, log_probabilities: np.ndarray) -> dict[str, np.ndarray]:
        name, labels = self.targets[0].name, np.array(self.labels, object)
        each = {f"{name}={label}": np.exp(log_probabilities[:, i]) for i, label in enumerate(labels)}
        return {name: labels[log_probabilities.argmax(1)], **each}

    def decode_std(self, std: np.ndarray) -> np.ndarray:
        """Convert standard deviations of predictions to the user's units; those of probabilities do not change."""
        if self.classifies:
            return np.asarray(std, np.float64)
        return np.asarray(std, np.float64) * np.array([[target.std for target in self.targets]])

    def to_json(self) -> Json:
        """Convert to JSON-compatible data."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Schema":
        """Build a schema from the data that `to_json` returns."""
        try:
            parts = (tuple(_column(one) for one in data[part]) for part in ("inputs", "targets"))
            return cls(*parts, fill_missing=bool(data["fill_missing"]))
        except (KeyError, TypeError) as error:
            raise InputError(
                f"this is not a schema of metagrove ({error}): was it written by a newer version?"
            ) from error


def _column(data: Mapping[str, Any]) -> Column:
    return Column(**{**data, "categories": tuple(data["categories"])})


def migrate_schema(data: Any) -> Any:
    """A stored schema in the present format: before version 0.2, the standard deviation of a column was `sd`."""
    if not isinstance(data, Mapping):
        return data

    def column(one: Any) -> Any:
        return {"std" if key == "sd" else key: value for key, value in one.items()} if isinstance(one, Mapping) else one

    return {key: [*map(column, value)] if isinstance(value, list) else value for key, value in data.items()}


def encode(
    wanted: Sequence[Column], columns: Columns, where: str, rows: Sequence[int] | None, *, fill: bool
) -> np.ndarray:
    """Encode the given columns and concatenate them, as float32."""
    if not wanted:
        raise InputError(f"{where}: the columns of the inputs are not known: pass an array")
    refuse_missing_columns(wanted, columns, where)
    num_rows = len(columns[wanted[0].name])
    rows = range(FIRST_ROW, FIRST_ROW + num_rows) if rows is None else rows
    parts = [column.encode(np.asarray(columns[column.name]), where, rows, fill=fill) for column in wanted]
    return np.concatenate(parts, axis=1).astype(np.float32)


def refuse_missing_columns(wanted: Sequence[Column], columns: Columns, where: str) -> None:
    """Raise an InputError if a table lacks one of the columns."""
    if lacking := [column.name for column in wanted if column.name not in columns]:
        raise InputError(f"{where} has no column {quote(lacking)}, only {quote(list(columns))}")


def quote(names: Sequence[str], most: int = 10) -> str:
    """Format names for a message, at most `most` of them."""
    more = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(map(quoted, names[:most])) + more

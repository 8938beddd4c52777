"""What a table's columns mean, and how they become a net's numbers and back: x and y standardised, names one-hot.

Means and standard deviations are those of training tasks. A schema is stored with the run, so that the run can adapt
and predict without the files it was trained on.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.cells import numbers, refuse, texts
from metagrove.task import Spec

Kind = Literal["number", "category"]
Columns = Mapping[str, np.ndarray]
"""A table: each column's cells under its name."""
FIRST_ROW = 2
"""Rows are counted as a person does: the header is row 1."""
FARTHEST = 1e12
"""Standard deviations from the mean; the squares of such numbers are finite in single precision."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column: numbers with their mean and standard deviation, or the names it can hold."""

    name: str
    kind: Kind
    mean: float = 0.0
    sd: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        return 1 if self.kind == "number" else len(self.categories)

    def encode(self, cells: np.ndarray, where: str, rows: Sequence[int], *, fill: bool) -> np.ndarray:
        """(n, width); a missing value is refused, or with `fill` becomes the mean, or none of the categories."""
        code = self._standardised if self.kind == "number" else self._one_hot
        encoded, missing = code(cells, where, rows)
        if missing.any() and not fill:
            mend = "fill it in, or leave that row out (in training, --missing mean or drop does so)"
            refuse(where, rows[int(np.flatnonzero(missing)[0])], self.name, f"the value is missing: {mend}")
        return encoded

    def _standardised(self, cells: np.ndarray, where: str, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        values = numbers(cells, self.name, where, rows)
        missing = np.isnan(values)
        standard = np.where(missing, 0.0, (values - self.mean) / self.sd)
        if (far := np.flatnonzero(np.abs(standard) > FARTHEST)).size:
            at = int(far[0])
            refuse(where, rows[at], self.name, f"{cells[at]} is too far from the training tasks' mean, {self.mean:g}")
        return standard[:, None], missing

    def _one_hot(self, cells: np.ndarray, where: str, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        names = texts(cells)
        place = {name: i for i, name in enumerate(self.categories)}
        codes = np.zeros((len(names), len(self.categories)))
        for at, name in enumerate(names):
            if name is None:
                continue
            if name not in place:
                refuse(where, rows[at], self.name, f"{name!r} was not seen in training, only {shown(self.categories)}")
            codes[at, place[name]] = 1.0
        return codes, np.array([name is None for name in names], bool)


@dataclasses.dataclass(frozen=True)
class Schema:
    """The columns that a run reads and the ones it predicts."""

    inputs: tuple[Column, ...]
    targets: tuple[Column, ...]
    fill_missing: bool = False
    """Read a missing input as the training tasks' mean (of a category: as none of them) instead of refusing it."""

    @property
    def classifies(self) -> bool:
        """Is the target a name?"""
        return self.targets[0].kind == "category"

    @property
    def x_dim(self) -> int:
        """Numbers of one encoded input row."""
        return sum(column.width for column in self.inputs)

    @property
    def y_dim(self) -> int:
        """Numbers of one encoded target row."""
        return sum(column.width for column in self.targets)

    @property
    def spec(self) -> Spec:
        """What every task has in common."""
        return Spec(x_shape=(self.x_dim,), y_dim=self.y_dim)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of a classifier; none for numbers."""
        return self.targets[0].categories

    def encode_inputs(self, columns: Columns, where: str, rows: Sequence[int] | None = None) -> np.ndarray:
        """(n, x_dim). `rows` are the rows' numbers in the file `where`, for messages; by default from 2 on."""
        return encode(self.inputs, columns, where, rows, fill=self.fill_missing)

    def encode_targets(self, columns: Columns, where: str, rows: Sequence[int] | None = None) -> np.ndarray:
        """(n, y_dim): standardised values, or the one-hot code of the label."""
        return encode(self.targets, columns, where, rows, fill=False)

    def decode_targets(self, predictions: np.ndarray) -> dict[str, np.ndarray]:
        """Values in the user's units; or the likeliest label, and the probability of each as TARGET=LABEL."""
        if self.classifies:
            return self._decode_labels(np.asarray(predictions, np.float64))
        values = np.asarray(predictions, np.float64)
        return {t.name: values[:, i] * t.sd + t.mean for i, t in enumerate(self.targets)}

    def _decode_labels(self, log_probabilities: np.ndarray) -> dict[str, np.ndarray]:
        name, labels = self.targets[0].name, np.array(self.labels, object)
        each = {f"{name}={label}": np.exp(log_probabilities[:, i]) for i, label in enumerate(labels)}
        return {name: labels[log_probabilities.argmax(1)], **each}

    def undo_spread(self, sd: np.ndarray) -> np.ndarray:
        """Standard deviations of predictions in the user's units; probabilities are as they are."""
        if self.classifies:
            return np.asarray(sd, np.float64)
        return np.asarray(sd, np.float64) * np.array([[target.sd for target in self.targets]])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Schema":
        """The schema that `to_json` made plain."""
        try:
            parts = (tuple(_column(one) for one in data[part]) for part in ("inputs", "targets"))
            return cls(*parts, fill_missing=bool(data["fill_missing"]))
        except (KeyError, TypeError) as error:
            raise InputError(f"this is not a schema of metagrove ({error}): was it made by a newer one?") from error


def _column(data: Mapping[str, Any]) -> Column:
    return Column(**{**data, "categories": tuple(data["categories"])})


def encode(
    wanted: Sequence[Column], columns: Columns, where: str, rows: Sequence[int] | None, *, fill: bool
) -> np.ndarray:
    """The wanted columns side by side, float32."""
    refuse_lacking(wanted, columns, where)
    num_rows = len(columns[wanted[0].name])
    rows = range(FIRST_ROW, FIRST_ROW + num_rows) if rows is None else rows
    parts = [column.encode(np.asarray(columns[column.name]), where, rows, fill=fill) for column in wanted]
    return np.concatenate(parts, axis=1).astype(np.float32)


def refuse_lacking(wanted: Sequence[Column], columns: Columns, where: str) -> None:
    """Refuse a table without a column that is needed."""
    if lacking := [column.name for column in wanted if column.name not in columns]:
        raise InputError(f"{where} has no column {shown(lacking)}, only {shown(list(columns))}")


def shown(names: Sequence[str], most: int = 10) -> str:
    """Names for a message, not more than one can read."""
    more = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more

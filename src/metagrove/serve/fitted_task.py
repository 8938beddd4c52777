"""A run fitted to one task: the class that Python, the estimators and the shell commands share.

Array in, array out: `predict` of an array gives an array in the net's units (of a run on tables, standardised ones),
of a classifier log-probabilities. Table in, columns out: of a path, a DataFrame or a mapping of columns it gives a
mapping of columns in the user's units.

With `statistics="support"` a prediction does not depend on the other rows of the call: each row passes through the net
alone, and a net that normalises by statistics of a set uses those of the support set. With `statistics="query"` the
rows of one call go through the net together, and it normalises by them (transductive).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from metagrove import files
from metagrove.errors import InputError, quoted
from metagrove.files import Json
from metagrove.learner import Predictor
from metagrove.nets.predictors import HasStd, Statistics
from metagrove.serve.calibration import COVERAGE, TaskCalibration
from metagrove.serve.compiled import Answer, answer_rows, answer_set
from metagrove.serve.conformal import tempered
from metagrove.serve.queries import QueryRows, has_names, read_queries
from metagrove.serve.rows import input_rows, pad, padded_size
from metagrove.tables.schema import Schema
from metagrove.task import Spec
from metagrove.training import checkpoint

__all__ = ["FittedTask", "refuse_not_finite"]

ROWS_AT_ONCE, IMAGES_AT_ONCE = 1024, 16
"""Rows are processed in batches of this size, padded with zeros, so that one shape is compiled."""


@dataclasses.dataclass(frozen=True)
class FittedTask:
    """A learner fitted to one task; `Run.adapt` creates it, `load_fitted` loads a saved one.

    Args:
        learner: Settings of the learner as plain data.
        spec: Shapes of the inputs and targets.
        schema: Columns and their encoding; for images, the target alone with the classes of the task.
        predictor: The adapted predictor.
        support_size: Number of rows of the support set, with padding.
        about: Facts about the task: its rows, its clusters and the most similar known tasks.
        ignored: Columns of a file that are allowed and not read; None for any.
        statistics: Whose statistics normalise: the support set's, or those of the rows of one call ("query").
        task_embedding: The task embedding g; None for a learner that does not embed tasks.
        assignments: Soft assignment of each level; empty for a learner without clusters.
        calibration: Quantiles of intervals and temperature of probabilities; None for a run without calibration.

    Example:
        >>> import metagrove as mg
        >>> task = mg.load("toy-5shot-best").adapt([[-1.0], [0.0], [2.0]], [[-1.0], [1.0], [5.0]])
        >>> task.predict([[1.0], [3.0]]).shape
        (2, 1)
        >>> list(task.predict({"x": [1.0, 3.0]}))
        ['y', 'y_lower', 'y_upper']
    """

    learner: Json
    """The learner's settings as plain data."""
    spec: Spec
    schema: Schema
    """The columns; of images, the target alone, whose names are the task's classes."""
    predictor: Predictor
    support_size: int
    """Number of rows of the support set, with padding."""
    about: Json
    """The task's rows, its clusters, the most similar known tasks; see `standing`."""
    ignored: tuple[str, ...] | None = ()
    """Columns that a file may contain and that are ignored; None if any column may be."""
    statistics: Statistics = "support"
    """Statistics that normalise: those of the support set, or of the rows predicted together (transductive)."""
    task_embedding: np.ndarray | None = None
    """The task embedding g; None for a learner that does not embed tasks."""
    assignments: tuple[np.ndarray, ...] = ()
    """Each level's soft assignment, (K, K') with rows that sum to 1; empty for a learner without clusters."""
    calibration: TaskCalibration | None = None
    """Calibration of predictions; None for a run that is not calibrated, or with another number of inner steps."""

    def predict(self, x: Any) -> Any:
        """Predict the targets of new inputs of the task.

        Args:
            x: Array of inputs of shape (n, ...), or a table (path, DataFrame or mapping of columns); for images also a
                folder, the path of an image, a list of paths, or Pillow images.

        Returns:
            For an array, an array of shape (n, targets) in the net's units, or log-probabilities of shape (n, classes).
            For a table, a mapping of columns in the table's units: each target, the ends of its 90 % interval as
            TARGET_lower and TARGET_upper, and its standard deviation as TARGET_sd if the learner has one; for a
            classifier the most likely class, and the probability of each class as TARGET=CLASS.

        Raises:
            InputError: If the inputs do not fit the task; the message names row and column.
        """
        return self.columns(self._read(x)) if has_names(x) else self._values(self._encoded(x))

    def classify(self, x: Any) -> np.ndarray:
        """Predict the most likely class of each row.

        Args:
            x: New inputs, as for `predict`.

        Returns:
            Indices of the classes for an array, their names for a table.
        """
        numbers = self._values(self._encoded(x)).argmax(1)
        return np.array(self.schema.labels, object)[numbers] if has_names(x) else numbers

    def probabilities(self, x: Any) -> np.ndarray:
        """Predict the probability of each class.

        Args:
            x: New inputs, as for `predict`.

        Returns:
            Probabilities of shape (n, classes), in the order of `schema.labels`.
        """
        return np.exp(self._values(self._encoded(x)).astype(np.float64))

    def std(self, x: Any) -> Any:
        """Predict the standard deviation of each prediction.

        Args:
            x: New inputs, as for `predict`.

        Returns:
            Standard deviations in the form of `predict`; None if the learner does not provide them.
        """
        if not isinstance(self.predictor, HasStd):
            return None
        rows = self._encoded(x)
        return self._std_columns(rows) if has_names(x) else self._std(self.predictor, rows)

    def interval(self, x: Any, coverage: float = COVERAGE) -> Any:
        """Predict an interval for each value, which covers the stated part of the rows of new tasks.

        Args:
            x: New inputs, as for `predict`.
            coverage: 0.5, 0.8, 0.9 or 0.95.

        Returns:
            For an array, the lower and the upper ends, two arrays in the net's units; for a table, a mapping of columns
            TARGET_lower and TARGET_upper. None for a classifier, and for a run without calibration.

        Raises:
            InputError: If the inputs do not fit the task, or the coverage is not one of those.

        Example:
            >>> import metagrove as mg
            >>> task = mg.load("toy-5shot-best").adapt([[-1.0], [0.0], [2.0]], [[-1.0], [1.0], [5.0]])
            >>> lower, upper = task.interval([[1.0], [3.0]], coverage=0.8)
            >>> bool((lower < upper).all())
            True
        """
        if self.calibration is None or self.calibration.quantiles is None:
            return None
        rows = self._encoded(x)
        values = self._values(rows)
        return self._interval_columns(rows, values, coverage) if has_names(x) else self._ends(rows, values, coverage)

    def columns(self, queries: QueryRows, coverage: float = COVERAGE) -> dict[str, np.ndarray]:
        """Predict encoded rows in the units of the table.

        Args:
            queries: Encoded rows.
            coverage: Coverage of the intervals.

        Returns:
            A mapping of columns, as from `predict` for a table.

        Raises:
            InputError: If a prediction is not finite; the message names the row.
        """
        values = self._values(queries.x)
        found = self.schema.decode_targets(values) | self._interval_columns(queries.x, values, coverage)
        found |= self._std_columns(queries.x, "_sd")
        refuse_not_finite(found, queries)
        return found if queries.files is None else {"file": queries.files, **found}

    def _read(self, table: Any) -> QueryRows:
        return read_queries(table, self.spec, self.schema, self.ignored)

    def _encoded(self, x: Any) -> np.ndarray:
        return self._read(x).x if has_names(x) else input_rows(x, self.spec)

    def _values(self, x: np.ndarray) -> np.ndarray:
        values = self._answer(self.predictor, x)
        if not self.schema.classifies:
            return values
        temperature = 1.0 if self.calibration is None else self.calibration.temperature
        fewer = len(self.schema.labels) < self.spec.y_dim
        changed = fewer or temperature != 1.0
        return tempered(values[:, : len(self.schema.labels)], temperature) if changed else values

    def _ends(self, x: np.ndarray, values: np.ndarray, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        assert self.calibration is not None
        std = self._std(self.predictor, x) if isinstance(self.predictor, HasStd) else None
        half = self.calibration.half_widths(x, std, coverage)
        return values - half, values + half

    def _interval_columns(self, x: np.ndarray, values: np.ndarray, coverage: float) -> dict[str, np.ndarray]:
        if self.calibration is None or self.calibration.quantiles is None:
            return {}
        lower, upper = map(self.schema.decode_targets, self._ends(x, values, coverage))
        return {f"{name}{end}": side[name] for name in lower for end, side in (("_lower", lower), ("_upper", upper))}

    def _std(self, predictor: HasStd, x: np.ndarray) -> np.ndarray:
        return self._answer(predictor.std, x)[:, : self.schema.y_dim]

    def _std_columns(self, x: np.ndarray, end: str = "") -> dict[str, np.ndarray]:
        if not isinstance(self.predictor, HasStd):
            return {}
        target = self.schema.targets[0].name
        names = [f"{target}={label}" for label in self.schema.labels] or [one.name for one in self.schema.targets]
        each = self.schema.decode_std(self._std(self.predictor, x)).T
        return {name + end: values for name, values in zip(names, each, strict=True)}

    def _answer(self, answer: Answer, x: np.ndarray) -> np.ndarray:
        if self.statistics == "query":
            size = padded_size(len(x))
            together = answer_set(answer, jnp.asarray(pad(x, size)), jnp.asarray(np.arange(size) < len(x)))
            return np.asarray(together)[: len(x)]
        size = IMAGES_AT_ONCE if self.spec.is_image else ROWS_AT_ONCE
        pieces = [x[start : start + size] for start in range(0, len(x), size)]
        return np.concatenate(
            [np.asarray(answer_rows(answer, jnp.asarray(pad(piece, size))))[: len(piece)] for piece in pieces]
        )

    def save(self, folder: str | Path) -> None:
        """Save the task to a folder, which `load_fitted` reads; an older task there is replaced atomically.

        The folder has adapted.json (learner, columns, facts about the task, checksums) and adapted-….safetensors (the
        arrays of the predictor).

        Args:
            folder: The folder; it is created if it does not exist.

        Raises:
            RunError: If the folder cannot be written.
        """
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.save_error(path, error) from error
        checkpoint.save(path, "adapted", self.predictor, self.to_json())

    def to_json(self) -> Json:
        """Return everything but the arrays of the predictor as plain data.

        Returns:
            A JSON object.
        """
        return {
            "learner": self.learner,
            "spec": {"x_shape": list(self.spec.x_shape), "y_dim": self.spec.y_dim},
            "schema": self.schema.to_json(),
            "support_size": self.support_size,
            "about": self.about,
            "ignored": self.ignored,
            "statistics": self.statistics,
            "task_embedding": None if self.task_embedding is None else self.task_embedding.tolist(),
            "assignments": [level.tolist() for level in self.assignments],
            "calibration": files.as_json(self.calibration),
        }


def refuse_not_finite(columns: Mapping[str, np.ndarray], queries: QueryRows) -> None:
    """Raise an InputError if a prediction is not finite, naming the row of the table."""
    for name, values in columns.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            row = at if queries.rows is None else int(queries.rows[at])
            raise InputError(
                f"{queries.where}, row {row}: {quoted(name)} cannot be predicted: its inputs are too large"
            )

"""Estimators that follow the scikit-learn API: `fit` adapts a run to a new task, `predict` serves other rows of it.

Without a run they learn from those rows alone, by a ridge-penalised linear fit: the baseline for a run.
"""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from metagrove.errors import InputError
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.run import Run, load
from metagrove.tables.read import Table
from metagrove.tables.schema import Columns, Schema

__all__ = ["FewShotClassifier", "FewShotRegressor"]


class FewShot(BaseEstimator):
    """Abstract base class of both estimators."""

    classifies = False
    run_: Run
    """The loaded run."""
    task_: FittedTask
    """The fitted task."""

    def __init__(self, run: Any = None, *, steps: Any = None, alpha: Any = 1.0):  # settings are checked in `fit`
        self.run = run
        self.steps = steps
        self.alpha = alpha

    def _opened(self) -> Run:
        """Load the run, and check the kind of its targets."""
        run = self.run if isinstance(self.run, Run) else load(self.run)
        if run.classifies != self.classifies:
            right = "FewShotRegressor" if self.classifies else "FewShotClassifier"
            raise InputError(f"{run.folder.name} was trained for another kind of target: use {right}")
        return run

    def _expect(self, run: Run, X: Any) -> None:
        """Expect the columns that the run was trained on, by name and in any order if X has names; if the run's inputs
        have no names, X may have any. `validate_data` then checks X, and later rows against it.
        """
        schema = run.schema
        self.n_features_in_ = len(schema.inputs) if schema else int(np.prod(run.config.source.spec.x_shape))
        given = column_names(X)
        if run.config.source.schema is not None and schema and given is not None:
            known = [column.name for column in schema.inputs]
            self.feature_names_in_ = np.array(given if sorted(given) == sorted(known) else known, object)
        elif given is not None and len(given) == self.n_features_in_:
            self.feature_names_in_ = np.array(given, object)

    def _checked(self, run: Run, X: Any, *y: Any, **how: Any) -> Any:
        """X (and y) after scikit-learn's validation."""
        if run.config.source.spec.is_image:  # a row is all values of an image
            X = np.asarray(X)
            X = X.reshape(len(X), -1) / (255 if X.dtype == np.uint8 else 1)
        if run.config.source.schema is None:
            return validate_data(self, X, *y, reset=False, dtype=np.float32, **how)
        how["ensure_all_finite"] = False  # the schema checks it, names the cell and allows missing values
        return validate_data(self, X, *y, reset=False, dtype=None, **how)

    def _adapt(self, X: np.ndarray, y: np.ndarray) -> None:
        """Fit the run to checked rows by `Run.adapt`."""
        run, how = self.run_, {"steps": self.steps}
        if run.schema is None:
            self.task_ = run.adapt(self._images(X), np.array([str(one) for one in y]), **how)
        else:
            targets = {column.name: y[:, i] for i, column in enumerate(run.schema.targets)}
            self.task_ = run.adapt(rows_table(self._names(run.schema), X, targets), **how)

    def _names(self, schema: Schema) -> list[str]:
        """The run's inputs in the order of X."""
        known = [column.name for column in schema.inputs]
        given = list(getattr(self, "feature_names_in_", known))
        return given if sorted(given) == sorted(known) else known

    def _images(self, X: np.ndarray) -> np.ndarray:
        return X.reshape(len(X), *self.run_.config.source.spec.x_shape)

    def _forget(self) -> None:
        """Reset the state of an earlier fit."""
        for name in ("feature_names_in_", "n_features_in_", "task_", "model_"):
            self.__dict__.pop(name, None)

    def _queries(self, X: Any) -> Any:
        """New rows as the fitted task expects them: images as an array, other rows as a table."""
        X = self._checked(self.run_, X)
        return self._images(X) if self.run_.schema is None else rows_table(self._names(self.run_.schema), X)


class FewShotRegressor(RegressorMixin, FewShot):
    """Few-shot regression that follows the scikit-learn estimator API.

    Args:
        run: A run, its folder or the name of a released model; None for ridge regression on the support rows
            alone, as a baseline.
        steps: Number of inner steps; by default the number selected on validation tasks.
        alpha: Without a run, the L2 penalty.

    Example:
        >>> import metagrove as mg
        >>> model = mg.FewShotRegressor("toy-5shot-best").fit([[-1.0], [0.0], [2.0]], [-1.0, 1.0, 5.0])
        >>> model.predict([[1.0], [3.0]]).shape
        (2,)
    """

    def fit(self, X: Any, y: Any) -> "FewShotRegressor":
        """Adapt to a task.

        Args:
            X: Inputs of the support set, shape (n, features).
            y: Targets of shape (n,) or (n, targets).

        Returns:
            The estimator itself.

        Raises:
            InputError: If the run was trained for another kind of target, or the rows do not fit it.
            ValueError: If the rows cannot be used, as in scikit-learn.
        """
        self._forget()
        if self.run is None:
            X, y = validate_data(self, X, y, multi_output=True, y_numeric=True)
            self.model_ = make_pipeline(StandardScaler(), Ridge(alpha=self.alpha)).fit(X, y)
            return self
        self.run_ = self._opened()
        self._expect(self.run_, X)
        X, y = self._checked(self.run_, X, y, multi_output=True, y_numeric=True)
        self.one_target_ = y.ndim == 1
        targets = y[:, None] if y.ndim == 1 else y
        if targets.shape[1] != self.run_.config.source.spec.y_dim:
            raise ValueError(
                f"y has {targets.shape[1]} targets, but the run was trained on {self.run_.config.source.spec.y_dim}"
            )
        self._adapt(X, targets)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the targets of new rows of the task.

        Args:
            X: Inputs of shape (n, features).
            return_std: Also return standard deviations, if the learner of the run provides them (BMAML).

        Returns:
            Predictions with the shape of `y` in `fit`; with `return_std`, also their standard deviations.

        Raises:
            ValueError: If standard deviations are not available.
        """
        check_is_fitted(self)
        if self.run is None:
            if return_std:
                raise ValueError("without a run there is no standard deviation: omit return_std")
            return self.model_.predict(validate_data(self, X, reset=False))
        rows = self._queries(X)
        values = self._targets(self.task_.predict(rows))
        if not return_std:
            return values
        std = self.task_.std(rows)
        if std is None:
            raise ValueError("this run's learner has no standard deviation: omit return_std, or train BMAML")
        return values, self._targets(std)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Predict an interval for each value of new rows of the task.

        Args:
            X: Inputs of shape (n, features).
            coverage: 0.5, 0.8, 0.9 or 0.95: the part of the rows of new tasks that intervals cover.

        Returns:
            The lower and the upper ends, with the shape of `y` in `fit`.

        Raises:
            ValueError: If there is no run, or the run is not calibrated.
        """
        check_is_fitted(self)
        found = None if self.run is None else self.task_.interval(self._queries(X), coverage)
        if found is None:
            raise ValueError("intervals need a run that is calibrated: mg.calibrate(run)")
        return self._targets(found, "_lower"), self._targets(found, "_upper")

    def _targets(self, columns: Columns, end: str = "") -> np.ndarray:
        each = np.stack([columns[column.name + end] for column in self.task_.schema.targets], 1)
        return each[:, 0] if self.one_target_ else each

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class FewShotClassifier(ClassifierMixin, FewShot):
    """Few-shot classification that follows the scikit-learn estimator API.

    Args:
        run: A run, its folder or the name of a released model; None for logistic regression on the support rows
            alone, as a baseline.
        steps: Number of inner steps; by default the number selected on validation tasks.
        alpha: Without a run, the L2 penalty.

    Example:
        >>> import metagrove as mg
        >>> model = mg.FewShotClassifier().fit([[-1.0], [0.0], [2.0], [3.0]], ["low", "low", "high", "high"])
        >>> str(model.predict([[4.0]])[0])
        'high'
    """

    classifies = True

    def fit(self, X: Any, y: Any) -> "FewShotClassifier":
        """Adapt to a task.

        Args:
            X: Inputs of the support set, shape (n, features).
            y: Classes of shape (n,).

        Returns:
            The estimator itself.

        Raises:
            InputError: If the run was trained for another kind of target, or the rows do not fit it.
            ValueError: If the rows cannot be used, as in scikit-learn.
        """
        self._forget()
        if self.run is None:
            X, y = validate_data(self, X, y)
            check_classification_targets(y)
            self.classes_ = np.unique(y)
            self.model_ = make_pipeline(StandardScaler(), LogisticRegression(C=1 / self.alpha)).fit(X, y)
            return self
        self.run_ = self._opened()
        self._expect(self.run_, X)
        X, y = self._checked(self.run_, X, y)
        check_classification_targets(y)
        schema = self.run_.schema
        self.classes_ = np.unique(y) if schema is None else np.sort(label_values(schema.labels, y.dtype))
        self._adapt(X, y[:, None] if schema is not None else y)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each class.

        Args:
            X: Inputs of shape (n, features).

        Returns:
            Probabilities of shape (n, classes), in the order of `classes_`.
        """
        check_is_fitted(self)
        if self.run is None:
            return self.model_.predict_proba(validate_data(self, X, reset=False))
        each = self.task_.probabilities(self._queries(X))
        labels = label_values(self.task_.schema.labels, self.classes_.dtype)
        return each[:, np.argsort(labels, kind="stable")]

    def predict(self, X: Any) -> np.ndarray:
        """Predict the most likely class of each row.

        Args:
            X: Inputs of shape (n, features).

        Returns:
            Classes of shape (n,).
        """
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]


def column_names(X: Any) -> list[str] | None:
    """Names of the columns of a DataFrame; None for an array, or if not all are text."""
    names: list[Any] = list(getattr(X, "columns", ()))
    return names if names and all(isinstance(name, str) for name in names) else None


def rows_table(names: list[str], X: np.ndarray, targets: Columns | None = None) -> Table:
    """Validated rows as a table of the run's columns, with row numbers from 0."""
    columns = {name: X[:, i] for i, name in enumerate(names)}
    return Table("X", {**columns, **(targets or {})}, np.arange(len(X)))


def label_values(labels: tuple[str, ...], dtype: np.dtype) -> np.ndarray:
    """Labels with the dtype of y."""
    if dtype.kind in "iuf":
        return np.array([float(label) for label in labels]).astype(dtype)
    return np.array(labels, object if dtype.kind == "O" else str)

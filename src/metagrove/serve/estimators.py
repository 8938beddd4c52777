"""scikit-learn's manners: `fit` adapts a run to a new task from a few rows, `predict` is for others of that task.

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
from metagrove.serve.adapt import fit, image_schema, plain_columns
from metagrove.serve.fitted import Fitted
from metagrove.serve.run import Run, load
from metagrove.tables.schema import Columns, Schema


class FewShot(BaseEstimator):
    """Abstract: what both have in common."""

    classifies = False
    run_: Run
    """The run, opened."""
    task_: Fitted
    """What it was fitted to."""

    def __init__(self, run: Any = None, *, steps: Any = None, alpha: Any = 1.0):  # settings are looked at in `fit`
        self.run = run
        self.steps = steps
        self.alpha = alpha

    def _opened(self) -> Run:
        """The run, of the right kind."""
        run = self.run if isinstance(self.run, Run) else load(self.run)
        if (run.metric == "accuracy") != self.classifies:
            right = "FewShotRegressor" if self.classifies else "FewShotClassifier"
            raise InputError(f"{run.folder.name} was trained for the other kind of target: use {right}")
        return run

    def _expect(self, run: Run, X: Any) -> None:
        """Expect the columns that the run was trained on, by name where X has names: `validate_data` then checks X."""
        schema: Schema | None = getattr(run.config.source, "schema", None)
        self.n_features_in_ = int(np.prod(run.config.source.spec.x_shape)) if schema is None else len(schema.inputs)
        if schema is not None and hasattr(X, "columns"):
            self.feature_names_in_ = np.array([column.name for column in schema.inputs], object)

    def _checked(self, run: Run, X: Any, *y: Any, **how: Any) -> Any:
        """X (and y) as scikit-learn checks them."""
        schema: Schema | None = getattr(run.config.source, "schema", None)
        if len(run.config.source.spec.x_shape) > 1:  # images: a row is all values of one
            X = np.asarray(X)
            X = X.reshape(len(X), -1) / (255 if X.dtype == np.uint8 else 1)
        if schema is None:
            return validate_data(self, X, *y, reset=False, dtype=np.float32, **how)
        how["ensure_all_finite"] = False  # the schema names the cell that is not, and knows what may be missing
        return validate_data(self, X, *y, reset=False, dtype=None, **how)

    def _inputs(self, run: Run, X: np.ndarray) -> np.ndarray:
        """What the net is given for checked rows."""
        schema: Schema | None = getattr(run.config.source, "schema", None)
        if schema is None:
            return X.reshape(len(X), *run.config.source.spec.x_shape)
        columns = {column.name: X[:, i] for i, column in enumerate(schema.inputs)}
        return schema.encode_inputs(columns, "X", range(len(X)))

    def _forget(self) -> None:
        """Nothing of an earlier fit stays."""
        for name in ("feature_names_in_", "n_features_in_", "task_", "model_"):
            self.__dict__.pop(name, None)

    def _predicted(self, X: Any) -> Columns:
        """A fitted task's columns for new rows."""
        return self.task_.columns(self._inputs(self.run_, self._checked(self.run_, X)))


class FewShotRegressor(RegressorMixin, FewShot):
    """Predicts numbers from a few rows of a task.

    `run` is a trained run or its folder, `steps` inner steps (by default as validated); without a run, `alpha` is the
    penalty.
    """

    def fit(self, X: Any, y: Any) -> "FewShotRegressor":
        """Adapt to a task's few rows."""
        self._forget()
        if self.run is None:
            X, y = validate_data(self, X, y, multi_output=True, y_numeric=True)
            self.model_ = make_pipeline(StandardScaler(), Ridge(alpha=self.alpha)).fit(X, y)
            return self
        self.run_ = self._opened()
        self._expect(self.run_, X)
        X, y = self._checked(self.run_, X, y, multi_output=True, y_numeric=True)
        schema, targets = target_columns(self.run_, y)
        encoded = schema.encode_targets(targets, "y", range(len(y)))
        self.task_ = fit(self.run_, schema, self._inputs(self.run_, X), encoded, self.steps, ())
        self.one_target_ = y.ndim == 1
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Values; with `return_std`, also their standard deviations, from a run whose learner knows them (BMAML)."""
        check_is_fitted(self)
        if self.run is None:
            if return_std:
                raise ValueError("without a run there is no standard deviation: leave return_std out")
            return self.model_.predict(validate_data(self, X, reset=False))
        found, names = self._predicted(X), [column.name for column in self.task_.schema.targets]
        if return_std and f"{names[0]}_sd" not in found:
            raise ValueError("this run's learner has no standard deviation: leave return_std out, or train BMAML")
        parts = [np.stack([found[name + end] for name in names], 1) for end in (["", "_sd"] if return_std else [""])]
        values = [part[:, 0] if self.one_target_ else part for part in parts]
        return tuple(values) if return_std else values[0]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class FewShotClassifier(ClassifierMixin, FewShot):
    """Predicts classes from a few rows of a task. Settings are those of `FewShotRegressor`."""

    classifies = True

    def fit(self, X: Any, y: Any) -> "FewShotClassifier":
        """Adapt to a task's few rows."""
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
        schema, self.classes_, codes = class_codes(self.run_, y)
        self.task_ = fit(self.run_, schema, self._inputs(self.run_, X), codes, self.steps, ())
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each of `classes_`."""
        check_is_fitted(self)
        if self.run is None:
            return self.model_.predict_proba(validate_data(self, X, reset=False))
        found, target = self._predicted(X), self.task_.schema.targets[0]
        each = np.stack([found[f"{target.name}={label}"] for label in target.categories], 1)
        return each[:, np.argsort(label_values(target.categories, self.classes_.dtype), kind="stable")]

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]


def target_columns(run: Run, y: np.ndarray) -> tuple[Schema, dict[str, np.ndarray]]:
    """The run's columns, and the targets under their names."""
    spec = run.config.source.spec
    schema = getattr(run.config.source, "schema", None) or Schema(
        plain_columns("x", int(np.prod(spec.x_shape))), plain_columns("y", spec.y_dim)
    )
    rows = y[:, None] if y.ndim == 1 else y
    if rows.shape[1] != len(schema.targets):
        raise ValueError(f"y has {rows.shape[1]} targets, but the run was trained on {len(schema.targets)}")
    return schema, {column.name: rows[:, i] for i, column in enumerate(schema.targets)}


def class_codes(run: Run, y: np.ndarray) -> tuple[Schema, np.ndarray, np.ndarray]:
    """The run's columns, the classes in order, and each row's one-hot code."""
    schema: Schema | None = getattr(run.config.source, "schema", None)
    if schema is not None:
        codes = schema.encode_targets({schema.targets[0].name: y}, "y", range(len(y)))
        return schema, np.sort(label_values(schema.labels, y.dtype)), codes
    classes, numbers = np.unique(y, return_inverse=True)
    ways = run.config.source.spec.y_dim
    if not 2 <= len(classes) <= ways:
        raise ValueError(f"y has {len(classes)} classes, but the run tells 2 to {ways} apart")
    return image_schema([str(one) for one in classes]), classes, np.eye(ways, dtype=np.float32)[numbers]


def label_values(labels: tuple[str, ...], dtype: np.dtype) -> np.ndarray:
    """Labels in the kind that y has: numbers if y has numbers."""
    if dtype.kind in "iuf":
        return np.array([float(label) for label in labels]).astype(dtype)
    return np.array(labels, object if dtype.kind == "O" else str)

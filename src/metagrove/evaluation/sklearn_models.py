"""Baselines without meta-learning: scikit-learn models fitted to each task alone, or one model for all tasks.

Their settings (regularisation, kernel) are selected on validation tasks, as those of a learner are.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from metagrove.errors import InputError
from metagrove.keys import Purpose, key_for
from metagrove.losses import is_better
from metagrove.outer import map_drawn, task_keys, whole_task
from metagrove.sources.source import Source
from metagrove.task import Split

Model = Callable[[], Any]
"""Creates an unfitted scikit-learn model."""
ALMOST_NEVER = 1e-6
"""Probability of a class that is absent from the training rows."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """Tasks as NumPy arrays with axes (task, draw, row, column); each draw of a task has other support rows."""

    support_x: np.ndarray
    support_y: np.ndarray
    support_mask: np.ndarray
    query_x: np.ndarray
    query_y: np.ndarray
    query_mask: np.ndarray
    family: np.ndarray


def draw_tasks(source: Source, split: Split, *, num_draws: int, seed: int) -> Draws:
    """Draw the same tasks, with the same support and query rows, as `Run.scores` does for that seed."""
    purpose: Purpose = "validation" if split == "validation" else "test"
    key = key_for(purpose, seed)
    drawn = [
        map_drawn(whole_task, part, task_keys(jax.random.fold_in(key, i), num_draws))
        for i, part in enumerate(source.parts(split))
    ]

    def stacked(pick: Callable[[Any], np.ndarray]) -> np.ndarray:
        return np.stack([np.asarray(pick(task)) for task in drawn])

    return Draws(
        stacked(lambda t: t.support.x),
        stacked(lambda t: t.support.y),
        stacked(lambda t: t.support.mask),
        stacked(lambda t: t.query.x),
        stacked(lambda t: t.query.y),
        stacked(lambda t: t.query.mask),
        stacked(lambda t: t.family[0]),
    )


def score(
    draws: Draws, predict: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], *, classifies: bool
) -> np.ndarray:
    """Score each task: mean squared error, or accuracy in percent.

    Args:
        draws: The tasks.
        predict: Maps support inputs, support targets and query inputs to predictions.
        classifies: Whether targets are classes.

    Returns:
        The mean score of each task over its draws.
    """
    num_tasks, num_draws = draws.support_mask.shape[:2]
    values = np.zeros((num_tasks, num_draws))
    for at in np.ndindex(num_tasks, num_draws):
        support, query = draws.support_mask[at], draws.query_mask[at]
        prediction = predict(draws.support_x[at][support], draws.support_y[at][support], draws.query_x[at][query])
        truth = draws.query_y[at][query]
        if classifies:
            values[at] = 100 * (prediction.argmax(1) == truth.argmax(1)).mean()
        else:
            values[at] = np.square(prediction - truth).mean()
    return values.mean(1)


def per_task(make: Model, *, classifies: bool) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Make a `predict` that fits a model to the support set of each task."""

    def predict(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():  # convergence warnings are common with few rows
            warnings.simplefilter("ignore")
            return fit_model(make, x, y, classifies=classifies)(query)

    return predict


def fit_model(make: Model, x: np.ndarray, y: np.ndarray, *, classifies: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a model; return a function from inputs to values or class probabilities."""
    if not classifies:
        model = make().fit(x, y)
        return lambda rows: model.predict(rows).reshape(len(rows), -1)
    labels = y.argmax(1)
    if len(set(labels)) == 1:
        return lambda rows: np.repeat(y[:1], len(rows), axis=0)
    model = make().fit(x, labels)

    def probabilities(rows: np.ndarray) -> np.ndarray:
        result = np.full((len(rows), y.shape[1]), ALMOST_NEVER)
        result[:, model.classes_] = model.predict_proba(rows)
        return result

    return probabilities


def linear_models(*, classifies: bool) -> dict[str, Model]:
    """Ridge or logistic regression with different regularisation strengths."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if classifies:
        return {f"C {c:g}": lambda c=c: LogisticRegression(C=c, max_iter=200) for c in (0.1, 1, 10, 100)}
    return {f"penalty {a:g}": lambda a=a: Ridge(alpha=a) for a in (1e-6, 0.01, 0.1, 1, 10)}


def gaussian_processes(*, classifies: bool) -> dict[str, Model]:
    """Gaussian processes whose length scale maximises the marginal likelihood of each task."""
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    smooth = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, (0.1, 100.0))
    if classifies:
        return {"smooth": lambda: GaussianProcessClassifier(smooth)}
    noise = WhiteKernel(1e-3, (1e-6, 1.0))
    return {
        "smooth": lambda: GaussianProcessRegressor(smooth + noise),
        "smooth, centred": lambda: GaussianProcessRegressor(smooth + noise, normalize_y=True),
    }


def global_models(*, classifies: bool) -> dict[str, Model]:
    """Gradient boosting and linear models for the rows of all training tasks."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multioutput import MultiOutputRegressor

    if classifies:
        return {
            "boosted trees": lambda: HistGradientBoostingClassifier(random_state=0),
            "linear": lambda: LogisticRegression(max_iter=500),
        }
    return {
        "boosted trees": lambda: MultiOutputRegressor(HistGradientBoostingRegressor(random_state=0)),
        "linear": lambda: Ridge(alpha=1.0),
    }


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A family of models, and whether they are fitted to each task alone or once to all training rows."""

    label: str
    models: Callable[..., dict[str, Model]]
    each_task: bool = True


BASELINES = {
    "ridge": Baseline("ridge, each task alone", linear_models),
    "gaussian-process": Baseline("Gaussian process, each task alone", gaussian_processes),
    "global": Baseline("one model for all, no adaptation", global_models, each_task=False),
}


def best_model(source: Source, baseline: Baseline, validation: Draws, *, classifies: bool) -> tuple[str, Any]:
    """Return the name and the `predict` of the variant with the best mean score on validation tasks."""
    metric = "accuracy" if classifies else "mse"
    best = None
    for name, make in baseline.models(classifies=classifies).items():
        fit = per_task if baseline.each_task else functools.partial(for_all_tasks, source)
        predict = fit(make, classifies=classifies)
        value = float(score(validation, predict, classifies=classifies).mean())
        if best is None or is_better(value, best[0], metric):
            best = value, name, predict
    assert best is not None
    return best[1], best[2]


def for_all_tasks(
    source: Source, make: Model, *, classifies: bool
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Make a `predict` from one model of all training rows, which ignores the support set."""
    rows = source.rows("train")
    if rows is None:
        raise InputError(f"{type(source).__name__} has no training rows to which one model could be fitted")
    predict = fit_model(make, *map(np.asarray, rows), classifies=classifies)
    return lambda _x, _y, query: predict(query)

"""What people would use without meta-learning, on the same tasks: a fit for each task alone, one model for all.

Each is scikit-learn's. Settings (a penalty, a kernel) are chosen on validation tasks, as a learner's are.
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
"""Makes a fresh scikit-learn model."""
ALMOST_NEVER = 1e-6
"""Probability of a class that the model has not seen."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """Tasks in plain arrays: each task some times, with other rows as support; axes task, draw, row, column."""

    support_x: np.ndarray
    support_y: np.ndarray
    support_mask: np.ndarray
    query_x: np.ndarray
    query_y: np.ndarray
    query_mask: np.ndarray
    family: np.ndarray


def draw_tasks(source: Source, split: Split, *, num_draws: int, seed: int) -> Draws:
    """The very draws that `Run.scores` has for that seed."""
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
    """Each task's score: mean squared error, or accuracy in percent. `predict` is given a support and query inputs."""
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
    """Fit the support alone."""

    def predict(x: np.ndarray, y: np.ndarray, query: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():  # a few rows seldom please an optimiser, and the scores tell how well it did
            warnings.simplefilter("ignore")
            return fitted(make, x, y, classifies=classifies)(query)

    return predict


def fitted(make: Model, x: np.ndarray, y: np.ndarray, *, classifies: bool) -> Callable[[np.ndarray], np.ndarray]:
    """The model fitted to these rows: inputs to values, or to probabilities."""
    if not classifies:
        model = make().fit(x, y)
        return lambda rows: model.predict(rows).reshape(len(rows), -1)
    labels = y.argmax(1)
    if len(set(labels)) == 1:
        return lambda rows: np.repeat(y[:1], len(rows), axis=0)
    model = make().fit(x, labels)

    def probabilities(rows: np.ndarray) -> np.ndarray:
        found = np.full((len(rows), y.shape[1]), ALMOST_NEVER)
        found[:, model.classes_] = model.predict_proba(rows)
        return found

    return probabilities


def linear_models(*, classifies: bool) -> dict[str, Model]:
    """Straight lines, or logistic regression, with more and less of a penalty."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if classifies:
        return {f"C {c:g}": lambda c=c: LogisticRegression(C=c, max_iter=200) for c in (0.1, 1, 10, 100)}
    return {f"penalty {a:g}": lambda a=a: Ridge(alpha=a) for a in (1e-6, 0.01, 0.1, 1, 10)}


def gaussian_processes(*, classifies: bool) -> dict[str, Model]:
    """Smooth functions; each task's own marginal likelihood chooses how smooth."""
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
    """Trees and lines over all training rows."""
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
class Yardstick:
    """A kind of model, and whether it is fitted to each task alone or once to all training rows."""

    label: str
    models: Callable[..., dict[str, Model]]
    each_task: bool = True


YARDSTICKS = {
    "ridge": Yardstick("ridge, each task alone", linear_models),
    "gaussian-process": Yardstick("Gaussian process, each task alone", gaussian_processes),
    "global": Yardstick("one model for all, no adaptation", global_models, each_task=False),
}


def best_model(source: Source, yardstick: Yardstick, validation: Draws, *, classifies: bool) -> tuple[str, Any]:
    """The variant with the best mean on validation tasks, and its `predict`."""
    metric = "accuracy" if classifies else "mse"
    best = None
    for name, make in yardstick.models(classifies=classifies).items():
        fit = per_task if yardstick.each_task else functools.partial(for_all, source)
        predict = fit(make, classifies=classifies)
        value = float(score(validation, predict, classifies=classifies).mean())
        if best is None or is_better(value, best[0], metric):
            best = value, name, predict
    assert best is not None
    return best[1], best[2]


def for_all(
    source: Source, make: Model, *, classifies: bool
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """One model of all training rows; a task's support is not looked at."""
    rows = source.rows("train")
    if rows is None:
        raise InputError(f"{type(source).__name__} has no tables whose training rows one model could be fitted to")
    predict = fitted(make, *map(np.asarray, rows), classifies=classifies)
    return lambda _x, _y, query: predict(query)

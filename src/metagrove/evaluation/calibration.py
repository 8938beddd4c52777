"""Calibration: whether the uncertainty of predictions agrees with their errors, on the queries of test tasks.

values:   coverage of central Gaussian intervals; expected calibration error, the mean of |coverage - level| over
          levels; negative log-likelihood of a Gaussian with the predicted mean and standard deviation
classes:  coverage of the smallest sets of classes that hold at least the level in probability; expected calibration
          error, the mean of |accuracy - confidence| over bins of confidence; negative log-likelihood
"""

import dataclasses
import statistics as distributions
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from metagrove.errors import InputError
from metagrove.evaluation.summaries import as_run, learner_name
from metagrove.learner import Info, Predictor
from metagrove.losses import metric_of
from metagrove.nets.predictors import HasStd
from metagrove.outer import probe, task_keys
from metagrove.serve.run import Run, draws_of
from metagrove.task import Task
from metagrove.training.scores import ci95, test_parts

__all__ = ["Calibration", "measure_calibration"]

SHOWN_LEVELS = (0.5, 0.9)
LEVELS = tuple(np.linspace(0.05, 0.95, 19).tolist())
"""Levels over which the expected calibration error of values is a mean."""
BINS = 15
"""Bins of confidence of a classifier."""
SMALL = 1e-12


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Calibration of one run on test tasks."""

    run: str
    learner: str
    num_tasks: int
    seed: int
    """Random seed of the test tasks."""
    metric: str
    value: float
    """Mean of the metric over tasks."""
    nll: float
    """Negative log-likelihood of a query, in nats; of values, in the net's units."""
    nll_ci95: float
    ece: float
    """Expected calibration error, from 0 to 1."""
    coverage: dict[str, float]
    """Share of targets inside the interval, or the set of classes, of each level."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """Predictions for query sets; the arrays have one row per task."""

    prediction: np.ndarray  # (tasks, queries, y)
    std: np.ndarray | None
    y: np.ndarray
    mask: np.ndarray  # (tasks, queries)


def measure_calibration(run: Run | str | Path, *, num_tasks: int = 2000, seed: int = 0) -> Calibration:
    """Measure how well the predicted uncertainty of a run agrees with its errors.

    Args:
        run: A run, its folder, or the name of a released model. A regression run needs a learner with a standard
            deviation: Grove, BMAML, PLATIPUS or LLAMA; a classifier may be any.
        num_tasks: Number of test tasks.
        seed: Random seed of the test tasks.

    Returns:
        Coverage, expected calibration error and negative log-likelihood, after the number of inner steps that was
        selected on validation tasks.

    Raises:
        InputError: If the learner of a regression run has no standard deviation.

    Example:
        >>> import metagrove as mg
        >>> mg.measure_calibration("runs/toy-5shot-bmaml-s0", num_tasks=500).coverage  # doctest: +SKIP
        {'0.5': 0.61, '0.9': 0.93}
    """
    run = as_run(run)
    answers = predict_tests(run, num_tasks, seed)
    if run.classifies:
        nll, coverage, ece = of_classes(answers)
    elif answers.std is None:
        raise InputError(
            f"{learner_name(run)} predicts no standard deviation: measure runs of grove, bmaml, platipus or llama"
        )
    else:
        nll, coverage, ece = of_values(answers)
    score = metric_of(run.config.learner.loss).score
    values = jax.vmap(score)(*(jnp.asarray(part) for part in (answers.prediction, answers.y, answers.mask)))
    return Calibration(
        run=run.folder.name,
        learner=learner_name(run),
        num_tasks=len(nll),
        seed=seed,
        metric=run.metric,
        value=float(values.mean()),
        nll=float(nll.mean()),
        nll_ci95=float(ci95(nll)),
        ece=ece,
        coverage={f"{level:g}": coverage[level] for level in SHOWN_LEVELS},
    )


def predict_tests(run: Run, num_tasks: int, seed: int) -> Answers:
    """Adapt to test tasks, as many of each part of the source, and predict their queries."""
    parts = test_parts(run.config.source, seed)
    sizes = draws_of(num_tasks, len(parts), again=run.config.source.repeats_tasks)
    steps, chunk = run.inner_steps, run.config.training.task_chunk_size
    learner, meta = run.config.learner, run.meta
    found = [
        probe(learner, meta, part, task_keys(key, size), keep_answers, steps=steps, task_chunk_size=chunk)
        for (part, key), size in zip(parts, sizes, strict=True)
    ]
    columns = [None if column[0] is None else np.concatenate(column) for column in zip(*found, strict=True)]
    prediction, std, y, mask = columns
    assert prediction is not None
    assert y is not None
    assert mask is not None
    return Answers(prediction, std, y, mask)


def keep_answers(task: Task, predictor: Predictor, info: Info) -> tuple[Array, Array | None, Array, Array]:
    """For `outer.probe`: predictions for the queries, and their standard deviations if there are any."""
    del info
    query = task.query
    prediction = predictor(query.x, query.mask)
    std = predictor.std(query.x, query.mask) if isinstance(predictor, HasStd) else None
    return prediction, std, query.y, query.mask


Found = tuple[np.ndarray, dict[float, float], float]
"""Negative log-likelihood of each task, coverage by level, and expected calibration error."""


def of_values(answers: Answers) -> Found:
    """Calibration of Gaussian predictions."""
    assert answers.std is not None
    std = np.maximum(answers.std, SMALL)
    errors = (answers.y - answers.prediction) / std
    nll = (np.square(errors) / 2 + np.log(std) + np.log(2 * np.pi) / 2).mean(-1)
    inside = np.abs(errors)[answers.mask]
    half_widths = {level: distributions.NormalDist().inv_cdf(0.5 + level / 2) for level in {*LEVELS, *SHOWN_LEVELS}}
    coverage = {level: float((inside <= width).mean()) for level, width in half_widths.items()}
    ece = float(np.mean([abs(coverage[level] - level) for level in LEVELS]))
    return task_means(nll, answers.mask), coverage, ece


def of_classes(answers: Answers) -> Found:
    """Calibration of a classifier's probabilities."""
    probabilities, real = np.exp(answers.prediction), answers.mask
    true = answers.y.argmax(-1)
    nll = -np.take_along_axis(answers.prediction, true[..., None], axis=-1)[..., 0]
    rows, labels = probabilities[real], true[real]
    coverage = {level: covered(rows, labels, level) for level in SHOWN_LEVELS}
    return task_means(nll, real), coverage, binned_error(rows.max(1), rows.argmax(1) == labels)


def task_means(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over the queries of each task."""
    return np.where(mask, values, 0).sum(1) / np.maximum(mask.sum(1), 1)


def covered(probabilities: np.ndarray, labels: np.ndarray, level: float) -> float:
    """Share of rows whose class is in the smallest set of classes that holds at least `level` in probability."""
    order = np.argsort(-probabilities, axis=1)
    in_order = np.take_along_axis(probabilities, order, axis=1)
    before = np.cumsum(in_order, axis=1) - in_order
    rank = (order == labels[:, None]).argmax(1)
    return float((np.take_along_axis(before, rank[:, None], axis=1)[:, 0] < level).mean())


def binned_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error: the mean over bins, weighted by their rows, of |accuracy - confidence|."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(right[bins == b].mean() - confidence[bins == b].mean()) * (bins == b).mean() for b in set(bins)]
    return float(sum(gaps))

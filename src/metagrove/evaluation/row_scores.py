"""Scores of single predictions on test tasks, in the units of the columns: errors, coverage of intervals, recall.

Every test task weighs the same. Predictions are those of fitted tasks, i.e. of the served method.
"""

import dataclasses

import numpy as np

from metagrove.files import OMIT_NONE
from metagrove.serve.calibrate import Draws, draw_rows, split_tasks
from metagrove.serve.calibration import COVERAGE, Calibration, read_calibration
from metagrove.serve.conformal import log_loss
from metagrove.serve.run import Run
from metagrove.serve.support import array_schema
from metagrove.tables.schema import Schema
from metagrove.training.scores import ci95

__all__ = ["ClassScores", "Interval", "ReliabilityBin", "RowScores", "TargetScores", "score_rows"]

NUM_DRAWS = 4
SEED = 1
BINS = 10
"""Bins of the predicted probability, for reliability."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """Intervals of one target on test tasks."""

    asked: float
    """Requested coverage."""
    coverage: float
    """Share of the true values inside, a mean over tasks."""
    coverage_ci95: float
    width: float
    """Mean width, in the target's units."""


@dataclasses.dataclass(frozen=True)
class TargetScores:
    """Errors of one target, in its units."""

    rmse: float
    """Root of the mean over tasks of the mean squared error."""
    r2: float
    """1 - mean squared error / variance of the target over all test rows."""
    interval: Interval | None = dataclasses.field(default=None, metadata=OMIT_NONE)


@dataclasses.dataclass(frozen=True)
class ReliabilityBin:
    """Predictions whose largest probability lies in one bin."""

    probability: float
    """Mean probability of the predicted class."""
    accuracy: float
    """Share of predictions that are right."""
    rows: int


@dataclasses.dataclass(frozen=True)
class ClassScores:
    """Scores of a classifier, over rows and by class."""

    accuracy: float
    """In percent, over rows."""
    balanced_accuracy: float
    """Mean of the recalls, in percent."""
    recall: dict[str, float]
    """Recall of each class, in percent."""
    rows: dict[str, int]
    """Number of rows of each class."""
    log_loss: float
    calibration_error: float
    """Expected calibration error: mean distance of probability and accuracy over bins."""
    reliability: list[ReliabilityBin]


@dataclasses.dataclass(frozen=True)
class RowScores:
    """Scores of single predictions on test tasks."""

    num_tasks: int
    num_rows: int
    shots: int
    """Number of support rows."""
    targets: dict[str, TargetScores] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    classes: ClassScores | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    calibrated_on: int | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Validation tasks that intervals and probabilities were calibrated on."""
    served: str | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """The served baseline, if the run does not serve its own learner."""


def score_rows(run: Run) -> RowScores | None:
    """Score the predictions of a run on its test tasks.

    Args:
        run: The run.

    Returns:
        The scores of the served method; None for a run without columns and without calibration, whose scores have
        no other units.
    """
    served = run.using()
    other = served.folder.name if served.folder != run.folder else None
    scores = served_scores(served)
    return None if scores is None else dataclasses.replace(scores, served=other)


def served_scores(run: Run) -> RowScores | None:
    """Score the predictions of a run's own learner."""
    calibration, source = read_calibration(run.folder), run.config.source
    if calibration is None and source.schema is None:
        return None
    tasks = split_tasks(run, "test")
    shots = max(int(np.asarray(task.support.mask).sum()) for task in tasks)
    draws = draw_rows(run, tasks, None if source.spec.is_image else shots, num_draws=NUM_DRAWS, seed=SEED)
    scores = RowScores(len(set(draws.task)), sum(map(len, draws.x)), shots)
    schema = array_schema(source, classifies=run.classifies)
    if run.classifies:
        found = {"classes": class_scores(draws, schema)}
    else:
        found = {"targets": target_scores(draws, schema, calibration)}
    return dataclasses.replace(scores, **found, calibrated_on=None if calibration is None else calibration.num_tasks)


def target_scores(draws: Draws, schema: Schema, calibration: Calibration | None) -> dict[str, TargetScores]:
    """Score each target."""
    widths = None if calibration is None or calibration.quantiles is None else half_widths(draws, calibration)
    found = {}
    for t, column in enumerate(schema.targets):
        y = draws.by_task([one[:, t].astype(np.float64) for one in draws.y])
        error = draws.by_task([(a - b)[:, t].astype(np.float64) for a, b in zip(draws.y, draws.predicted, strict=True)])
        mse = float(np.mean([np.square(one).mean() for one in error]))
        mean = np.mean([one.mean() for one in y])
        variance = float(np.mean([np.square(one - mean).mean() for one in y]))
        interval = None
        if widths is not None:
            interval = interval_of(error, draws.by_task([one[:, t] for one in widths]), column.std)
        r2 = 1 - mse / variance if variance > 0 else float("nan")
        found[column.name] = TargetScores(float(np.sqrt(mse)) * column.std, r2, interval)
    return found


def half_widths(draws: Draws, calibration: Calibration) -> list[np.ndarray]:
    """Half the widths of the intervals of each draw."""
    std = draws.std or [None] * len(draws.x)
    each = zip(draws.support_x, draws.x, std, strict=True)
    return [calibration.for_task(support).half_widths(x, one, COVERAGE) for support, x, one in each]


def interval_of(error: list[np.ndarray], half: list[np.ndarray], std: float) -> Interval:
    """Coverage and width over tasks."""
    inside = np.array([(np.abs(e) <= h).mean() for e, h in zip(error, half, strict=True)])
    width = float(np.mean([2 * one.mean() for one in half])) * std
    return Interval(COVERAGE, float(inside.mean()), float(ci95(inside)), width)


def class_scores(draws: Draws, schema: Schema) -> ClassScores:
    """Score the classes and their probabilities over all rows."""
    logs = np.concatenate(draws.predicted)
    true = np.concatenate([one.argmax(1) for one in draws.y])
    said, top = logs.argmax(1), np.exp(logs.max(1).astype(np.float64))
    right = said == true
    present = [i for i in range(logs.shape[1]) if (true == i).any()]
    recall = {schema.labels[i]: float(100 * right[true == i].mean()) for i in present}
    bins = reliability(top, right)
    return ClassScores(
        accuracy=float(100 * right.mean()),
        balanced_accuracy=float(np.mean(list(recall.values()))),
        recall=recall,
        rows={schema.labels[i]: int((true == i).sum()) for i in present},
        log_loss=log_loss(logs, true),
        calibration_error=float(sum(b.rows * abs(b.probability - b.accuracy) for b in bins) / len(true)),
        reliability=bins,
    )


def reliability(probability: np.ndarray, right: np.ndarray) -> list[ReliabilityBin]:
    """Compare probabilities of predicted classes with the share that is right, in bins of equal width."""
    at = np.minimum((probability * BINS).astype(int), BINS - 1)
    return [
        ReliabilityBin(float(probability[at == b].mean()), float(right[at == b].mean()), int((at == b).sum()))
        for b in range(BINS)
        if (at == b).any()
    ]

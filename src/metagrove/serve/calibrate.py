"""`metagrove.calibrate`: index the known tasks of a run and calibrate its predictions on validation tasks."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metagrove.serve.calibration import (
    COVERAGE,
    LEVELS,
    Calibration,
    Scale,
    distance_to_support,
    write_calibration,
)
from metagrove.serve.conformal import fit_temperature, interval_scores, task_quantile
from metagrove.serve.known_tasks import known_tasks, real_rows, write_index
from metagrove.serve.run import Run, load
from metagrove.task import Split, Task
from metagrove.training.scores import paired_difference

__all__ = ["Draws", "calibrate", "draw_rows", "split_tasks"]

NUM_DRAWS = 4
"""Draws of each task, with different support rows."""
MOST_QUERIES = 50
"""Maximum number of query rows of a draw."""
FEWEST_TASKS = 3
"""Minimum number of tasks with enough rows for quantiles of a number of support rows."""


def calibrate(run: Run | str | Path) -> Run:
    """Index the known tasks of a run and calibrate its predictions on its validation tasks.

    `train own` ends with it. Afterwards, predictions have intervals (probabilities are calibrated), and a fitted task
    is compared with the known tasks.

    Args:
        run: A run, its folder, or the name of a released model.

    Returns:
        The run.

    Raises:
        InputError: If the run's tasks cannot be drawn, e.g. its table is missing.
        RunError: If the run folder cannot be written.

    Example:
        >>> import metagrove as mg
        >>> run = mg.calibrate(mg.train(source=mg.Functions(), learner=mg.MAML()))  # doctest: +SKIP
    """
    run = run if isinstance(run, Run) else load(run)
    write_index(run.alone())
    calibrate_predictions(run.alone())
    return run


def calibrate_predictions(run: Run) -> None:
    """Calibrate the predictions of a run's own learner."""
    (run.folder / "calibration.json").unlink(missing_ok=True)  # predictions below are those before calibration
    tasks = split_tasks(run, "validation")
    write_calibration(run.folder, label_calibration(run, tasks) if run.classifies else value_calibration(run, tasks))


@dataclasses.dataclass(frozen=True)
class Draws:
    """Support and query rows of tasks, and predictions for the query rows; `task` has the index of each draw's task."""

    task: list[int]
    support_x: list[np.ndarray]
    x: list[np.ndarray]
    y: list[np.ndarray]
    predicted: list[np.ndarray]
    std: list[np.ndarray] | None

    def by_task(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Concatenate the values of all draws of each task."""
        at = np.array(self.task)
        return [np.concatenate([values[int(i)] for i in np.flatnonzero(at == one)]) for one in np.unique(at)]


def draw_rows(run: Run, tasks: Sequence[Task], size: int | None, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Draws:
    """Draw support sets from all rows of each task, and predict the other rows.

    Args:
        run: The run.
        tasks: Tasks; those without a row more than `size` are left out.
        size: Number of support rows; None for each task's own support and query set, once.
        num_draws: Draws of each task.
        seed: Random seed of the draws.

    Returns:
        The draws.
    """
    rng, found = np.random.default_rng(seed), []
    for index, task in enumerate(tasks):
        (sx, sy), (qx, qy) = real_rows(task.support), real_rows(task.query)
        if size is None:
            found.append((index, sx, sy, qx[:MOST_QUERIES], qy[:MOST_QUERIES]))
            continue
        x, y = np.concatenate([sx, qx]), np.concatenate([sy, qy])
        for _ in range(num_draws if len(x) > size else 0):
            order = rng.permutation(len(x))
            some, rest = order[:size], order[size : size + MOST_QUERIES]
            found.append((index, x[some], y[some], x[rest], y[rest]))
    which, support_x, support_y, x, y = (list(part) for part in zip(*found, strict=True))
    fitted = run.adapt_many(list(zip(support_x, support_y, strict=True)))
    return Draws(which, support_x, x, y, fitted.predict(x), fitted.std(x))


def support_sizes(run: Run, tasks: Sequence[Task]) -> list[int]:
    """Numbers of support rows with quantiles of their own: 2, as in training, and twice as many."""
    shots = max(int(np.asarray(task.support.mask).sum()) for task in tasks)
    rows = np.array([int(np.asarray(task.support.mask).sum() + np.asarray(task.query.mask).sum()) for task in tasks])
    needed = max(FEWEST_TASKS, len(tasks) // 2)
    return [size for size in sorted({2, shots, 2 * shots}) if size == shots or (rows > size).sum() >= needed]


def value_calibration(run: Run, tasks: Sequence[Task]) -> Calibration:
    """Choose the scale of intervals, and compute their quantiles for each number of support rows."""
    shots = max(int(np.asarray(task.support.mask).sum()) for task in tasks)
    sizes = [shots] if run.config.source.spec.is_image else support_sizes(run, tasks)
    draws = {size: draw_rows(run, tasks, size) for size in sizes}
    scale, weight = choose_scale(draws[shots])
    quantiles = {}
    for size, some in draws.items():
        errors, scales = errors_of(some), scales_of(some, scale, weight)
        each = [error / np.maximum(s, 1e-12) for error, s in zip(errors, scales, strict=True)]
        quantiles[str(size)] = {
            str(level): [task_quantile([one[:, t] for one in each], level) for t in range(each[0].shape[1])]
            for level in LEVELS
        }
    return Calibration(len(set(draws[shots].task)), run.inner_steps, scale, weight, quantiles)


def errors_of(draws: Draws) -> list[np.ndarray]:
    """Absolute errors of each task, shape (rows, targets)."""
    return draws.by_task([np.abs(y - p).astype(np.float64) for y, p in zip(draws.y, draws.predicted, strict=True)])


def scales_of(draws: Draws, scale: Scale, weight: float) -> list[np.ndarray]:
    """Scales of each task, shape (rows, targets)."""
    if scale == "std":
        assert draws.std is not None
        return draws.by_task([one.astype(np.float64) for one in draws.std])
    if scale == "distance":
        away = [distance_to_support(x, s) for x, s in zip(draws.x, draws.support_x, strict=True)]
        ones = [np.ones_like(y, np.float64) for y in draws.y]
        return draws.by_task([(1 + weight * d)[:, None] * one for d, one in zip(away, ones, strict=True)])
    return draws.by_task([np.ones_like(y, np.float64) for y in draws.y])


def choose_scale(draws: Draws) -> tuple[Scale, float]:
    """Choose the scale: the learner's own std, or one that grows with distance if that is significantly better.

    Better is a smaller interval score over tasks, by more than the 95 % confidence interval of the paired difference.
    """
    errors = errors_of(draws)
    usual: Scale = "constant" if draws.std is None else "std"
    weight = distance_weight(draws)
    if len(errors) < FEWEST_TASKS or weight <= 0 or draws.x[0].ndim != 2:
        return usual, 0.0
    first = mean_interval_scores(errors, scales_of(draws, usual, 0.0))
    second = mean_interval_scores(errors, scales_of(draws, "distance", weight))
    gap = paired_difference(second, first)
    return ("distance", weight) if gap.difference < -gap.ci95 else (usual, 0.0)


def mean_interval_scores(errors: list[np.ndarray], scales: list[np.ndarray]) -> np.ndarray:
    """Each task's interval score, as a mean over targets."""
    each = [
        interval_scores([e[:, t] for e in errors], [np.maximum(s[:, t], 1e-12) for s in scales], COVERAGE)
        for t in range(errors[0].shape[1])
    ]
    return np.mean(each, 0)


def distance_weight(draws: Draws) -> float:
    """Fit |error| ≈ a (1 + w d) by least squares and return w, at most 10."""
    if draws.x[0].ndim != 2:
        return 0.0
    away = np.concatenate([distance_to_support(x, s) for x, s in zip(draws.x, draws.support_x, strict=True)])
    error = np.concatenate([np.abs(y - p).mean(1) for y, p in zip(draws.y, draws.predicted, strict=True)])
    if away.std() < 1e-9:
        return 0.0
    slope, start = np.polyfit(away, error, 1)
    return float(np.clip(slope / max(start, 0.1 * error.mean(), 1e-12), 0.0, 10.0))


def label_calibration(run: Run, tasks: Sequence[Task]) -> Calibration:
    """Fit the temperature of probabilities."""
    shots = max(int(np.asarray(task.support.mask).sum()) for task in tasks)
    draws = draw_rows(run, tasks, None if run.config.source.spec.is_image else shots)
    labels = draws.by_task([y.argmax(1) for y in draws.y])
    temperature = fit_temperature(draws.by_task(draws.predicted), labels)
    return Calibration(len(labels), run.inner_steps, temperature=temperature)


def split_tasks(run: Run, split: Split) -> list[Task]:
    """The tasks of a split, all rows of each where they have names."""
    return [task for _, task in known_tasks(run, split)]

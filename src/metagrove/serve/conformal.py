"""Split-conformal quantiles over tasks, and the temperature of probabilities, in NumPy.

Tasks are exchangeable, rows of one task are not. So every held-out task weighs the same, and the level of the quantile
is raised until intervals that are made without a task cover the rows of that task, on average over tasks.
"""

from collections.abc import Sequence

import numpy as np

__all__ = ["fit_temperature", "interval_scores", "task_quantile", "weighted_quantile"]

TEMPERATURES = np.exp(np.linspace(np.log(0.2), np.log(10.0), 160))
RAISED = 40
"""Number of levels tried between the requested coverage and 1."""


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """Compute the smallest value below or at which lies `level` of the weight.

    Args:
        values: Shape (n,).
        weights: Shape (n,); they need not sum to 1.
        level: From 0 to 1.

    Returns:
        One of the values.
    """
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(below, level - 1e-12)), len(values) - 1)])


def task_quantile(scores: Sequence[np.ndarray], coverage: float) -> float:
    """Compute the quantile that covers this fraction of the rows of a new task.

    Args:
        scores: For each held-out task, the scores of its rows: absolute errors over their scale.
        coverage: Requested coverage, e.g. 0.9.

    Returns:
        The quantile; the largest score if there are too few tasks for the coverage.
    """
    values, weights, task = pooled(scores)
    if len(scores) < 2:
        return float(values.max())
    for level in np.linspace(coverage, 1.0, RAISED):
        covered = []
        for j in range(len(scores)):
            others = task != j
            covered.append((scores[j] <= weighted_quantile(values[others], weights[others], float(level))).mean())
        if np.mean(covered) >= coverage:
            return weighted_quantile(values, weights, float(level))
    return float(values.max())


def pooled(scores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows together: their scores, their weights (each task weighs the same), and the index of their task."""
    weights = np.concatenate([np.full(len(one), 1 / len(one)) for one in scores])
    return np.concatenate(scores), weights, np.repeat(np.arange(len(scores)), [len(one) for one in scores])


def interval_scores(errors: Sequence[np.ndarray], scales: Sequence[np.ndarray], coverage: float) -> np.ndarray:
    """Compute each task's interval score (width + 2/(1 - coverage) times the distance outside); smaller is better.

    Intervals of a task come from the other tasks' quantile.

    Args:
        errors: For each task, the absolute errors of its rows.
        scales: For each task, the scales of its rows, by which the quantile is multiplied.
        coverage: Requested coverage.

    Returns:
        Shape (tasks,).
    """
    values, weights, task = pooled([error / scale for error, scale in zip(errors, scales, strict=True)])
    found = []
    for j, (error, scale) in enumerate(zip(errors, scales, strict=True)):
        others = task != j
        half = weighted_quantile(values[others], weights[others], coverage) * scale
        found.append((2 * half + 2 / (1 - coverage) * np.maximum(error - half, 0)).mean())
    return np.array(found)


def fit_temperature(log_probabilities: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> float:
    """Fit the temperature T of softmax(log p / T) by the log loss, every task weighing the same.

    Args:
        log_probabilities: For each task, shape (rows, classes).
        labels: For each task, the index of the true class of each row.

    Returns:
        The temperature: above 1 for overconfident probabilities, below 1 for underconfident ones.
    """
    losses = [
        np.mean([log_loss(tempered(logs, float(t)), y) for logs, y in zip(log_probabilities, labels, strict=True)])
        for t in TEMPERATURES
    ]
    return float(TEMPERATURES[int(np.argmin(losses))])


def log_loss(log_probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Compute the mean of -log p of the true class."""
    return float(-log_probabilities[np.arange(len(labels)), labels].mean())


def tempered(log_probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """log softmax(log p / T)."""
    scaled = log_probabilities / np.asarray(temperature, log_probabilities.dtype)
    shifted = scaled - scaled.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))

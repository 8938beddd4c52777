"""`--clusters auto`: select the number of clusters on validation tasks by a short training of each candidate."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from metagrove.config.config import Config
from metagrove.errors import InputError
from metagrove.losses import best_of, metric_of
from metagrove.own.pool import Training, train_all
from metagrove.serve.run import Run, load
from metagrove.training.scores import paired_difference
from metagrove.training.validate import validation_scores

PART = 5
"""A candidate is trained for 1/PART of the meta-steps of the run."""


def choose_clusters(
    config: Config, candidates: Sequence[tuple[int, ...]], note: Callable[[str], None], workers: int = 1
) -> Config | None:
    """Select the number of clusters on validation tasks.

    The smallest candidate that is not significantly worse than the best one is selected, i.e. the 95 % confidence
    interval of the paired difference contains 0.

    Args:
        config: The config of the run.
        candidates: Tuples of cluster numbers.
        note: Called with a line about each candidate.
        workers: Number of candidates trained at a time; several run in separate processes.

    Returns:
        The config with the selected clusters, or None if training was interrupted.

    Raises:
        InputError: If the learner has no clusters.
    """
    if not config.learner.clusters:
        raise InputError(f"{type(config.learner).__name__} has no clusters: remove --clusters auto")
    steps = max(1, config.training.steps // PART)
    note(f"selecting clusters on validation tasks after {steps} meta-steps each")
    brief = {clusters: brief_config(config, clusters, steps) for clusters in candidates}
    scores = brief_scores(brief, workers)
    if scores is None:
        return None
    for clusters, values in scores.items():
        note(f"clusters {clusters}: {metric_name(config)} {values.mean():.4g}")
    chosen, why = fewest_as_good(scores, metric_name(config))
    note(f"selected: clusters {chosen}, {why}")
    return config.with_settings(clusters=chosen)


def metric_name(config: Config) -> str:
    """Return the name of the metric of a config."""
    return metric_of(config.learner.loss).name


def brief_config(config: Config, clusters: tuple[int, ...], steps: int) -> Config:
    """Return the config of the short training of a candidate."""
    warmup_steps = min(config.training.warmup_steps, steps // 4)
    return config.with_settings(clusters=clusters, steps=steps, validate_every=steps, warmup_steps=warmup_steps)


def brief_scores(configs: dict[tuple[int, ...], Config], workers: int) -> dict[tuple[int, ...], np.ndarray] | None:
    """Train each candidate briefly and score every validation task; return None if training was interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        folders = {clusters: Path(folder) / "-".join(map(str, clusters)) for clusters in configs}
        trainings = [Training(f"clusters {clusters}", configs[clusters], folders[clusters]) for clusters in configs]
        if not train_all(trainings, workers):
            return None
        return {clusters: scores_of(load(path)) for clusters, path in folders.items()}


def scores_of(run: Run) -> np.ndarray:
    """Score the validation tasks of a run after its selected number of inner steps."""
    return validation_scores(run.config, run.meta).after(run.inner_steps)


def fewest_as_good(scores: dict[tuple[int, ...], np.ndarray], metric: str) -> tuple[tuple[int, ...], str]:
    """Return the smallest tuple that is not significantly worse than the best, and the reason."""
    best = best_of(scores, lambda clusters: float(scores[clusters].mean()), metric)
    for clusters in sorted(scores, key=sum):
        gap = paired_difference(scores[clusters], scores[best])
        if clusters == best:
            return clusters, "the best candidate"
        if abs(gap.difference) <= gap.ci95:
            return clusters, f"as good as {best} ({gap.difference:+.3g} ± {gap.ci95:.2g}) with fewer clusters"
    raise AssertionError("the best is among the candidates")

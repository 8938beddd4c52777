"""`--clusters auto`: a short training for each candidate, and a choice on the validation tasks."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from metagrove.config.config import Config
from metagrove.errors import InputError
from metagrove.losses import best_of, metric_of
from metagrove.serve.run import Run, load
from metagrove.train.loop import train
from metagrove.train.scores import paired_difference
from metagrove.train.validate import validation_scores

PART = 5
"""A candidate trains for one part in so many of the run's meta-steps."""


def choose_clusters(
    config: Config, candidates: Sequence[tuple[int, ...]], note: Callable[[str], None]
) -> Config | None:
    """The config with the cluster tuple that did best on validation tasks; None if a person stopped it.

    Where fewer clusters are not clearly worse than the best (the CI of the paired difference holds 0), fewer it is.
    """
    if not config.learner.clusters:
        raise InputError(f"{type(config.learner).__name__} has no clusters to choose: leave --clusters auto out")
    steps = max(1, config.training.steps // PART)
    note(f"choosing clusters on validation tasks after {steps} meta-steps each")
    scores: dict[tuple[int, ...], np.ndarray] = {}
    for clusters in candidates:
        brief = config.with_settings(clusters=clusters, steps=steps, validate_every=steps)
        brief = brief.with_settings(warmup_steps=min(config.training.warmup_steps, steps // 4))
        found = brief_scores(brief)
        if found is None:
            return None
        scores[clusters] = found
        note(f"clusters {clusters}: {metric_name(config)} {found.mean():.4g}")
    chosen, why = fewest_as_good(scores, metric_name(config))
    note(f"chosen: clusters {chosen}, {why}")
    return config.with_settings(clusters=chosen)


def metric_name(config: Config) -> str:
    """What scores are."""
    return metric_of(config.learner.loss).name


def brief_scores(config: Config) -> np.ndarray | None:
    """A short training's score on every validation draw; None if a person stopped it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        if not train(config, place, command="metagrove train own --clusters auto"):
            return None
        return scores_of(load(place))


def scores_of(run: Run) -> np.ndarray:
    """The validation draws that training looks at, after the number of inner steps it chose."""
    return validation_scores(run.config, run.meta).after(run.inner_steps)


def fewest_as_good(scores: dict[tuple[int, ...], np.ndarray], metric: str) -> tuple[tuple[int, ...], str]:
    """The smallest tuple that is not clearly worse than the best, and why."""
    best = best_of(scores, lambda clusters: float(scores[clusters].mean()), metric)
    for clusters in sorted(scores, key=sum):
        gap = paired_difference(scores[clusters], scores[best])
        if clusters == best:
            return clusters, "which did best"
        if abs(gap.difference) <= gap.ci95:
            return clusters, f"as good as {best} ({gap.difference:+.3g} ± {gap.ci95:.2g}) with fewer clusters"
    raise AssertionError("the best is among the candidates")

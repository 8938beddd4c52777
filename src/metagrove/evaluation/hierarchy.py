"""Measures of whether the hierarchy of a learner with clusters matters, on test tasks.

shuffled         error with first-level assignments permuted over tasks, minus the error as trained
typical ratio    exp(mean log(error with permuted assignments / error as trained)), which is robust to single tasks
node share       Σ Var(θ₀ᵢ - θ₀ᵢ|0) / Σ Var(θ₀ᵢ), with θ₀ᵢ|0 the gated initialisation without mass at any node
effective        exp(H(p̄)), p̄ the mean assignment over tasks
agreement        normalised mutual information of the strongest node of a level with families and with shapes

Variances are over tasks, summed over parameters. A share of 0 means that no task's initialisation depends on the nodes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from metagrove.evaluation.agreement import (
    MOST_TASKS,
    DrawnPart,
    LevelAgreement,
    agreements,
    draw_parts,
    level_shares,
)
from metagrove.files import OMIT_NONE
from metagrove.inner import GradientLearner
from metagrove.learner import Info, Predictor
from metagrove.losses import LossFn, metric_of
from metagrove.outer import probe
from metagrove.serve.run import Run
from metagrove.task import Task
from metagrove.training.scores import PairedDifference, Value, ci95, paired_difference

__all__ = ["HierarchyMeasures", "in_words", "measure_hierarchy"]

NODE_SHARE_TASKS = 200
"""Test tasks whose initialisations are compared, parameter by parameter."""
MATTERS = 1.05
"""Smallest typical ratio for which the clusters matter."""
TINY = 1e-12


@dataclasses.dataclass(frozen=True)
class Shuffling:
    """Scores with the tasks' own assignments, and with assignments permuted over tasks."""

    num_tasks: int
    as_trained: Value
    """The score with each task's own assignment."""
    shuffled: Value
    """The score with first-level assignments permuted over tasks."""
    shuffled_minus_own: PairedDifference
    own_median: float
    shuffled_median: float
    """Medians over tasks: a few tasks with a wrong assignment can dominate a mean."""
    typical_ratio: tuple[float, float, float] | None
    """Geometric mean of a task's error with permuted assignments over its own, and its 95 % interval; None for an
    accuracy."""
    matters: bool
    """Is the score worse with permuted assignments, by more than the 95 % interval of the mean difference, or
    the error typically by 5 %?"""


@dataclasses.dataclass(frozen=True)
class HierarchyMeasures(Shuffling):
    """Whether a hierarchy matters for the predictions, and which families and shapes its nodes represent."""

    node_share: float | None
    """Share of the variance of the gated initialisation that comes from nodes; None without a gate."""
    effective_clusters: float
    """exp(H(mean assignment)), 1 if one cluster has all tasks."""
    largest_share: float
    """Mean of each task's largest assignment."""
    levels: list[LevelAgreement]
    """Agreement at each level below the root."""
    merged: LevelAgreement | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Agreement of the dendrogram, cut to as many nodes as there are families."""
    families_by_parent: dict[str, list[str]] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Families whose strongest second-level node is the same, by node."""


def measure_hierarchy(run: Run, *, num_tasks: int = MOST_TASKS, seed: int = 0) -> HierarchyMeasures | None:
    """Measure whether the hierarchy of a run matters, and which families and shapes its nodes represent.

    Args:
        run: The run.
        num_tasks: Number of test tasks; at most 4,000 are used.
        seed: Random seed of the test tasks and of the permutation.

    Returns:
        The measures; None for a learner without clusters, or with a single one.
    """
    if not run.config.learner.clusters or run.config.learner.clusters[0] < 2:
        return None
    drawn = draw_parts(run.config.source, num_tasks, seed)
    parts = [adapt_part(run, one) for one in drawn]
    scores, family, assignments = jax.tree.map(lambda *each: np.concatenate(each), *parts)
    first = assignments[0][:, 0]
    mean = first.mean(0)
    permuted = first[np.random.default_rng(seed).permutation(len(first))]
    return HierarchyMeasures(
        **vars(shuffling(run, drawn, scores, permuted)),
        node_share=node_share(run, drawn[0]),
        effective_clusters=float(np.exp(-(mean * np.log(np.maximum(mean, TINY))).sum())),
        largest_share=float(first.max(1).mean()),
        **vars(agreements(run, drawn, family, level_shares(assignments))),
    )


def adapt_part(run: Run, part: DrawnPart, assignments: np.ndarray | None = None) -> Any:
    """Score, family and assignments of each task; with the given first-level assignments, if any."""
    learner = run.config.learner
    how = {"steps": run.inner_steps, "task_chunk_size": run.config.training.task_chunk_size}
    keep = KeepAssignments(metric_of(learner.loss).score)
    return probe(learner, run.meta, part.tasks, part.keys, keep, assignments=assignments, **how)


@dataclasses.dataclass(frozen=True)
class KeepAssignments:
    """For `outer.probe`: a task's score after the last inner step, its family and its assignments."""

    score: LossFn

    def __call__(self, task: Task, predictor: Predictor, info: Info) -> tuple[Any, ...]:
        score = self.score(predictor(task.query.x, task.query.mask), task.query.y, task.query.mask)
        return score, task.family, info.assignments


def shuffling(run: Run, drawn: Sequence[DrawnPart], scores: np.ndarray, permuted: np.ndarray) -> Shuffling:
    """Measure the effect of these first-level assignments in place of the tasks' own."""
    sizes = [len(one.keys) for one in drawn]
    each = zip(drawn, np.split(permuted, np.cumsum(sizes)[:-1]), strict=True)
    shuffled = np.concatenate([adapt_part(run, one, given)[0] for one, given in each])
    same = np.repeat(np.arange(len(sizes)), sizes) if run.config.source.repeats_tasks else None
    own, other = (mean_by(one.astype(np.float64), same) for one in (scores, shuffled))
    worse = paired_difference(other, own)
    higher = metric_of(run.config.learner.loss).higher_is_better
    ratio = None if higher else typical_ratio(other, own)
    return Shuffling(
        num_tasks=len(own),
        as_trained=value_of(own),
        shuffled=value_of(other),
        shuffled_minus_own=worse,
        own_median=float(np.median(own)),
        shuffled_median=float(np.median(other)),
        typical_ratio=ratio,
        matters=(-1 if higher else 1) * worse.difference > worse.ci95 or (ratio is not None and ratio[1] > MATTERS),
    )


def typical_ratio(shuffled: np.ndarray, own: np.ndarray) -> tuple[float, float, float]:
    """Geometric mean of shuffled / own over tasks, and the ends of its 95 % confidence interval."""
    logs = np.log(np.maximum(shuffled, TINY) / np.maximum(own, TINY))
    mean, half = logs.mean(), float(ci95(logs))
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def mean_by(values: np.ndarray, same: np.ndarray | None) -> np.ndarray:
    """The means of draws of the same task; the values themselves if no task is drawn twice."""
    return values if same is None else np.bincount(same, values) / np.bincount(same)


def value_of(scores: np.ndarray) -> Value:
    """A mean with its confidence interval."""
    return Value(float(scores.mean()), float(ci95(scores)))


def node_share(run: Run, part: DrawnPart) -> float | None:
    """Σ Var(θ₀ᵢ - θ₀ᵢ|0) / Σ Var(θ₀ᵢ); None for a learner without a gated initialisation."""
    learner = run.config.learner
    if not isinstance(learner, GradientLearner):
        return None
    few = DrawnPart(part.tasks, part.keys[:NODE_SHARE_TASKS])
    how = {"steps": 0, "task_chunk_size": run.config.training.task_chunk_size}
    no_mass = np.zeros((len(few.keys), learner.clusters[0]), np.float32)
    whole, root = (
        probe(learner, run.meta, few.tasks, few.keys, keep_initialisation, assignments=given, **how).astype(np.float64)
        for given in (None, no_mass)
    )
    total = whole.var(0).sum()
    return float((whole - root).var(0).sum() / total) if total > 0 else 0.0


def keep_initialisation(task: Task, predictor: Predictor, info: Info) -> Float[Array, " p"]:
    """For `outer.probe` without inner steps: θ₀ᵢ as one vector."""
    del task, info
    return ravel_pytree(eqx.filter(predictor, eqx.is_inexact_array))[0]


def in_words(measures: HierarchyMeasures, metric: str) -> str:
    """Summarise in one sentence whether the hierarchy matters for the predictions.

    Args:
        measures: The measures.
        metric: Name of the score.

    Returns:
        The sentence.
    """
    worse, own = measures.shuffled_minus_own, measures.as_trained.value
    if not measures.matters:
        return (
            f"Permuting the assignments over tasks changes the {metric} by less than its interval "
            f"({worse.difference:+.3g} ± {worse.ci95:.2g}): the clusters do not matter here."
        )
    said = (
        f"The clusters matter: permuting the assignments over tasks changes the {metric} from {own:.3g} to "
        f"{measures.shuffled.value:.3g} (difference {worse.difference:+.3g} ± {worse.ci95:.2g})"
    )
    if measures.typical_ratio is None:
        return f"{said}."
    mean, low, high = measures.typical_ratio
    return f"{said}; typically a task's {metric} is {mean:.3g} times as large (95 % interval {low:.3g} to {high:.3g})."

"""Does the hierarchy matter? Measures of a learner with clusters, on test tasks.

shuffled         error with first-level assignments permuted over tasks, minus the error as trained
typical ratio    exp(mean log(error with permuted assignments / error as trained)), which single tasks do not decide
node share       Σ Var(θ₀ᵢ - θ₀ᵢ|0) / Σ Var(θ₀ᵢ), with θ₀ᵢ|0 the tailored initialisation without mass at any node
effective        exp(H(p̄)), p̄ the mean assignment over tasks
agreement        normalised mutual information of the strongest node of a level with families and with shapes

Variances are over tasks, summed over parameters. A share of 0 means that no task's initialisation depends on the nodes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PRNGKeyArray

from metagrove.evaluation.shapes import shape_classes
from metagrove.files import OMIT_NONE
from metagrove.inner import GradientLearner
from metagrove.learner import Info, Predictor
from metagrove.losses import LossFn, metric_of
from metagrove.outer import map_drawn, probe, task_keys
from metagrove.serve.run import Run, draws_of
from metagrove.sources.source import Source, TaskDraw
from metagrove.task import Task
from metagrove.training.scores import PairedDifference, Value, ci95, paired_difference, test_parts

__all__ = ["HierarchyMeasures", "LevelAgreement", "in_words", "level_shares", "measure_hierarchy", "node_name"]

MOST_TASKS = 4000
"""Test tasks that are adapted to, at most."""
NODE_SHARE_TASKS = 200
"""Test tasks whose initialisations are compared, parameter by parameter."""
CURVE_POINTS = 101
"""Points of the grid on which the shape of a true function is read."""
MATTERS = 1.05
"""Smallest typical ratio for which the clusters matter."""
TINY = 1e-12


@dataclasses.dataclass(frozen=True)
class LevelAgreement:
    """Normalised mutual information of the strongest node of a level and what is known of the tasks."""

    nodes: int
    families: float | None
    """With the families; None if there is only one."""
    shapes: float | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """With shape classes (rising, falling, arc, wave); None if the true functions are not curves that are known."""


@dataclasses.dataclass(frozen=True)
class HierarchyMeasures:
    """Whether a hierarchy matters for the predictions, and what its nodes stand for."""

    num_tasks: int
    as_trained: Value
    """The score with each task's own assignment."""
    shuffled: Value
    """The score with first-level assignments permuted over tasks."""
    shuffled_minus_own: PairedDifference
    own_median: float
    shuffled_median: float
    """Medians over tasks: a few tasks with a wrong assignment can decide a mean."""
    typical_ratio: tuple[float, float, float] | None
    """Geometric mean of a task's error with permuted assignments over its own, and its 95 % interval; None for an
    accuracy."""
    matters: bool
    """Is the score worse with permuted assignments, by more than the 95 % interval of the mean difference, or
    the error typically by 5 %?"""
    node_share: float | None
    """Share of the variance of the tailored initialisation that comes from nodes; None without one."""
    effective_clusters: float
    """exp(H(mean assignment)), 1 if one cluster has all tasks."""
    largest_share: float
    """Mean of each task's largest assignment."""
    levels: list[LevelAgreement]
    """Agreement at each level below the root."""
    merged: LevelAgreement | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Agreement where the dendrogram has as many nodes as there are families."""
    families_by_parent: dict[str, list[str]] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Families whose strongest second-level node is the same, by node."""


def measure_hierarchy(run: Run, *, num_tasks: int = MOST_TASKS, seed: int = 0) -> HierarchyMeasures | None:
    """Measure whether the hierarchy of a run matters, and what its nodes stand for.

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
    return HierarchyMeasures(
        **shuffling(run, drawn, scores, first[np.random.default_rng(seed).permutation(len(first))]),
        node_share=node_share(run, drawn[0]),
        effective_clusters=float(np.exp(-(mean * np.log(np.maximum(mean, TINY))).sum())),
        largest_share=float(first.max(1).mean()),
        **agreements(run, drawn, family, level_shares(assignments)),
    )


@dataclasses.dataclass(frozen=True)
class DrawnPart:
    """Test tasks of one part of a source."""

    tasks: TaskDraw
    keys: Key[Array, " n"]


def draw_parts(source: Source, num_tasks: int, seed: int) -> list[DrawnPart]:
    """The first test tasks of `Run.scores`, part by part."""
    parts = test_parts(source, seed)
    sizes = draws_of(min(num_tasks, MOST_TASKS), len(parts), again=source.repeats_tasks)
    return [DrawnPart(tasks, task_keys(key, size)) for (tasks, key), size in zip(parts, sizes, strict=True)]


def adapt_part(run: Run, part: DrawnPart, assignments: np.ndarray | None = None) -> Any:
    """Score, family and assignments of each task; with first-level assignments from outside, if given."""
    learner = run.config.learner
    how = {"steps": run.inner_steps, "task_chunk_size": run.config.training.task_chunk_size}
    keep = KeepPlacement(metric_of(learner.loss).score)
    return probe(learner, run.meta, part.tasks, part.keys, keep, assignments=assignments, **how)


@dataclasses.dataclass(frozen=True)
class KeepPlacement:
    """For `outer.probe`: a task's score after the last inner step, its family and its assignments."""

    score: LossFn

    def __call__(self, task: Task, predictor: Predictor, info: Info) -> tuple[Any, ...]:
        score = self.score(predictor(task.query.x, task.query.mask), task.query.y, task.query.mask)
        return score, task.family, info.assignments


def shuffling(run: Run, drawn: Sequence[DrawnPart], scores: np.ndarray, permuted: np.ndarray) -> dict[str, Any]:
    """What changes when tasks get these first-level assignments in place of their own."""
    sizes = [len(one.keys) for one in drawn]
    each = zip(drawn, np.split(permuted, np.cumsum(sizes)[:-1]), strict=True)
    shuffled = np.concatenate([adapt_part(run, one, given)[0] for one, given in each])
    same = np.repeat(np.arange(len(sizes)), sizes) if run.config.source.repeats_tasks else None
    own, other = (mean_by(one.astype(np.float64), same) for one in (scores, shuffled))
    worse = paired_difference(other, own)
    higher = metric_of(run.config.learner.loss).higher_is_better
    ratio = None if higher else typical_ratio(other, own)
    return {
        "num_tasks": len(own),
        "as_trained": value_of(own),
        "shuffled": value_of(other),
        "shuffled_minus_own": worse,
        "own_median": float(np.median(own)),
        "shuffled_median": float(np.median(other)),
        "typical_ratio": ratio,
        "matters": (-1 if higher else 1) * worse.difference > worse.ci95 or (ratio is not None and ratio[1] > MATTERS),
    }


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


def level_shares(assignments: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Share of each task in each node of every level: s^1 = p^{0→·}, s^{l+1} = Σ_k s^l_k p^{k→·}.

    Args:
        assignments: p^{k→k'} of every level, with a row for each task.

    Returns:
        For each level an array (tasks, nodes) whose rows sum to 1.
    """
    found: list[np.ndarray] = []
    for assignment in assignments:
        found.append(assignment[:, 0] if not found else np.einsum("nk,nkl->nl", found[-1], assignment))
    return tuple(found)


def node_share(run: Run, part: DrawnPart) -> float | None:
    """Σ Var(θ₀ᵢ - θ₀ᵢ|0) / Σ Var(θ₀ᵢ); None for a learner without a tailored initialisation."""
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


def agreements(
    run: Run, drawn: Sequence[DrawnPart], family: np.ndarray, shares: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Agreement with families and shapes at each level, of merged nodes, and the families of each parent."""
    names = run.config.source.family_names
    known = family if len(np.unique(family)) > 1 else None
    shapes = shapes_of(run.config.source, drawn)
    below = shares[:-1]
    found: dict[str, Any] = {"levels": [agreement(one, known, shapes) for one in below]}
    if known is None:
        return found
    groups = run.config.learner.cluster_groups(run.meta, len(np.unique(family)))
    if groups is not None:
        found["merged"] = agreement(shares[0] @ groups, known, shapes)
    if len(below) > 1:
        parents: dict[str, list[str]] = {}
        for one in np.unique(family):
            strongest = int(below[1][family == one].mean(0).argmax())
            parents.setdefault(node_name(1, strongest, len(shares)), []).append(names[one])
        found["families_by_parent"] = parents
    return found


def agreement(share: np.ndarray, family: np.ndarray | None, shapes: np.ndarray | None) -> LevelAgreement:
    """Agreement of a level's strongest nodes."""
    from sklearn.metrics import normalized_mutual_info_score

    strongest = share.argmax(1)
    nmi = [None if one is None else float(normalized_mutual_info_score(one, strongest)) for one in (family, shapes)]
    return LevelAgreement(share.shape[1], *nmi)


def shapes_of(source: Source, drawn: Sequence[DrawnPart]) -> np.ndarray | None:
    """The shape class of each task's true function; None if it is not known or not a curve with one output."""
    if source.spec.x_shape != (1,) or source.spec.y_dim != 1 or source.schema is not None:
        return None
    first = drawn[0]
    x = np.concatenate([np.ravel(map_drawn(inputs_of, one.tasks, one.keys[:NODE_SHARE_TASKS])) for one in drawn])
    grid = jnp.linspace(x.min(), x.max(), CURVE_POINTS, dtype=jnp.float32)[:, None]
    if source.curve(first.keys[0], grid) is None:
        return None
    fn = eqx.Partial(curve_of, source, grid)
    curves = [map_drawn(fn, one.tasks, one.keys, one.keys) for one in drawn]
    return shape_classes(np.concatenate(curves)[:, :, 0])


def inputs_of(task: Task) -> Float[Array, "n d"]:
    """For `outer.map_drawn`: the inputs of the query set."""
    return task.query.x


def curve_of(source: Source, grid: Float[Array, "n 1"], task: Task, key: PRNGKeyArray) -> Float[Array, "n 1"]:
    """For `outer.map_drawn`: the task's true function on a grid."""
    del task
    curve = source.curve(key, grid)
    assert curve is not None
    return curve


def node_name(level: int, cluster: int, num_levels: int) -> str:
    """Return the name of a node: C1, C2, ... at the first level, D1, ... at the second; the last is the root.

    Args:
        level: Index of the level, from 0.
        cluster: Index of the node within its level.
        num_levels: Number of levels.

    Returns:
        The name.
    """
    return "root" if level == num_levels - 1 else f"{chr(ord('C') + level)}{cluster + 1}"


def in_words(measures: HierarchyMeasures, metric: str) -> str:
    """Say in one sentence whether the hierarchy matters for the predictions.

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

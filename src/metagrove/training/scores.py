"""Scores of a learner on new tasks after every number of inner steps, and paired comparisons of two learners."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import DivergedError, InputError
from metagrove.keys import key_for
from metagrove.learner import Info, Learner, Meta, Predictor
from metagrove.losses import LossFn, Metric, metric_of
from metagrove.nets.predictors import Statistics, bind_support
from metagrove.outer import BATCH, probe, task_keys
from metagrove.sources.source import Source, TaskDraw
from metagrove.task import Examples, Task


@dataclasses.dataclass(frozen=True)
class Scores:
    """Every task's score after each number of inner steps, its family, and its shares of the first-level clusters."""

    by_step: np.ndarray  # (num_tasks, number of steps scored)
    family: np.ndarray  # (num_tasks,)
    shares: np.ndarray | None  # (num_tasks, K^1)
    first_step: int = 0
    """Inner steps of the first column."""
    answers: np.ndarray | None = None  # (num_tasks, y_dim)
    """The prediction for each task's first query after the last step, if requested; growth compares them."""

    def after(self, step: int) -> np.ndarray:
        """The score of each task after this many inner steps."""
        return self.by_step[:, step - self.first_step]

    def mean(self) -> "Scores":
        """Average draws of one task."""
        shares = None if self.shares is None else self.shares.mean(0, keepdims=True)
        return Scores(self.by_step.mean(0, keepdims=True), self.family[:1], shares, self.first_step)


def score_tasks(
    learner: Learner,
    meta: Meta,
    tasks: TaskDraw,
    *,
    key: PRNGKeyArray,
    num_tasks: int,
    steps: int,
    every_step: bool = True,
    task_chunk_size: int = BATCH,
    answers: bool = False,
    statistics: Statistics | None = None,
) -> Scores:
    """Adapt to each task without randomness and score its query set, after every step or after the last alone.

    Task i depends only on `key` and i. `statistics` selects the normalisation of the query set, by default that of
    training.
    """
    if num_tasks < 2:
        raise InputError(f"num_tasks must be at least 2 for a confidence interval, got {num_tasks}")

    keep = KeepScore(metric_of(learner.loss).score, every_step, answers, statistics)
    keys = task_keys(key, num_tasks)
    found = probe(learner, meta, tasks, keys, keep, steps=steps, task_chunk_size=task_chunk_size)
    by_step, family, shares, answered = found
    return Scores(by_step.astype(np.float64), family, shares, first_step=0 if every_step else steps, answers=answered)


@dataclasses.dataclass(frozen=True)
class KeepScore:
    """For `outer.probe`: a task's scores, family, assignment to the first clusters and, if requested, a prediction."""

    score: LossFn
    every_step: bool
    answers: bool
    statistics: Statistics | None = None

    def __call__(self, task: Task, predictor: Predictor, info: Info) -> tuple[Array, Array, Array | None, Array | None]:
        def bind(predictor: Predictor) -> Predictor:
            return predictor if self.statistics is None else bind_support(predictor, task.support, self.statistics)

        prediction = bind(predictor)(task.query.x, task.query.mask)
        last = self.score(prediction, task.query.y, task.query.mask)[None]
        by_step = after_each_step(info.path, task.query, self.score, bind) if self.every_step else last
        shares = info.assignments[0][0] if info.assignments else None
        return by_step, task.family, shares, prediction[0] if self.answers else None


def after_each_step(
    path: Predictor, examples: Examples, score_fn: LossFn, bind: Callable[[Predictor], Predictor] = lambda p: p
) -> Float[Array, " steps_plus_1"]:
    """`score_fn` of every predictor on the path, e.g. the query loss after 0, 1, ..., steps inner steps.

    `bind` is applied to each predictor before it is called, e.g. to give it the support set's statistics.
    """
    stacked, same_for_all = eqx.partition(path, eqx.is_inexact_array)

    def score(params: Any) -> Array:
        predictor = bind(eqx.combine(params, same_for_all))
        return score_fn(predictor(examples.x, examples.mask), examples.y, examples.mask)

    return jax.lax.map(score, stacked)


def test_parts(source: Source, seed: int) -> list[tuple[TaskDraw, PRNGKeyArray]]:
    """Return the parts of the test tasks, each with its key, into which the index of a task is folded."""
    parts, key = source.parts("test"), key_for("test", seed)
    keys = [key] if len(parts) == 1 else [jax.random.fold_in(key, i) for i in range(len(parts))]
    return list(zip(parts, keys, strict=True))


def only_families(scores: Scores, families: Sequence[int]) -> Scores:
    """The scores of the tasks of some families."""
    chosen = np.isin(scores.family, families)
    return Scores(
        scores.by_step[chosen],
        scores.family[chosen],
        None if scores.shares is None else scores.shares[chosen],
        scores.first_step,
    )


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Concatenate the scores of several sets of tasks."""
    return Scores(
        np.concatenate([one.by_step for one in parts]),
        np.concatenate([one.family for one in parts]),
        None if parts[0].shares is None else np.concatenate([one.shares for one in parts if one.shares is not None]),
        parts[0].first_step,
    )


def ci95(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95 % confidence interval of the mean over tasks, 1.96·std/√n."""
    if values.shape[0] < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(1.96 * values.std(0, ddof=1) / np.sqrt(values.shape[0]))


def best_step(scores: Scores, metric: Metric) -> int:
    """The number of inner steps with the best finite mean; for validation tasks only."""
    means = scores.by_step.mean(0) * (-1 if metric.higher_is_better else 1)
    if not np.isfinite(means).any():
        raise DivergedError("the validation error is not finite after any number of inner steps: lower --inner-lr")
    return int(np.where(np.isfinite(means), means, np.inf).argmin())


@dataclasses.dataclass(frozen=True)
class Clustering:
    """Agreement of first-level clusters and families: the strongest cluster of each task against its family."""

    nmi: float
    """Normalised mutual information."""
    purity: float
    """Fraction of tasks that belong to the most frequent family of their cluster."""
    largest_share: float
    """Mean of each task's largest share."""
    tasks_by_cluster_and_family: list[list[int]]


@dataclasses.dataclass(frozen=True)
class Value:
    """A mean over tasks and its confidence interval."""

    value: float
    value_ci95: float


@dataclasses.dataclass(frozen=True)
class ValueByFamily(Value):
    """The same over all tasks and by family."""

    by_family: dict[str, Value]


@dataclasses.dataclass(frozen=True)
class FamilySummary:
    """Scores on the tasks of one family."""

    num_tasks: int
    value: float
    """Their mean after the chosen number of inner steps."""
    value_ci95: float
    by_step: list[float]
    """The mean after each number of inner steps."""
    ci95: list[float]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Scores on test tasks, over all of them and by family."""

    metric: str
    value: float
    """The mean after the chosen number of inner steps."""
    value_ci95: float
    steps: int
    """The chosen number of inner steps."""
    by_step: list[float]
    """The mean after each number of inner steps."""
    ci95: list[float]
    by_family: dict[str, FamilySummary]
    num_tasks: int
    clustering: Clustering | None


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """Mean of first - second over the same tasks, with its own CI, which is narrower than those of the means."""

    difference: float
    ci95: float


@dataclasses.dataclass(frozen=True)
class PairedComparison(PairedDifference):
    """The same over all tasks and by family: negative is better for errors, positive for accuracies."""

    by_family: dict[str, PairedDifference]


def summarize(scores: Scores, family_names: tuple[str, ...], *, step: int, metric: str) -> Summary:
    """Means with CIs after every step, by family, and the agreement of clusters and families."""
    of_family = {name: scores.family == i for i, name in enumerate(family_names)}
    return Summary(
        metric=metric,
        **_means(scores.by_step, scores.after(step)),
        steps=step,
        by_family={
            name: FamilySummary(int(chosen.sum()), **_means(scores.by_step[chosen], scores.after(step)[chosen]))
            for name, chosen in of_family.items()
            if chosen.any()
        },
        num_tasks=len(scores.family),
        clustering=clustering(scores),
    )


def _means(by_step: np.ndarray, values: np.ndarray) -> Any:
    value = {"value": float(values.mean()), "value_ci95": float(ci95(values))}
    return {**value, "by_step": by_step.mean(0).tolist(), "ci95": ci95(by_step).tolist()}


def value_by_family(scores: Scores, family_names: tuple[str, ...], *, step: int) -> ValueByFamily:
    """The mean after `step` inner steps with its CI, over all tasks and by family."""
    of_family = {name: scores.after(step)[scores.family == i] for i, name in enumerate(family_names)}
    by_family = {name: Value(*_value(values)) for name, values in of_family.items() if len(values)}
    return ValueByFamily(*_value(scores.after(step)), by_family)


def _value(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(ci95(values))


def clustering(scores: Scores) -> Clustering | None:
    """Agreement of first-level clusters and families; None for a learner without clusters."""
    if scores.shares is None:
        return None
    from sklearn.metrics import normalized_mutual_info_score

    strongest = scores.shares.argmax(1)
    table = np.zeros((scores.shares.shape[1], scores.family.max() + 1), int)
    np.add.at(table, (strongest, scores.family), 1)
    return Clustering(
        nmi=float(normalized_mutual_info_score(scores.family, strongest)),
        purity=float(table.max(1).sum() / table.sum()),
        largest_share=float(scores.shares.max(1).mean()),
        tasks_by_cluster_and_family=table.tolist(),
    )


def paired_difference(first: np.ndarray, second: np.ndarray) -> PairedDifference:
    """Mean of first - second over the same tasks, with its own CI."""
    return PairedDifference(float((first - second).mean()), float(ci95(first - second)))


def compare_scores(
    first: Scores, first_step: int, second: Scores, second_step: int, family_names: tuple[str, ...]
) -> PairedComparison:
    """Paired differences over all tasks and by family."""
    a, b = first.after(first_step), second.after(second_step)
    over_all = paired_difference(a, b)
    by_family = {
        name: paired_difference(a[first.family == i], b[first.family == i])
        for i, name in enumerate(family_names)
        if (first.family == i).any()
    }
    return PairedComparison(over_all.difference, over_all.ci95, by_family)

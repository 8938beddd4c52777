"""How good a learner is on fresh tasks, after every number of inner steps; and two learners on the same tasks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from metagrove.errors import DivergedError, InputError
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta, Predictor, after_each_step
from metagrove.losses import Metric, metric_of
from metagrove.nets.predictors import Statistics, bind_support
from metagrove.outer import over_tasks
from metagrove.sources.source import Source, TaskDraw

BATCH = 500
"""Most tasks in one compiled call; the last batch is drawn whole and cut."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Every task's score after each number of inner steps, its family, and its shares of the first-level clusters."""

    by_step: np.ndarray  # (num_tasks, number of steps scored)
    family: np.ndarray  # (num_tasks,)
    shares: np.ndarray | None  # (num_tasks, K^1)
    first_step: int = 0
    """Inner steps of the first column."""
    answers: np.ndarray | None = None  # (num_tasks, y_dim)
    """The prediction for each task's first query after the last step, if asked for: to see how far answers change."""

    def after(self, step: int) -> np.ndarray:
        """Every task's score after so many inner steps."""
        return self.by_step[:, step - self.first_step]

    def mean(self) -> "Scores":
        """Of draws of one task: that task's means."""
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

    Task i depends on `key` and i alone. `statistics` says whose normalise the query set; by default as in training.
    """
    if num_tasks < 2:
        raise InputError(f"num_tasks must be at least 2 for a confidence interval, got {num_tasks}")

    def batch(start: Array, size: int) -> Any:
        return _score_batch(
            learner, meta, tasks, key, start, size, steps, every_step, task_chunk_size, answers, statistics
        )

    by_step, family, shares, answered = in_batches(batch, num_tasks)
    return Scores(by_step.astype(np.float64), family, shares, first_step=0 if every_step else steps, answers=answered)


def in_batches(batch_fn: Callable[[Array, int], Any], num_tasks: int) -> Any:
    """`batch_fn(start, size)`, a tree of arrays with a row for each task, of so many tasks, batch after batch."""
    size = min(BATCH, num_tasks)
    batches = [jax.device_get(batch_fn(jnp.asarray(start), size)) for start in range(0, num_tasks, size)]
    return jax.tree.map(lambda *each: np.concatenate(each)[:num_tasks], *batches)


def test_parts(source: Source, seed: int) -> list[tuple[TaskDraw, PRNGKeyArray]]:
    """What draws test tasks, each part with its key; fold the task's number in."""
    parts, key = source.test_parts(), key_for("test", seed)
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
    """The scores of several sets of tasks as of one."""
    return Scores(
        np.concatenate([one.by_step for one in parts]),
        np.concatenate([one.family for one in parts]),
        None if parts[0].shares is None else np.concatenate([one.shares for one in parts if one.shares is not None]),
        parts[0].first_step,
    )


@eqx.filter_jit
def _score_batch(
    learner: Learner,
    meta: Meta,
    tasks: TaskDraw,
    key: PRNGKeyArray,
    start: Array,
    size: int,
    steps: int,
    every_step: bool,
    task_chunk_size: int,
    answers: bool,
    statistics: Statistics | None,
):
    score = metric_of(learner.loss).score

    def one(index: Array):
        task = tasks.sample(jax.random.fold_in(key, index))
        predictor, info = learner.adapt(meta, task.support, steps=steps)
        shares = info.assignments[0][0] if info.assignments else None

        def bind(predictor: Predictor) -> Predictor:
            return predictor if statistics is None else bind_support(predictor, task.support, statistics)

        prediction = bind(predictor)(task.query.x, task.query.mask)
        last = score(prediction, task.query.y, task.query.mask)[None]
        by_step = after_each_step(info.path, task.query, score, bind) if every_step else last
        return by_step, task.family, shares, prediction[0] if answers else None

    return over_tasks(one, start + jnp.arange(size), task_chunk_size=task_chunk_size)


def ci95(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95 % confidence interval of the mean over tasks, 1.96·sd/√n."""
    if values.shape[0] < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(1.96 * values.std(0, ddof=1) / np.sqrt(values.shape[0]))


def best_step(scores: Scores, metric: Metric) -> int:
    """The number of inner steps with the best finite mean; to be asked on validation tasks only."""
    means = scores.by_step.mean(0) * (-1 if metric.higher_is_better else 1)
    if not np.isfinite(means).any():
        raise DivergedError("the validation error is not finite after any number of inner steps: lower --inner-lr")
    return int(np.where(np.isfinite(means), means, np.inf).argmin())


def summarize(scores: Scores, family_names: tuple[str, ...], *, step: int, metric: str) -> dict[str, Any]:
    """Plain data: means with CIs after every step, by family, and how far clusters and families agree."""
    of_family = {name: scores.family == i for i, name in enumerate(family_names)}
    return {
        "metric": metric,
        **_value(scores.after(step)),
        "steps": step,
        **_means(scores.by_step),
        "by_family": {
            name: {
                "num_tasks": int(chosen.sum()),
                **_value(scores.after(step)[chosen]),
                **_means(scores.by_step[chosen]),
            }
            for name, chosen in of_family.items()
            if chosen.any()
        },
        "num_tasks": len(scores.family),
        "clustering": clustering(scores),
    }


def value_by_family(scores: Scores, family_names: tuple[str, ...], *, step: int) -> dict[str, Any]:
    """The mean after so many inner steps with its CI, over all tasks and by family."""
    of_family = {name: scores.after(step)[scores.family == i] for i, name in enumerate(family_names)}
    return {
        **_value(scores.after(step)),
        "by_family": {name: _value(values) for name, values in of_family.items() if len(values)},
    }


def _value(values: np.ndarray) -> dict[str, float]:
    return {"value": float(values.mean()), "value_ci95": float(ci95(values))}


def _means(by_step: np.ndarray) -> dict[str, list[float]]:
    return {"by_step": by_step.mean(0).tolist(), "ci95": ci95(by_step).tolist()}


def clustering(scores: Scores) -> dict[str, Any] | None:
    """Do first-level clusters and families agree? Strongest cluster of each task against its family."""
    if scores.shares is None:
        return None
    from sklearn.metrics import normalized_mutual_info_score

    strongest = scores.shares.argmax(1)
    table = np.zeros((scores.shares.shape[1], scores.family.max() + 1), int)
    np.add.at(table, (strongest, scores.family), 1)
    return {
        "nmi": float(normalized_mutual_info_score(scores.family, strongest)),
        "purity": float(table.max(1).sum() / table.sum()),
        "largest_share": float(scores.shares.max(1).mean()),
        "tasks_by_cluster_and_family": table.tolist(),
    }


def paired_difference(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Mean of first - second over the same tasks, with its own CI: far narrower than the two CIs apart."""
    return {"difference": float((first - second).mean()), "ci95": float(ci95(first - second))}


def compare(
    first: Scores, first_step: int, second: Scores, second_step: int, family_names: tuple[str, ...]
) -> dict[str, Any]:
    """Paired differences over all tasks and by family: of errors negative, of accuracies positive is better."""
    a, b = first.after(first_step), second.after(second_step)
    return {
        **paired_difference(a, b),
        "by_family": {
            name: paired_difference(a[first.family == i], b[first.family == i])
            for i, name in enumerate(family_names)
            if (first.family == i).any()
        },
    }

"""How good a learner is on fresh tasks, after every number of inner steps; and two learners on the same tasks."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from metagrove.errors import DivergedError, InputError
from metagrove.learner import Learner, Meta, after_each_step
from metagrove.outer import over_tasks
from metagrove.sources import Source

BATCH = 500
"""Tasks in one compiled call; the last batch is drawn whole and cut."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Every task's score after 0, 1, ... inner steps, its family, and its shares of the first-level clusters."""

    by_step: np.ndarray  # (num_tasks, steps + 1)
    family: np.ndarray  # (num_tasks,)
    shares: np.ndarray | None  # (num_tasks, K^1)


def score_tasks(
    learner: Learner, meta: Meta, source: Source, *, key: PRNGKeyArray, num_tasks: int, steps: int
) -> Scores:
    """Adapt to each task without randomness and score its query set. Task i depends on `key` and i alone."""
    if num_tasks < 2:
        raise InputError(f"num_tasks must be at least 2 for a confidence interval, got {num_tasks}")
    starts = range(0, num_tasks, BATCH)
    batches = [jax.device_get(_score_batch(learner, meta, source, key, jnp.asarray(start), steps)) for start in starts]
    by_step, family, shares = zip(*batches, strict=True)
    return Scores(
        np.concatenate(by_step)[:num_tasks].astype(np.float64),
        np.concatenate(family)[:num_tasks],
        None if shares[0] is None else np.concatenate(shares)[:num_tasks],
    )


@eqx.filter_jit
def _score_batch(learner: Learner, meta: Meta, source: Source, key: PRNGKeyArray, start: Array, steps: int):
    def one(index: Array):
        task = source.sample(jax.random.fold_in(key, index))
        _, info = learner.adapt(meta, task.support, steps=steps)
        shares = info.assignments[0][0] if info.assignments else None
        return after_each_step(info.path, task.query, learner.loss), task.family, shares

    return over_tasks(one, start + jnp.arange(BATCH))


def ci95(values: np.ndarray) -> np.ndarray:
    """Half the width of the 95 % confidence interval of the mean over tasks, 1.96·sd/√n."""
    if values.shape[0] < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(1.96 * values.std(0, ddof=1) / np.sqrt(values.shape[0]))


def best_step(scores: Scores) -> int:
    """The number of inner steps with the lowest finite mean; to be asked on validation tasks only."""
    means = scores.by_step.mean(0)
    if not np.isfinite(means).any():
        raise DivergedError("the validation error is not finite after any number of inner steps: lower --inner-lr")
    return int(np.where(np.isfinite(means), means, np.inf).argmin())


def summarize(scores: Scores, family_names: tuple[str, ...], *, step: int, metric: str) -> dict[str, Any]:
    """Plain data: means with CIs after every step, by family, and how far clusters and families agree."""
    return {
        "metric": metric,
        "value": float(scores.by_step[:, step].mean()),
        "value_ci95": float(ci95(scores.by_step[:, step])),
        "steps": step,
        **_means(scores.by_step),
        "by_family": {
            name: {"num_tasks": int((scores.family == i).sum()), **_means(scores.by_step[scores.family == i])}
            for i, name in enumerate(family_names)
            if (scores.family == i).any()
        },
        "num_tasks": len(scores.family),
        "clustering": clustering(scores),
    }


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
    """Paired differences over all tasks and by family; negative means that the first has the lower error."""
    a, b = first.by_step[:, first_step], second.by_step[:, second_step]
    return {
        **paired_difference(a, b),
        "by_family": {
            name: paired_difference(a[first.family == i], b[first.family == i])
            for i, name in enumerate(family_names)
            if (first.family == i).any()
        },
    }

"""Have the tasks changed? Asked of the embeddings of two sets of tasks under one model: training has no part in it."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from metagrove.config.config import Training
from metagrove.hsml.learner import HSML, HSMLMeta
from metagrove.outer import over_tasks
from metagrove.sources.source import TaskDraw
from metagrove.sources.stream import tasks_at


def novelty(
    learner: HSML, meta: HSMLMeta, tasks: TaskDraw, since: Array, step: Array, training: Training, *, key: PRNGKeyArray
) -> dict[str, Any]:
    """How far tasks after `step` meta-steps differ from those after `since`, with the number that tells."""
    keys = jax.random.split(key, (2, training.growth.growth_probe))
    moments = (jnp.maximum(since - 1, 0), step - 1)  # both count meta-steps that are done
    before, now = (
        np.asarray(embeddings(learner, meta, tasks_at(tasks, moment, training.steps), own, training.task_chunk_size))
        for moment, own in zip(moments, keys, strict=True)
    )
    old, new = along_the_difference(before, now)
    means = {"last_window": float(old.mean()), "this_window": float(new.mean())}
    return {"watched": "embedding", **means, "detector": "novelty", "t": welch_t(new, old)}


@eqx.filter_jit
def embeddings(
    learner: HSML, meta: HSMLMeta, tasks: TaskDraw, keys: Key[Array, " n"], task_chunk_size: int
) -> Float[Array, "n d"]:
    """Of a fresh task for each key."""

    def one(key: PRNGKeyArray) -> Array:
        _, info = learner.adapt(meta, tasks.sample(key).support, steps=0)
        assert info.task_embedding is not None
        return info.task_embedding

    return over_tasks(one, keys, task_chunk_size=task_chunk_size)


def along_the_difference(before: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The second half of each, along the direction that tells the first halves apart (a linear discriminant).

    The direction comes from other tasks than those it is tried on: where nothing has changed, it is any direction.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    half = len(now) // 2
    discriminant = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    discriminant.fit(np.concatenate([before[:half], now[:half]]), np.repeat([0, 1], half))
    return discriminant.decision_function(before[half:]), discriminant.decision_function(now[half:])


def welch_t(first: np.ndarray | list[float], second: np.ndarray | list[float]) -> float:
    """(mean₁ - mean₂) / √(s₁²/n₁ + s₂²/n₂)."""
    spread = sum(np.var(one, ddof=1) / len(one) for one in (first, second))
    return float((np.mean(first) - np.mean(second)) / max(math.sqrt(spread), 1e-12))

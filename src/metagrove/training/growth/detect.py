"""Detection of changes in the tasks. A detector sees every block of training and returns a cause of growth, or None.

`ratio` (paper, section 4.3) compares the training score of two windows: the loss as it is trained, ξ·L_r included, or
the accuracy of a classifier. `novelty`, beyond the paper, compares the embeddings of two sets of tasks under one model,
so that training in between has no effect. `evidence`, beyond the paper, tests whether tasks belong to none of the known
clusters (`mixture.novelty`): it has no threshold on a loss, and needs no earlier tasks.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.config.config import Growth
from metagrove.learner import Info, Learner, Meta, Predictor
from metagrove.mixture.novelty import NONE, NONE_LOG_ODDS, NONE_MASS
from metagrove.outer import probe
from metagrove.sources.source import TaskDraw, TaskSchedule
from metagrove.task import Task
from metagrove.training.records import BlockRecord, GrowthCause, GrowthState

CHANCE = 4.0
"""Threshold in standard deviations of a binomial share."""


@dataclasses.dataclass(frozen=True)
class Observation:
    """Input of a detector at the end of a block of training."""

    record: BlockRecord
    learner: Learner
    meta: Meta
    tasks: TaskSchedule
    can_grow: bool
    """Whether a cluster may be added: outside the cool-down and below the maximum number."""
    key: PRNGKeyArray
    task_chunk_size: int


class Detector(Protocol):
    """Decides when a cluster is added. Its settings are its fields, its memory is a `GrowthState`."""

    def observe(self, state: GrowthState, seen: Observation) -> tuple[GrowthState, GrowthCause | None]:
        """Return the new state after a block of training, and the cause of growth, if any."""
        ...


@dataclasses.dataclass(frozen=True)
class RatioDetector:
    """The paper's criterion: grow when the mean loss of a window is more than μ times that of the window before.

    For a classifier, grow when its accuracy is less than μ times the previous one, with μ below 1.
    """

    window: int
    """Q, in meta-steps."""
    threshold: float
    """μ."""

    def observe(self, state: GrowthState, seen: Observation) -> tuple[GrowthState, GrowthCause | None]:
        """Compare two windows where one ends; within the cool-down they are only stored."""
        state, before = self.remember(state, seen.record)
        if before is None or not seen.can_grow:
            return state, None
        cause, grows = self.compare(before, state.before, seen.record.watched)
        return state, cause if grows else None

    def remember(self, state: GrowthState, record: BlockRecord) -> tuple[GrowthState, Sequence[Sequence[float]] | None]:
        """The state with this block in it; where a window ends, also the window before it, if there is one."""
        block = (float(record.step - state.last_step), record.means[record.watched])
        state = dataclasses.replace(state, blocks=(*state.blocks, block), last_step=record.step)
        if record.step % self.window:
            return state, None
        return dataclasses.replace(state, before=state.blocks, blocks=()), state.before or None

    def compare(
        self, before: Sequence[Sequence[float]], now: Sequence[Sequence[float]], watched: str
    ) -> tuple[GrowthCause, bool]:
        """Compare the means of two windows, and return whether their ratio calls for growth."""
        old, new = window_mean(before), window_mean(now)
        grows = new < self.threshold * old if watched == "accuracy" else new > self.threshold * old
        return GrowthCause(watched, old, new, "ratio", ratio=new / old if old else math.inf), grows


def window_mean(blocks: Sequence[Sequence[float]]) -> float:
    """The mean over the meta-steps of a window, given (meta-steps, mean) of its blocks."""
    return math.fsum(count * mean for count, mean in blocks) / math.fsum(count for count, _ in blocks)


@dataclasses.dataclass(frozen=True)
class NoveltyDetector:
    """Grow when the embeddings of current tasks differ from those of tasks at the last check."""

    window: int
    """Meta-steps between checks."""
    least_t: float
    """The t statistic above which a cluster is added."""
    num_tasks: int
    """Number of tasks drawn from the current mixture, and from that at the last check."""

    def observe(self, state: GrowthState, seen: Observation) -> tuple[GrowthState, GrowthCause | None]:
        """Check tasks at the end of a window, unless no cluster may be added."""
        step = seen.record.step
        if not seen.can_grow or step % self.window:
            return state, None
        cause = self.compare(seen, since=state.last_step)
        return dataclasses.replace(state, last_step=step), cause if cause.t and cause.t > self.least_t else None

    def compare(self, seen: Observation, *, since: int) -> GrowthCause:
        """Measure how far the tasks of this meta-step differ from those of the meta-step `since`."""
        keys = jax.random.split(jax.random.fold_in(seen.key, 1), (2, self.num_tasks))
        moments = max(since - 1, 0), seen.record.step - 1  # both count meta-steps that are done
        before, now = (
            embeddings(seen, seen.tasks.at(jnp.asarray(moment, jnp.int32)), own)
            for moment, own in zip(moments, keys, strict=True)
        )
        old, new = along_the_difference(before, now)
        return GrowthCause("embedding", float(old.mean()), float(new.mean()), "novelty", t=welch_t(new, old))


@dataclasses.dataclass(frozen=True)
class EvidenceDetector:
    """Grow when more tasks are of none of the known clusters than expected from the prior mass π₀ of such tasks."""

    window: int
    """Meta-steps between checks."""
    num_tasks: int
    """Number of current tasks that are drawn."""

    def observe(self, state: GrowthState, seen: Observation) -> tuple[GrowthState, GrowthCause | None]:
        """Check tasks at the end of a window, unless no cluster may be added."""
        step = seen.record.step
        if not seen.can_grow or step % self.window:
            return state, None
        share = self.share_of_none(seen)
        chance = math.sqrt(NONE_MASS * (1 - NONE_MASS) / self.num_tasks)
        cause = GrowthCause(NONE, NONE_MASS, share, "evidence", t=(share - NONE_MASS) / chance)
        return dataclasses.replace(state, last_step=step), cause if share > NONE_MASS + CHANCE * chance else None

    def share_of_none(self, seen: Observation) -> float:
        """The share of fresh tasks for which "none of these" is likelier than all clusters."""
        keys = jax.random.split(jax.random.fold_in(seen.key, 1), self.num_tasks)
        tasks = seen.tasks.at(jnp.asarray(seen.record.step - 1, jnp.int32))
        size = seen.task_chunk_size
        found = probe(seen.learner, seen.meta, tasks, keys, keep_novelty, steps=0, task_chunk_size=size)
        return float((found > NONE_LOG_ODDS).mean())


def keep_novelty(task: Task, predictor: Predictor, info: Info) -> Float[Array, ""]:
    """For `outer.probe`: the log Bayes factor of "none of these"."""
    del task, predictor
    return info.novelty[NONE]


def embeddings(seen: Observation, tasks: TaskDraw, keys: Array) -> np.ndarray:
    """Embeddings of a fresh task for each key."""
    return probe(seen.learner, seen.meta, tasks, keys, keep_embedding, steps=0, task_chunk_size=seen.task_chunk_size)


def keep_embedding(task: Task, predictor: Predictor, info: Info) -> Float[Array, " d"]:
    """For `outer.probe`: the task's embedding."""
    del task, predictor
    assert info.task_embedding is not None
    return info.task_embedding


def along_the_difference(before: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The second half of each, along the direction that separates the first halves (a linear discriminant).

    The direction is computed from other tasks than the statistic: if nothing has changed, it is arbitrary.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    half = len(now) // 2
    discriminant = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    discriminant.fit(np.concatenate([before[:half], now[:half]]), np.repeat([0, 1], half))
    return discriminant.decision_function(before[half:]), discriminant.decision_function(now[half:])


def welch_t(first: np.ndarray, second: np.ndarray) -> float:
    """Welch's t statistic, (mean₁ - mean₂) / √(s₁²/n₁ + s₂²/n₂)."""
    variance = sum(np.var(one, ddof=1) / len(one) for one in (first, second))
    return float((np.mean(first) - np.mean(second)) / max(math.sqrt(variance), 1e-12))


DETECTORS: dict[str, Callable[[Growth], Detector]] = {
    "ratio": lambda growth: RatioDetector(growth.growth_window, growth.growth_threshold),
    "novelty": lambda growth: NoveltyDetector(growth.growth_window, growth.growth_t, growth.growth_probe),
    "evidence": lambda growth: EvidenceDetector(growth.growth_window, growth.growth_probe),
}
"""The detectors by name, made from the settings of growth."""

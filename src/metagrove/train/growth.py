"""Noticing that the tasks have changed, and growing for it (paper, algorithm 1, lines 3-5 and 12).

What is watched is the loss as it is trained, ξ·L_r included; the accuracy of a classifier; or the tasks' embeddings,
see `run.novelty`.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.config.config import Config, Growth, Training
from metagrove.hsml.grow import grow, shrink
from metagrove.hsml.learner import HSML, HSMLMeta
from metagrove.keys import key_for
from metagrove.outer import over_tasks
from metagrove.sources.source import TaskDraw
from metagrove.sources.stream import tasks_at
from metagrove.train.novelty import novelty, welch_t
from metagrove.train.scores import Scores
from metagrove.train.validate import validation_scores

PROBE = 100
"""Tasks of the stream among which those that fit worst are looked for."""
WORST = 0.25
"""The share of them that a warm cluster starts at."""


@dataclasses.dataclass
class Watch:
    """The windows of training that are compared; plain data, so that a checkpoint can keep it."""

    blocks: list[list[float]] = dataclasses.field(default_factory=list)
    """(meta-steps, mean) of each block of the window that is being filled."""
    before: list[list[float]] = dataclasses.field(default_factory=list)
    """The same of the last window."""
    last_growth: int = 0
    last_step: int = 0
    """Of the last block or, with novelty, of the last look."""

    def see(self, record: dict[str, Any], growth: Growth) -> dict[str, Any] | None:
        """Take in a block of training; at the end of a window that calls for growth, its cause."""
        num_steps, self.last_step = record["step"] - self.last_step, record["step"]
        watched = "accuracy" if "accuracy" in record else "loss"
        self.blocks.append([float(num_steps), record[watched]])
        if record["step"] % growth.growth_window:
            return None
        before, self.before, self.blocks = self.before, self.blocks, []
        if not before or record["step"] < self.last_growth + growth.growth_cooldown:
            return None
        cause = compare_windows(before, self.before, growth, higher_is_better=watched == "accuracy")
        return {"watched": watched, **cause} if cause.pop("grow") else None


def compare_windows(
    before: list[list[float]], now: list[list[float]], growth: Growth, *, higher_is_better: bool
) -> dict[str, Any]:
    """Two windows' means and whether the second calls for growth, with the number that decided it."""
    old, new = window_mean(before), window_mean(now)
    cause: dict[str, Any] = {"last_window": old, "this_window": new, "detector": growth.growth_detector}
    if growth.growth_detector == "ratio":
        worse = new < growth.growth_threshold * old if higher_is_better else new > growth.growth_threshold * old
        return {**cause, "ratio": new / old if old else math.inf, "grow": bool(worse)}
    t = welch_t([mean for _, mean in now], [mean for _, mean in before]) * (-1 if higher_is_better else 1)
    return {**cause, "t": t, "grow": bool(t > growth.growth_t)}


def window_mean(blocks: list[list[float]]) -> float:
    """The mean over the meta-steps of a window."""
    return math.fsum(count * mean for count, mean in blocks) / math.fsum(count for count, _ in blocks)


def change_clusters(
    config: Config, state: Any, tasks: TaskDraw, record: dict[str, Any], watch_data: dict[str, Any]
) -> tuple[Config, Any]:
    """Add a cluster if training calls for it, or remove those that nothing uses.

    What was done goes into `record`, what was seen into `watch_data`; `state` is that of `run.train`.
    """
    training, growth, learner = config.training, config.training.growth, config.learner
    assert isinstance(learner, HSML), "see growth_errors"
    watch, step = Watch(**watch_data), record["step"]
    resting = step < watch.last_growth + growth.growth_cooldown or step == training.steps
    key = jax.random.fold_in(key_for("growth", training.seed), step)
    resting_or_full = resting or learner.clusters[0] >= growth.most_clusters
    if growth.growth_detector != "novelty":
        cause = watch.see(record, growth)
    elif resting_or_full or step % growth.growth_window:
        cause = None
    else:
        cause = novelty_cause(config, state, tasks, watch.last_step, key)
        watch.last_step = step
    new, meta, opt_state, event = learner, state.meta, state.opt_state, None
    if cause is not None and not resting_or_full:
        watch.last_growth = step
        mix = tasks_at(tasks, state.step, training.steps)
        new, meta, opt_state = grow_now(new, meta, opt_state, mix, training, key=key)
        event = {"cause": cause, "start": growth.growth_start}
    elif growth.retire_below and "validation" in record and not resting:
        shares = np.array(record["validation"]["shares"])
        new, meta, opt_state, gone = retire(new, meta, opt_state, shares, growth)
        event = {"cause": {"retired": gone, "shares": shares.tolist()}} if gone else None
    watch_data.update(dataclasses.asdict(watch))
    if event is None:
        return config, state
    grown = dataclasses.replace(config, learner=new)
    changed = relative_change(validation_scores(config, state.meta), validation_scores(grown, meta))
    clusters = {"from": list(learner.clusters), "clusters": list(new.clusters)}
    record["growth"] = {**clusters, **event, "changed": changed}
    return grown, dataclasses.replace(state, meta=meta, opt_state=opt_state)


def novelty_cause(
    config: Config, state: Any, tasks: TaskDraw, last_look: int, key: PRNGKeyArray
) -> dict[str, Any] | None:
    """What tells that tasks are of other kinds than at the last look, if they are."""
    learner, training = config.learner, config.training
    assert isinstance(learner, HSML), "see growth_errors"
    since = jnp.asarray(last_look, state.step.dtype)
    found = novelty(learner, state.meta, tasks, since, state.step, training, key=jax.random.fold_in(key, 1))
    return found if found["t"] > training.growth.growth_t else None


def grow_now(
    learner: HSML, meta: HSMLMeta, opt_state: Any, tasks: TaskDraw, training: Training, *, key: PRNGKeyArray
) -> tuple[HSML, HSMLMeta, Any]:
    """One more cluster at the first level and, if parents grow too, at each level that has become too narrow."""
    growth = training.growth
    place_key, *keys = jax.random.split(key, 1 + len(learner.clusters))
    for level in range(len(learner.clusters) - 1):  # the root stays alone
        narrow = growth.growth_parents and 2 * learner.clusters[level] < learner.clusters[max(0, level - 1)]
        if level == 0 or (narrow and learner.clusters[level] > 1):
            start = growth.growth_start if level == 0 else "random"
            place = (
                None if start == "random" else place_of_worst(learner, meta, tasks, place_key, training.task_chunk_size)
            )
            learner, meta, opt_state = grow(
                learner, meta, opt_state, key=keys[level], level=level, start=start, place=place
            )
    return learner, meta, opt_state


@eqx.filter_jit
def place_of_worst(
    learner: HSML, meta: HSMLMeta, tasks: TaskDraw, key: PRNGKeyArray, task_chunk_size: int
) -> Float[Array, " d"]:
    """The mean place of the tasks that the model fits worst."""

    def one(key: PRNGKeyArray) -> tuple[Array, Array]:
        task = tasks.sample(key)
        predictor, info = learner.adapt(meta, task.support)
        assert info.task_embedding is not None
        place = meta.cluster.space(info.task_embedding)
        return learner.loss(predictor(task.query.x, task.query.mask), task.query.y, task.query.mask), place

    losses, places = over_tasks(one, jax.random.split(key, PROBE), task_chunk_size=task_chunk_size)
    worst = jax.lax.top_k(losses, round(WORST * PROBE))[1]
    return places[worst].mean(0)


def retire(
    learner: HSML, meta: HSMLMeta, opt_state: Any, shares: np.ndarray, growth: Growth
) -> tuple[HSML, HSMLMeta, Any, list[int]]:
    """Without the first-level clusters that have almost no share of the tasks; two always stay."""
    gone = [int(k) for k in np.argsort(shares) if shares[k] < growth.retire_below]
    gone = sorted(gone[: max(0, learner.clusters[0] - 2)], reverse=True)
    for cluster in gone:
        learner, meta, opt_state = shrink(learner, meta, opt_state, cluster=cluster)
    return learner, meta, opt_state, gone


def relative_change(before: Scores, after: Scores) -> float:
    """How much answers changed: root mean square of the difference over that of the answers."""
    old, new = (np.asarray(scores.answers) for scores in (before, after))
    return float(np.sqrt(np.square(new - old).mean() / max(np.square(old).mean(), 1e-12)))


def as_grown(config: Config, about: dict[str, Any]) -> Config:
    """The config as a checkpoint has it: with as many clusters as had grown by then."""
    clusters = about.get("clusters")
    if clusters is None or not isinstance(config.learner, HSML):
        return config
    return dataclasses.replace(config, learner=config.learner.with_clusters(tuple(clusters)))


def clusters_of(config: Config) -> dict[str, Any]:
    """What a checkpoint must know to be read again."""
    return {"clusters": list(config.learner.clusters)} if isinstance(config.learner, HSML) else {}


def describe_growth(event: dict[str, Any]) -> str:
    """A growth event in words."""
    cause, clusters = event["cause"], f"{tuple(event['from'])} -> {tuple(event['clusters'])}"
    changed = f"answers changed by {100 * event['changed']:.1f} %"
    if "retired" in cause:
        return f"clusters {clusters}, {len(cause['retired'])} that nothing used retired; {changed}"
    decided = f"ratio {cause['ratio']:.2f}" if "ratio" in cause else f"t {cause['t']:.1f}"
    windows = f"{cause['watched']} from {cause['last_window']:.3f} to {cause['this_window']:.3f}"
    return f"clusters {clusters}, {windows} ({decided}); {changed}"

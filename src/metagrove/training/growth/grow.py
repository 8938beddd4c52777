"""Growth after a detection: one more first-level cluster, and a record of the event."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.config.config import Config
from metagrove.errors import RunError
from metagrove.files import Json
from metagrove.keys import key_for
from metagrove.learner import Info, Learner, Meta, Predictor
from metagrove.outer import adapt_and_keep, map_batch
from metagrove.sources.source import TaskDraw, TaskSchedule
from metagrove.task import Task
from metagrove.training.growth.detect import DETECTORS, Observation
from metagrove.training.records import BlockRecord, GrowthEvent, GrowthState
from metagrove.training.scores import Scores
from metagrove.training.validate import validation_scores

PROBE = 100
"""Number of tasks among which those with the largest loss are selected."""
WORST = 0.25
"""Fraction of these tasks at whose mean a warm cluster is initialised."""


class Grown(NamedTuple):
    """The state with which training continues after a block, with one more cluster if it grew."""

    config: Config
    meta: Meta
    opt_state: Any
    watch: GrowthState
    event: GrowthEvent | None = None


def grow_if_called_for(
    config: Config, meta: Meta, opt_state: Any, tasks: TaskSchedule, record: BlockRecord, watch: GrowthState
) -> Grown:
    """Show a block of training to the detector, and add a cluster if it calls for one."""
    training, growth, learner = config.training, config.training.growth, config.learner
    step = record.step
    resting = step < watch.last_growth + growth.growth_cooldown or step == training.steps
    key = jax.random.fold_in(key_for("growth", training.seed), step)
    can_grow = not resting and learner.clusters[0] < growth.most_clusters
    seen = Observation(record, learner, meta, tasks, can_grow, key, training.task_chunk_size)
    watch, cause = DETECTORS[growth.growth_detector](growth).observe(watch, seen)
    if cause is None:
        return Grown(config, meta, opt_state, watch)
    now = tasks.at(jnp.asarray(step, jnp.int32))
    new_learner, new_meta, new_opt_state = add_cluster(config, meta, opt_state, now, key=key)
    grown = dataclasses.replace(config, learner=new_learner)
    changed = relative_change(validation_scores(config, meta), validation_scores(grown, new_meta))
    event = GrowthEvent(learner.clusters, new_learner.clusters, cause, growth.growth_start, changed)
    return Grown(grown, new_meta, new_opt_state, dataclasses.replace(watch, last_growth=step), event)


def add_cluster(
    config: Config, meta: Meta, opt_state: Any, tasks: TaskDraw, *, key: PRNGKeyArray
) -> tuple[Learner, Meta, Any]:
    """The learner, its meta-parameters and the optimiser's state with one more cluster, by `growth_start`."""
    learner, start = config.learner, config.training.growth.growth_start
    place_key, cluster_key, *_ = jax.random.split(key, 1 + len(learner.clusters))
    place = None
    if start == "warm":
        place = mean_of_worst(learner, meta, tasks, place_key, config.training.task_chunk_size)
    return learner.grow(meta, opt_state, key=cluster_key, start=start, place=place, tasks=tasks)


@eqx.filter_jit
def mean_of_worst(
    learner: Learner, meta: Meta, tasks: TaskDraw, key: PRNGKeyArray, task_chunk_size: int
) -> Float[Array, " d"]:
    """The mean, in the space of the centres, of the tasks that the model fits worst."""

    def keep(task: Task, predictor: Predictor, info: Info) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        assert info.task_embedding is not None
        loss = learner.loss(predictor(task.query.x, task.query.mask), task.query.y, task.query.mask)
        return loss, learner.cluster_space(meta, info.task_embedding)

    keys = jax.random.split(key, PROBE)
    losses, places = map_batch(adapt_and_keep(learner, meta, keep), tasks, keys, task_chunk_size)
    worst = jax.lax.top_k(losses, round(WORST * PROBE))[1]
    return places[worst].mean(0)


def relative_change(before: Scores, after: Scores) -> float:
    """Return the relative change of predictions: root mean square of the difference over that of the predictions."""
    old, new = (np.asarray(scores.answers) for scores in (before, after))
    return float(np.sqrt(np.square(new - old).mean() / max(np.square(old).mean(), 1e-12)))


def as_grown(config: Config, clusters: tuple[int, ...]) -> Config:
    """The config with the clusters of a checkpoint, after growth or a fit.

    A fit before the first meta-step may find fewer clusters than there are levels, and drops those levels.
    """
    fewer = len(clusters) < len(config.learner.clusters) and bool(config.learner.phases())
    if clusters and len(clusters) != len(config.learner.clusters) and not fewer:
        raise RunError(f"the checkpoint has clusters on {len(clusters)} levels, run.json on another number: copy both")
    return dataclasses.replace(config, learner=config.learner.with_clusters(clusters)) if clusters else config


def clusters_of(config: Config) -> Json:
    """Return the numbers of clusters that a checkpoint stores for `as_grown`."""
    return {"clusters": list(config.learner.clusters)} if config.learner.clusters else {}


def describe_growth(event: GrowthEvent) -> str:
    """Describe a growth event in one line."""
    cause = event.cause
    decided = f"t {cause.t:.1f}" if cause.ratio is None else f"ratio {cause.ratio:.2f}"
    windows = f"{cause.watched} from {cause.last_window:.3f} to {cause.this_window:.3f}"
    changed = f"predictions changed by {100 * event.changed:.1f} %"
    return f"clusters {event.before} -> {event.clusters}, {windows} ({decided}); {changed}"

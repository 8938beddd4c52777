"""One meta-step (paper, algorithm 1): the meta-gradient of a batch of tasks, and the update of the optimiser."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from metagrove.config.config import Training
from metagrove.learner import Learner, Meta, Phase
from metagrove.outer import Cut, Gradient, block_gradient_fn
from metagrove.sources.source import TaskSchedule
from metagrove.training.phases import State


class Block(eqx.Module):
    """Metrics of a block of meta-steps: means over it, and whether they are finite."""

    means: dict[str, Float[Array, ""]]
    finite: dict[str, Bool[Array, ""]]


class Recipe(NamedTuple):
    """Static arguments of the compiled program of meta-steps."""

    learner: Learner
    training: Training
    phase: Phase
    fits: bool
    """Whether the phase is a fit before the first meta-step."""

    @property
    def cut(self) -> Cut:
        """The division of a meta-batch into blocks of tasks."""
        return cut_of(self.training)


class Data(eqx.Module):
    """Of meta-steps, what their program is given beside the state."""

    schedule: TaskSchedule
    key: PRNGKeyArray
    begin: Int[Array, ""]
    """The first meta-step of the phase."""
    end: Int[Array, ""]
    """The meta-step that the phase ends before."""
    steps: Int[Array, ""]
    """Length of the schedule of the learning rate."""


def cut_of(training: Training) -> Cut:
    """Return the division of a meta-batch into blocks of tasks, which as many devices can share."""
    return Cut.of(training.meta_batch, training.task_chunk_size, training.task_blocks)


def step_gradient_fn(recipe: Recipe, data: Data, state: State) -> Callable[[Any], Gradient]:
    """A function of a block's number: what its tasks add to the meta-gradient of the step that `state` is at."""
    learner, training, phase, fits = recipe
    task_key, learner_key = jax.random.split(jax.random.fold_in(data.key, state.step))
    now = jnp.maximum(state.step, 0)  # a fit before the first meta-step has the tasks of the first
    sample, task_keys = data.schedule.at(now).sample, jax.random.split(task_key, training.meta_batch)
    progress = (state.step - data.begin) / jnp.maximum(data.end - data.begin, 1)
    trainable = trained_leaves(learner, state.meta, phase, fits=fits)
    how = {"key": learner_key, "sample": sample, "trainable": trainable, "loss": phase.loss, "progress": progress}
    return block_gradient_fn(learner, state.meta, task_keys, recipe.cut, **how)


def updated(recipe: Recipe, data: Data, state: State, gradient: Gradient) -> tuple[State, dict[str, Array]]:
    """The state after the update of the optimiser, and what is logged of the step."""
    learner, training, phase, fits = recipe
    loss, metrics, grads = gradient
    optimizer = training.optimizer(data.steps)
    updates, opt_state = optimizer.update(grads, state.opt_state, eqx.filter(state.meta, eqx.is_inexact_array))
    trainable = trained_leaves(learner, state.meta, phase, fits=fits)
    seen = {"loss": loss, "gradient_norm": optax.tree.norm(grads), **metrics}
    return State(eqx.apply_updates(state.meta, eqx.filter(updates, trainable)), opt_state, state.step + 1), seen


def trained_leaves(learner: Learner, meta: Meta, phase: Phase, *, fits: bool = False) -> Any:
    """Which leaves of the meta-parameters a phase trains, a tree of booleans.

    Those that the phase names, if it names any, among those that the learner trains by meta-steps; in a fit before the
    first meta-step among all.
    """
    mask = jax.tree.map(eqx.is_inexact_array, meta) if fits else learner.trainable(meta)
    if not phase.trains:
        return mask
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf and path[0].name in phase.trains, mask)

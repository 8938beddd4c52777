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
from metagrove.outer import Cut, block_gradient_fn
from metagrove.sources.source import TaskSchedule
from metagrove.training.packing import Arrays, PackedState, Packing

PackedGradient = tuple[Float[Array, ""], dict[str, Float[Array, ""]], Arrays]
"""As `outer.Gradient`, with the gradient packed."""


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
    """Dynamic arguments of the compiled program of meta-steps, besides the state."""

    schedule: TaskSchedule
    key: PRNGKeyArray
    begin: Int[Array, ""]
    """The first meta-step of the phase."""
    end: Int[Array, ""]
    """The meta-step after the last one of the phase."""
    steps: Int[Array, ""]
    """Length of the schedule of the learning rate."""


def cut_of(training: Training) -> Cut:
    """Return the division of a meta-batch into blocks of tasks, which as many devices can share."""
    return Cut.of(training.meta_batch, training.task_chunk_size, training.task_blocks)


def packing_of(recipe: Recipe, meta: Meta) -> Packing:
    """How the state is packed. Where clusters are added, Adam's counts are by row, and nothing is packed."""
    return Packing.of(meta, large=0) if recipe.training.growth.growth_window else Packing.of(meta)


def step_gradient_fn(
    recipe: Recipe, data: Data, packing: Packing, state: PackedState
) -> Callable[[Any], PackedGradient]:
    """A function of a block's number: what its tasks add to the meta-gradient of the step that `state` is at."""
    learner, training, phase, fits = recipe
    meta, step = packing.meta(state), state.step
    task_key, learner_key = jax.random.split(jax.random.fold_in(data.key, step))
    now = jnp.maximum(step, 0)  # a fit before the first meta-step has the tasks of the first
    sample, task_keys = data.schedule.at(now).sample, jax.random.split(task_key, training.meta_batch)
    progress = (step - data.begin) / jnp.maximum(data.end - data.begin, 1)
    trainable = trained_leaves(learner, meta, phase, fits=fits)
    how = {"key": learner_key, "sample": sample, "trainable": trainable, "loss": phase.loss, "progress": progress}
    gradient = block_gradient_fn(learner, meta, task_keys, recipe.cut, **how)

    def packed(i: Any) -> PackedGradient:
        loss, metrics, grads = gradient(i)
        return loss, metrics, packing.pack(grads)

    return packed


def updated(
    recipe: Recipe, data: Data, packing: Packing, state: PackedState, gradient: PackedGradient
) -> tuple[PackedState, dict[str, Array]]:
    """The state after the update of the optimiser, and what is logged of the step."""
    learner, training, phase, fits = recipe
    loss, metrics, grads = gradient
    optimizer: Any = training.optimizer(data.steps)  # optax types trees of arrays, not modules
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    meta = packing.meta(state)
    mask = trained_leaves(learner, meta, phase, fits=fits)
    both = zip(jax.tree.leaves(mask), jax.tree.leaves(meta), strict=True)
    updates = packing.keep_trained(updates, [yes for yes, leaf in both if eqx.is_inexact_array(leaf)])
    seen = {"loss": loss, "gradient_norm": optax.tree.norm(grads), **metrics}
    return PackedState(eqx.apply_updates(state.params, updates), opt_state, state.step + 1), seen


def trained_leaves(learner: Learner, meta: Meta, phase: Phase, *, fits: bool = False) -> Any:
    """Which leaves of the meta-parameters a phase trains, a tree of booleans.

    Those that the phase names, if it names any, among those that the learner trains by meta-steps; in a fit before the
    first meta-step among all.
    """
    mask = jax.tree.map(eqx.is_inexact_array, meta) if fits else learner.trainable(meta)
    if not phase.trains:
        return mask
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf and path[0].name in phase.trains, mask)

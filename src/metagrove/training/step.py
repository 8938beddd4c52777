"""One meta-step (paper, algorithm 1): the meta-gradient of a batch of tasks, and the update of the optimiser."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from metagrove.adam import global_norm
from metagrove.config.config import Training
from metagrove.learner import Learner, Meta, Phase
from metagrove.outer import Cut, block_gradient_fn
from metagrove.sources.source import TaskSchedule
from metagrove.task import Task
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


class Draw(NamedTuple):
    """Randomness of the meta-batch of a step."""

    tasks: Any
    """A task for each entry of the meta-batch, or the key that it is drawn from."""
    learner_keys: Key[Array, " n"]


def draw_keys(recipe: Recipe, data: Data, step: Int[Array, ""]) -> Draw:
    """The keys of a meta-step, of its tasks and of the learner."""
    task_key, learner_key = jax.random.split(jax.random.fold_in(data.key, step))
    return Draw(*(jax.random.split(key, recipe.training.meta_batch) for key in (task_key, learner_key)))


def draw_task(data: Data, step: Int[Array, ""], key: PRNGKeyArray) -> Task:
    """A task of a meta-step. A fit before the first meta-step has the tasks of the first."""
    return data.schedule.at(jnp.maximum(step, 0)).sample(key)


def draw_tasks(recipe: Recipe, data: Data, step: Int[Array, ""]) -> Draw:
    """The tasks of a meta-step and the keys of the learner."""
    drawn = draw_keys(recipe, data, step)
    return drawn._replace(tasks=jax.vmap(lambda key: draw_task(data, step, key))(drawn.tasks))


def step_gradient_fn(
    recipe: Recipe, data: Data, packing: Packing, state: PackedState, drawn: Draw | None = None
) -> Callable[[Any], PackedGradient]:
    """A function of a block's number: what its tasks add to the meta-gradient of the step that `state` is at.

    Without `drawn`, each block draws its own tasks.
    """
    learner, _, phase, fits = recipe
    meta, step = packing.meta(state), state.step
    progress = (step - data.begin) / jnp.maximum(data.end - data.begin, 1)
    how = {"trainable": trained_leaves(learner, meta, phase, fits=fits), "loss": phase.loss, "progress": progress}
    if drawn is None:
        drawn, how["sample"] = draw_keys(recipe, data, step), lambda key: draw_task(data, step, key)
    gradient = block_gradient_fn(learner, meta, drawn.tasks, recipe.cut, keys=drawn.learner_keys, **how)

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
    seen = {"loss": loss, "gradient_norm": global_norm(grads), **metrics}
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

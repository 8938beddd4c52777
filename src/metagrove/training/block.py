"""A compiled block of many meta-steps (paper, algorithm 1)."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Int

from metagrove.config.config import Training
from metagrove.devices import task_mesh
from metagrove.keys import key_for
from metagrove.learner import Learner
from metagrove.sources.source import TaskSchedule
from metagrove.training.packing import PackedState
from metagrove.training.phases import State, part_at
from metagrove.training.spread import run_spread
from metagrove.training.step import Block, Data, Recipe, packing_of, step_gradient_fn, updated


def run_block(
    learner: Learner,
    tasks: TaskSchedule,
    training: Training,
    state: State,
    stop: Int[Array, ""],
    *,
    mesh: Mesh | None = None,
) -> tuple[State, Block]:
    """Meta-steps up to `stop`, or up to the first that is not finite: its update is not made.

    A step depends on the seed, the state and its own number, never on where blocks of meta-steps begin and end. The
    seed and the number of meta-steps are data, so that a run of another seed or length does not recompile.

    A meta-batch that is one block of tasks is computed on one device, all meta-steps in one compiled call. One that is
    cut into several is computed by `training.spread` on the devices of `mesh` (by default one), with the same result
    bit for bit for every number of devices.
    """
    part, key = part_at(learner, training, int(state.step)), key_for("train", training.seed)
    span = (jnp.asarray(n, jnp.int32) for n in (part.begin, part.end, part.training.steps))
    phase = dataclasses.replace(part.phase, steps=0)
    recipe, data = Recipe(part.learner, compiled_settings(part.training), phase, part.fits), Data(tasks, key, *span)
    if recipe.cut.blocks == 1:
        return _run_block(recipe, data, state, stop)
    return run_spread(mesh or task_mesh(1), recipe, data, state, int(stop))


def compiled_settings(training: Training) -> Training:
    """The settings that the compiled block depends on; the others are as by default, the seed and steps among them."""
    unused = ("seed", "steps", "phases", "log_every", "validate_every", "validation_tasks", "patience")
    unused = (*unused, "max_eval_inner_steps", "pretrain_steps")
    default = Training()
    return dataclasses.replace(training, **{name: getattr(default, name) for name in unused})


@eqx.filter_jit
def _run_block(recipe: Recipe, data: Data, state: State, stop: Int[Array, ""]) -> tuple[State, Block]:
    packing = packing_of(recipe, state.meta)
    begin = packing.pack_state(state)

    @functools.partial(jax.jit, inline=True)  # traced once, though it is used twice
    def meta_step(state: PackedState) -> tuple[PackedState, dict[str, Array]]:
        return updated(recipe, data, packing, state, step_gradient_fn(recipe, data, packing, state)(0))

    def go_on(carry) -> Array:
        state, _, finite = carry
        return (state.step < stop) & jnp.stack(list(finite.values())).all()

    def body(carry):
        state, sums, _ = carry
        new, seen = meta_step(state)
        finite = jax.tree.map(jnp.isfinite, seen)
        ok = jnp.stack(list(finite.values())).all()
        kept = jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, state)
        return kept, jax.tree.map(jnp.add, sums, seen), finite

    _, names = jax.eval_shape(meta_step, begin)
    sums = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), names)
    finite = jax.tree.map(lambda s: jnp.ones(s.shape, bool), names)
    after, sums, finite = jax.lax.while_loop(go_on, body, (begin, sums, finite))
    count = jnp.maximum(after.step - begin.step, 1)
    return packing.unpack_state(after), Block(jax.tree.map(lambda s: s / count, sums), finite)

"""A compiled block of many meta-steps (paper, algorithm 1)."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int

from metagrove.config.config import Training
from metagrove.devices import task_mesh
from metagrove.keys import key_for
from metagrove.learner import Learner
from metagrove.sources.source import TaskSchedule
from metagrove.training.packing import PackedState
from metagrove.training.phases import State, part_at
from metagrove.training.spread import run_spread
from metagrove.training.step import (
    Block,
    Data,
    Draw,
    Recipe,
    draw_tasks,
    packing_of,
    step_gradient_fn,
    updated,
)


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


STEPS_DRAWN, MOST_BYTES_DRAWN = (100, 50, 25, 20, 10, 5, 4, 2), 2**20
"""Numbers of meta-steps whose tasks are drawn at once, divisors of the default of --log-every, and the limit of their
size: random numbers cost less in long arrays than in many short ones, and tasks of images take too much memory."""


Carry = tuple[PackedState, dict[str, Array], dict[str, Array]]
"""The state, the sums of what is logged, and whether the last of it was finite."""


@eqx.filter_jit
def _run_block(recipe: Recipe, data: Data, state: State, stop: Int[Array, ""]) -> tuple[State, Block]:
    packing, ahead = packing_of(recipe, state.meta), steps_drawn_at_once(recipe, data)
    begin = packing.pack_state(state)

    @functools.partial(jax.jit, inline=True)  # traced once, though it is used twice
    def meta_step(state: PackedState, drawn: Draw) -> tuple[PackedState, dict[str, Array]]:
        return updated(recipe, data, packing, state, step_gradient_fn(recipe, data, packing, state, drawn)(0))

    def steps_of_a_draw(carry: Carry) -> Carry:
        first = carry[0].step // ahead * ahead  # whatever step a block begins with
        drawn, last = draw_ahead(recipe, data, first, ahead), jnp.minimum(stop, first + ahead)

        def body(carry: Carry) -> Carry:
            return advanced(carry, *meta_step(carry[0], jax.tree.map(lambda leaf: leaf[carry[0].step - first], drawn)))

        return jax.lax.while_loop(lambda carry: goes_on(carry, last), body, carry)

    _, names = jax.eval_shape(meta_step, begin, jax.eval_shape(lambda: draw_tasks(recipe, data, begin.step)))
    sums = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), names)
    finite = jax.tree.map(lambda s: jnp.ones(s.shape, bool), names)
    whole = jax.lax.while_loop(lambda carry: goes_on(carry, stop), steps_of_a_draw, (begin, sums, finite))
    after, sums, finite = whole
    count = jnp.maximum(after.step - begin.step, 1)
    return packing.unpack_state(after), Block(jax.tree.map(lambda s: s / count, sums), finite)


def goes_on(carry: Carry, stop: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether there is another meta-step before `stop`: all so far were finite."""
    return (carry[0].step < stop) & jnp.stack(list(carry[2].values())).all()


def advanced(carry: Carry, new: PackedState, seen: dict[str, Array]) -> Carry:
    """After a meta-step: its update, if what was seen is finite."""
    finite = jax.tree.map(jnp.isfinite, seen)
    ok = jnp.stack(list(finite.values())).all()
    kept = jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, carry[0])
    return kept, jax.tree.map(jnp.add, carry[1], seen), finite


def steps_drawn_at_once(recipe: Recipe, data: Data) -> int:
    """The number of meta-steps whose tasks are drawn at once."""
    drawn = jax.eval_shape(lambda: draw_tasks(recipe, data, data.begin))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(drawn.tasks))
    return next((count for count in STEPS_DRAWN if count * size <= MOST_BYTES_DRAWN), 1)


def draw_ahead(recipe: Recipe, data: Data, first: Int[Array, ""], count: int) -> Draw:
    """The draws of `count` meta-steps, with a leading axis of steps."""
    if count == 1:  # without a mapped axis
        return jax.tree.map(lambda leaf: leaf[None], draw_tasks(recipe, data, first))
    return jax.vmap(lambda step: draw_tasks(recipe, data, step))(first + jnp.arange(count))

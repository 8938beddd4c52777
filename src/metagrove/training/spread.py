"""Meta-steps whose tasks are distributed over devices, with a result that does not depend on their number.

A meta-batch is cut into blocks of tasks, and each device computes its own blocks:

    every device:  gradients of its own blocks   ->   gather   ->   sum over all blocks in their order, update   -> ...

All arithmetic is one compiled program for a single device, the same for every number of devices; between two calls
values are moved and nothing is computed. A program that is compiled for several devices at once is optimised
differently and rounds differently, even where a device computes the same.
"""

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from metagrove.devices import gather_rows, local_places, shares
from metagrove.training.packing import PackedState, Packing
from metagrove.training.phases import State
from metagrove.training.step import Block, Data, Recipe, packing_of, step_gradient_fn, updated

Rows = Float[Array, "blocks n"]
"""The gradient of each block with its loss and metrics, raveled; those of other devices' blocks are 0."""


class Progress(eqx.Module):
    """The state, with sums of the metrics since the first meta-step of a call, and whether the last were finite."""

    state: PackedState
    sums: dict[str, Float[Array, ""]]
    finite: dict[str, Bool[Array, ""]]


def run_spread(mesh: Mesh, recipe: Recipe, data: Data, state: State, stop: int) -> tuple[State, Block]:
    """Meta-steps up to `stop`, or up to the first that is not finite, with the blocks distributed over a mesh."""
    packing = packing_of(recipe, state.meta)
    packed = eqx.filter_jit(packing.pack_state)(state)
    arrays, static = eqx.partition((data, packing.rest), is_array)
    leaves, structure = jax.tree.flatten(static)
    how = dataclasses.replace(packing, rest=None)
    advance, empty = compiled_step(recipe, how, structure, tuple(leaves), shapes_of((arrays, packed)))
    own, places, first = shares(recipe.cut.blocks, mesh.size), local_places(mesh), int(state.step)
    given, progress, rows = {}, {}, {}
    for place, device in places.items():
        given[place] = jax.device_put((arrays, np.int32(own[place].start)), device)
        progress[place], rows[place] = jax.device_put(empty(jax.tree.map(jnp.copy, packed)), device)
    for step in range(first, stop + 1):  # the first call computes a gradient alone, the last one updates alone
        update, counts = np.bool_(step > first), {place: len(own[place]) if step < stop else 0 for place in places}
        args = {
            place: (given[place], progress[place], rows[place], update, np.int32(counts[place])) for place in places
        }
        found = call_all(advance, args, compiles=step == first)
        progress = {place: one[0] for place, one in found.items()}
        rows = gather_rows({place: one[1] for place, one in found.items()}, mesh)
    after = progress[min(places)]
    count = jnp.maximum(after.state.step - first, 1)
    return packing.unpack_state(after.state), Block(jax.tree.map(lambda s: s / count, after.sums), after.finite)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is data of the compiled program."""
    return isinstance(leaf, jax.Array | np.ndarray)


def call_all(fn: Callable[..., Any], args: dict[int, tuple[Any, ...]], *, compiles: bool) -> dict[int, Any]:
    """Call `fn` for each device; calls that compile run in parallel, others return before their work is done."""
    if not compiles or len(args) == 1:
        return {place: fn(*each) for place, each in args.items()}
    with ThreadPoolExecutor(len(args)) as pool:
        return dict(zip(args, pool.map(lambda each: fn(*each), args.values()), strict=True))


def shapes_of(tree: Any) -> Any:
    """The shapes of a tree of arrays as a hashable value."""
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree))
    return structure, tuple(leaves)


@functools.lru_cache(maxsize=32)
def compiled_step(
    recipe: Recipe, packing: Packing, structure: Any, leaves: tuple[Any, ...], shapes: Any
) -> tuple[Callable[..., tuple[Progress, Rows]], Callable[[Any], tuple[Progress, Rows]]]:
    """The program of a device, and its initial values: empty sums and gradients."""
    static, num_blocks = jax.tree.unflatten(structure, leaves), recipe.cut.blocks

    def whole(arrays: Any) -> tuple[Data, Packing]:
        data, rest = eqx.combine(arrays, static)
        return data, dataclasses.replace(packing, rest=rest)

    def gradient_fn(arrays: Any, state: PackedState) -> Callable[[Any], Any]:
        return step_gradient_fn(recipe, *whole(arrays), state)

    like = jax.eval_shape(lambda arrays, state: gradient_fn(arrays, state)(0), *jax.tree.unflatten(*shapes))
    flat, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like))

    def advance(given: Any, progress: Progress, rows: Rows, update: Array, count: Array) -> tuple[Progress, Rows]:
        arrays, first = given
        total = functools.reduce(jnp.add, [rows[i] for i in range(num_blocks)])
        new, seen = updated(recipe, *whole(arrays), progress.state, unravel(total))
        progress = followed(progress, new, seen, update)
        gradient, ok = gradient_fn(arrays, progress.state), jnp.stack(list(progress.finite.values())).all()

        def put(i: Array, rows: Rows) -> Rows:
            return rows.at[first + i].set(ravel_pytree(gradient(first + i))[0])

        return progress, jax.lax.fori_loop(0, jnp.where(ok, count, 0), put, jnp.zeros_like(rows))

    no_rows = jnp.zeros((num_blocks, flat.size), flat.dtype)
    return jax.jit(advance, donate_argnums=(1,)), lambda state: (no_progress(state, list(like[1])), no_rows)


def no_progress(state: PackedState, metrics: list[str]) -> Progress:
    """The progress before the first meta-step of a call."""
    names = ["loss", "gradient_norm", *metrics]
    return Progress(state, {name: jnp.zeros(()) for name in names}, {name: jnp.ones((), bool) for name in names})


def followed(progress: Progress, new: PackedState, seen: dict[str, Array], update: Array) -> Progress:
    """The progress after a meta-step, if one was made and all before it were finite; its update, if it is finite."""
    made = update & jnp.stack(list(progress.finite.values())).all()
    finite = {name: jnp.where(made, jnp.isfinite(seen[name]), was) for name, was in progress.finite.items()}
    ok = made & jnp.stack(list(finite.values())).all()
    sums = {name: was + jnp.where(made, seen[name], 0) for name, was in progress.sums.items()}
    return Progress(jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, progress.state), sums, finite)

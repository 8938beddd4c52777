"""Continual adaptation (paper, end of section 4.3): the first level of a hierarchy gains a cluster while it is trained.

Growing is a pure function of what training needs. Every other cluster's parameters and optimiser statistics are bit
for bit what they were; a new cluster's statistics are 0 and count from its own birth (`metagrove.adam`).
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.hsml.cluster import Level
from metagrove.learner import GrowthStart

Tree = TypeVar("Tree")
ARRAYS = ("centers", "weight", "bias")
"""The parts of a level that have a row for each cluster."""


def grow(
    meta: Tree, opt_state: Any, *, key: PRNGKeyArray, start: GrowthStart = "random", place: Array | None = None
) -> tuple[Tree, Any]:
    """The meta-parameters and the optimiser's state with one more cluster at the first level; see `Learner.grow`."""
    row = new_cluster(first_level(meta), key=key, start=start, place=place)
    nothing = dict.fromkeys(row, jnp.zeros(()))

    def is_copy(part: Any) -> bool:
        return type(part) is type(meta)

    grown = jax.tree.map(lambda part: append(part, nothing) if is_copy(part) else part, opt_state, is_leaf=is_copy)
    return append(meta, row), grown


def first_level(meta: Any) -> Level:
    """The level that grows."""
    return meta.cluster.levels[0]


def new_cluster(
    level: Level, *, key: PRNGKeyArray, start: GrowthStart, place: Float[Array, " d"] | None
) -> Mapping[str, Array]:
    """The new cluster's centre, W and b: drawn as at first, or centre `place` with its nearest neighbour's W and b."""
    if level.centers is None:
        raise InputError("a hierarchy whose first level has one cluster cannot grow: begin with two or more")
    if start == "random":
        drawn = Level(2, level.centers.shape[1], level.scale, key=key)
        return {name: getattr(drawn, name)[0] for name in ARRAYS}
    if place is None:
        raise InputError(f"a {start!r} start needs the place of the tasks that the new cluster is for")
    nearest = jnp.square(level.centers - place[None]).sum(-1).argmin()
    return {"centers": place, "weight": level.weight[nearest], "bias": level.bias[nearest]}


def append(meta: Tree, row: Mapping[str, Array]) -> Tree:
    """The tree with a row added to each array of the first level that has one for each cluster."""

    def arrays(tree: Any) -> list[Any]:
        return [getattr(first_level(tree), name) for name in ARRAYS]

    def longer(array: Array, added: Array) -> Array:
        added = jnp.broadcast_to(added.astype(array.dtype), array.shape[1:])
        return jnp.concatenate([array, added[None]])

    return eqx.tree_at(
        arrays, meta, [longer(array, row[name]) for array, name in zip(arrays(meta), ARRAYS, strict=True)]
    )

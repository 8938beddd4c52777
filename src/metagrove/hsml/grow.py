"""Continual adaptation (paper, end of section 4.3): a hierarchy gains a cluster, or loses one, while it is trained.

Growing and shrinking are pure functions of all that training needs. Every other cluster's parameters and optimiser
statistics are bit for bit what they were; a new cluster's statistics are 0 and count from its own birth (`run.adam`).
"""

from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.hsml.cluster import Level
from metagrove.hsml.learner import HSML, HSMLMeta

GrowthStart = Literal["random", "warm"]
Tree = TypeVar("Tree")
ARRAYS = ("centers", "weight", "bias")
"""The parts of a level that have a row for each cluster."""


def grow(
    learner: HSML,
    meta: HSMLMeta,
    opt_state: Any,
    *,
    key: PRNGKeyArray,
    level: int = 0,
    start: GrowthStart = "random",
    place: Float[Array, " d"] | None = None,
) -> tuple[HSML, HSMLMeta, Any]:
    """One more cluster at a level.

    Its start: `random` as in the paper; `warm` with its centre at `place`, where the tasks are that it is meant for,
    and its nearest neighbour's W and b; `unchanged` the same with mass 0, so that no answer of the model changes until
    training gives it some.
    """
    old = meta.cluster.levels[level]
    if old.centers is None:
        raise InputError(f"level {level + 1} of {learner.clusters} has one cluster and cannot grow")
    new = Level(2, learner.embed.task_dim, old.scale, key=key)
    rows = {name: getattr(new, name)[0] for name in ARRAYS if getattr(new, name) is not None}
    if start != "random":
        if place is None:
            raise InputError(f"a {start!r} start needs the place of the tasks that the new cluster is for")
        nearest = jnp.square(old.centers - place[None]).sum(-1).argmin()
        rows |= {"centers": place, "weight": old.weight[nearest], "bias": old.bias[nearest]}
    clusters = with_count(learner.clusters, level, +1)
    return (
        learner.with_clusters(clusters),
        append(meta, level, rows),
        in_every_copy(opt_state, lambda copy: append(copy, level, dict.fromkeys(rows, 0))),
    )


def shrink(
    learner: HSML, meta: HSMLMeta, opt_state: Any, *, cluster: int, level: int = 0
) -> tuple[HSML, HSMLMeta, Any]:
    """One cluster less at a level."""
    if learner.clusters[level] < 3:
        raise InputError(f"level {level + 1} of {learner.clusters} has no cluster to spare: two are the least")

    def without(copy: HSMLMeta) -> HSMLMeta:
        return change_level(copy, level, lambda rows, _: jnp.delete(rows, cluster, axis=0))

    clusters = with_count(learner.clusters, level, -1)
    return learner.with_clusters(clusters), without(meta), in_every_copy(opt_state, without)


def with_count(clusters: tuple[int, ...], level: int, more: int) -> tuple[int, ...]:
    """The numbers of clusters with one of them changed."""
    return tuple(count + more if i == level else count for i, count in enumerate(clusters))


def append(meta: HSMLMeta, level: int, rows: dict[str, Any]) -> HSMLMeta:
    """The tree with a row added to each array of a level that has one for each cluster."""

    def longer(array: Array, name: str) -> Array:
        row = jnp.broadcast_to(jnp.asarray(rows[name], array.dtype), array.shape[1:])
        return jnp.concatenate([array, row[None]])

    return change_level(meta, level, longer)


def change_level(meta: HSMLMeta, level: int, change: Any) -> HSMLMeta:
    """The tree with `change(array, name)` in place of each array of a level that has a row for each cluster."""
    names = [name for name in ARRAYS if getattr(meta.cluster.levels[level], name) is not None]

    def where(tree: HSMLMeta) -> list[Any]:
        return [getattr(tree.cluster.levels[level], name) for name in names]

    changed = [change(array, name) for array, name in zip(where(meta), names, strict=True)]
    return eqx.tree_at(where, meta, changed)


def in_every_copy(opt_state: Tree, change: Any) -> Tree:
    """An optimiser's state holds copies of the meta-parameters' tree: each of them changed, the rest as it is."""

    def is_copy(part: Any) -> bool:
        return isinstance(part, HSMLMeta)

    return jax.tree.map(lambda part: change(part) if is_copy(part) else part, opt_state, is_leaf=is_copy)

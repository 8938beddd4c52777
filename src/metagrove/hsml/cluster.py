"""Hierarchical task clustering (paper, section 4.2): assignments by distance, level by level, K^0 = 1 to K^L = 1."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.hsml.clustering import Assignments, Clustering, Placement, cluster_errors
from metagrove.nets.linear import xavier
from metagrove.task import Examples, Spec

__all__ = ["CenterClustering", "DistanceClusters", "Hierarchy", "Level", "climb"]


class Level(eqx.Module):
    """The K' clusters of one level. The root, being alone, needs no centre."""

    centers: Float[Array, "k d"] | None
    weight: Float[Array, "k d d"]
    bias: Float[Array, "k d"]
    scale: float = eqx.field(static=True)

    def __init__(self, num_clusters: int, dim: int, scale: float, *, key: PRNGKeyArray):
        center_key, weight_key = jax.random.split(key)
        self.centers = None if num_clusters == 1 else xavier(center_key, (num_clusters, dim), 1 + dim)
        self.weight = xavier(weight_key, (num_clusters, dim, dim), 2 * dim)
        self.bias = jnp.zeros((num_clusters, dim))
        self.scale = scale

    def assign(self, cluster_repr: Float[Array, "k d"]) -> Float[Array, "k l"]:
        """p^{k→k'} = softmax_{k'}( -‖(h^k - c_{k'}) / σ‖² / 2 ), eq. (6)."""
        if self.centers is None:
            return jnp.ones((cluster_repr.shape[0], 1))
        offsets = (cluster_repr[:, None] - self.centers[None]) / self.scale
        return jax.nn.softmax(-jnp.square(offsets).sum(-1) / 2, axis=-1)

    def update(self, cluster_repr: Float[Array, "k d"], assignment: Float[Array, "k l"]) -> Float[Array, "l d"]:
        """h^{k'} = Σ_k p^{k→k'} tanh(W^{k'} h^k + b^{k'}), eq. (7). A weighted sum: rows of p sum to 1, not columns."""
        moved = jnp.tanh(jnp.einsum("lij,kj->kli", self.weight, cluster_repr) + self.bias[None])
        return jnp.einsum("kl,kld->ld", assignment, moved)


def climb(
    levels: Sequence[Level], task_embedding: Float[Array, " d"], assignment: Float[Array, " k"]
) -> tuple[Float[Array, " d"], Assignments]:
    """From the first level's assignment to the root: h^L and the assignments of all levels, eqs. (6)-(7)."""
    cluster_repr, assignments = task_embedding[None], [assignment[None]]
    for level in levels:
        if level is not levels[0]:
            assignments.append(level.assign(cluster_repr))
        cluster_repr = level.update(cluster_repr, assignments[-1])
    return cluster_repr[0], tuple(assignments)


class Hierarchy(eqx.Module):
    """The paper's clusters: levels from the task embedding to the root, assigned by distance."""

    levels: tuple[Level, ...]

    def __call__(
        self, task_embedding: Float[Array, " d"], support: Examples, assignment: Float[Array, " k"] | None = None
    ) -> Placement:
        """The task's placement; `assignment`, where given, replaces the first level's."""
        del support  # the embedding is all that distances need
        first = self.levels[0].assign(task_embedding[None])[0] if assignment is None else assignment
        return Placement(task_embedding, *climb(self.levels, task_embedding, first))

    def space(self, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """The task embedding in the space of the first level's centres: itself."""
        return task_embedding

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a placement's parts, for the gate."""
        return placement_sizes(self.levels)


def placement_sizes(levels: Sequence[Level]) -> dict[str, int]:
    """Sizes of the parts of a placement that these levels give."""
    num_clusters, dim = levels[0].bias.shape
    nodes = sum(len(level.bias) for level in levels[:-1])  # without the root
    return {"task": dim, "root": levels[-1].bias.shape[1], "assignment": num_clusters, "nodes": nodes}


def draw_levels(
    clusters: tuple[int, ...], dim: int, scales: tuple[float, ...], *, key: PRNGKeyArray
) -> tuple[Level, ...]:
    """Draw the levels of (K^1, ..., K^L), which ends in 1; `scales` is σ of each, the last repeated as needed."""
    if errors := cluster_errors(clusters):
        raise InputError(errors[0])
    all_scales = itertools.chain(scales, itertools.repeat(scales[-1]))
    keys = jax.random.split(key, len(clusters))
    return tuple(
        Level(k, dim, scale, key=level_key) for k, scale, level_key in zip(clusters, all_scales, keys, strict=False)
    )


@dataclasses.dataclass(frozen=True)
class CenterClustering(Clustering):
    """Abstract base class of clusters by distance to centres."""

    scales: tuple[float, ...] = (math.sqrt(2), 1.0)
    """σ of each level, the last one repeated as needed."""

    def validation_errors(self, task_dim: int) -> list[str]:
        positive = bool(self.scales) and min(self.scales) > 0
        errors = [] if positive else [f"scales must be positive, got {self.scales}"]
        return super().validation_errors(task_dim) + errors


@dataclasses.dataclass(frozen=True)
class DistanceClusters(CenterClustering):
    """The paper's clusters: soft assignments by distance to learned centres, eqs. (6)-(7).

    p^{k→k'} = softmax_{k'}( -‖(h^k - c_{k'}) / σ‖² / 2 ) and h^{k'} = Σ_k p^{k→k'} tanh(W^{k'} h^k + b^{k'}).
    """

    def __call__(self, dim: int, *, spec: Spec, key: PRNGKeyArray) -> Hierarchy:
        del spec
        return Hierarchy(draw_levels(self.clusters, dim, self.scales, key=key))

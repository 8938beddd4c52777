"""Hierarchical task clustering (paper, section 4.2): where a task stands, level by level, from K^0 = 1 to K^L = 1."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.learner import Phase
from metagrove.nets.linear import xavier
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, Spec, Task

__all__ = [
    "CenterClustering",
    "ClusterModule",
    "Clustering",
    "DistanceClusters",
    "Hierarchy",
    "Level",
    "Placement",
    "climb",
    "cluster_errors",
]


@runtime_checkable
class ClusteredMeta(Protocol):
    """Of HSML's meta-parameters, what a cluster part may look at."""

    embed: Any
    cluster: Any


Assignments = tuple[Float[Array, "_ _"], ...]
"""p^{k→k'} of each level, rows summing to 1."""


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


class Placement(eqx.Module):
    """Where a task stands: what a cluster part gives to the gate."""

    task_embedding: Float[Array, " d"]
    """g, or what stands for the single task in its place."""
    root_repr: Float[Array, " h"]
    """h^L."""
    assignments: Assignments
    penalty: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    """Added to the training loss."""
    masses: Float[Array, " nodes"] | None = None
    """P_v of every node of a dendrogram, the leaves first and the root last; None for clusters by distance."""
    coordinates: Float[Array, "k r"] | None = None
    """ε̂ of the task in the prior of each leaf."""
    inner_coordinates: Float[Array, "inner s"] | None = None
    """ε̂ in the prior of each other node."""
    novelty: dict[str, Float[Array, ""]] = eqx.field(default_factory=dict)
    """How far the task is of none of these clusters; empty for clusters by distance."""


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


@runtime_checkable
class ClusterModule(Protocol):
    """What a cluster part draws: a pytree module."""

    def __call__(
        self, task_embedding: Float[Array, " d"], support: Examples, assignment: Float[Array, " k"] | None = None
    ) -> Placement:
        """The task's placement; `assignment`, where given, replaces the first level's."""
        ...

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a placement's parts, for the gate."""
        ...


@dataclasses.dataclass(frozen=True)
class Clustering(abc.ABC):
    """Abstract base class of hierarchical task clustering (paper, section 4.2).

    Calling it with the size of the task embedding and a random key initialises the cluster module.
    """

    clusters: tuple[int, ...] = (4, 2, 1)
    """K^1 ... K^L, the number of clusters of each level; the last is the root."""

    has_coordinates: ClassVar[bool] = False
    """Whether a placement has masses and coordinates, so that a task needs no embedding."""

    @abc.abstractmethod
    def __call__(self, dim: int, *, spec: Spec, key: PRNGKeyArray) -> ClusterModule:
        """Initialise the cluster module.

        Args:
            dim: Size d of the task embedding.
            spec: Shapes of the inputs and targets.
            key: Random key.

        Returns:
            A module that maps a task embedding to its placement: h^L and the assignments of all levels.
        """

    def data_dependent_init(self, meta: ClusteredMeta, tasks: TaskDraw, *, key: PRNGKeyArray) -> Any:
        """Adjust the cluster module to training tasks, before the first meta-step; by default not at all.

        Args:
            meta: The meta-parameters of HSML.
            tasks: Draws training tasks by `tasks.sample(key)`.
            key: Random key.

        Returns:
            The adjusted cluster module.
        """
        del tasks, key
        return meta.cluster

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases in which the clusters are fitted before the first meta-step; by default none.

        Returns:
            The phases, see `Learner.phases`; the field that they train is `cluster`.
        """
        return ()

    def begin_phase(self, cluster: Any, *, key: PRNGKeyArray) -> Any:
        """Prepare the cluster module for its fit; see `Learner.begin_phase`.

        Args:
            cluster: The cluster module.
            key: Random key.

        Returns:
            The module that is fitted; by default the same.
        """
        del key
        return cluster

    def phase_loss(
        self, name: str, cluster: Any, task: Task, *, progress: Float[Array, ""] | float
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Compute the loss of one task in the fit; see `Learner.phase_loss`.

        Args:
            name: Name of the loss.
            cluster: The cluster module as it is fitted.
            task: The task.
            progress: The part of the phase that is done, from 0 to 1.

        Returns:
            The loss, and metrics to log.

        Raises:
            InputError: If there is no loss of that name.
        """
        del cluster, task, progress
        raise InputError(f"{type(self).__name__} has no training loss {name!r}: use 'query' or 'reconstruction'")

    def end_phase(
        self, cluster: Any, tasks: TaskDraw, validation: TaskDraw, *, key: PRNGKeyArray
    ) -> "tuple[Clustering, Any]":
        """Finish the fit; see `Learner.end_phase`.

        Args:
            cluster: The cluster module as it was fitted.
            tasks: Draws training tasks.
            validation: Draws validation tasks.
            key: Random key.

        Returns:
            The part, whose number of clusters may have changed, and its module; by default both as they were.
        """
        del tasks, validation, key
        return self, cluster

    def frozen(self, meta: ClusteredMeta) -> tuple[Any, ...]:
        """Select the parts of the meta-parameters that are not trained; by default none.

        Args:
            meta: The meta-parameters of HSML.

        Returns:
            The frozen parts.
        """
        del meta
        return ()

    def growth_errors(self) -> list[str]:
        """List what prevents the hierarchy from gaining clusters, one line each.

        Returns:
            A message for each obstacle; empty if the hierarchy can grow.
        """
        enough = bool(self.clusters) and self.clusters[0] > 1
        return [] if enough else [f"clusters must begin with two or more to grow, got {self.clusters}"]

    def validation_errors(self, task_dim: int) -> list[str]:
        """List the problems of the settings, one line each.

        Args:
            task_dim: Size d of the task embedding.

        Returns:
            A message for each setting that cannot be used.
        """
        needs_embedding = task_dim == 0 and not self.has_coordinates
        missing = ["embed none gives clusters by distance nothing to measure: use --cluster evidence"]
        return cluster_errors(self.clusters) + (missing if needs_embedding else [])


@dataclasses.dataclass(frozen=True)
class CenterClustering(Clustering):
    """Abstract base class of clusters by distance to centres."""

    scales: tuple[float, ...] = (math.sqrt(2), 1.0)
    """σ of each level, the last one repeated as needed."""

    def validation_errors(self, task_dim: int) -> list[str]:
        positive = bool(self.scales) and min(self.scales) > 0
        wrong = [] if positive else [f"scales must be positive, got {self.scales}"]
        return super().validation_errors(task_dim) + wrong


@dataclasses.dataclass(frozen=True)
class DistanceClusters(CenterClustering):
    """The paper's clusters: soft assignments by distance to learned centres, eqs. (6)-(7).

    p^{k→k'} = softmax_{k'}( -‖(h^k - c_{k'}) / σ‖² / 2 ) and h^{k'} = Σ_k p^{k→k'} tanh(W^{k'} h^k + b^{k'}).
    """

    def __call__(self, dim: int, *, spec: Spec, key: PRNGKeyArray) -> Hierarchy:
        del spec
        return Hierarchy(draw_levels(self.clusters, dim, self.scales, key=key))


def cluster_errors(clusters: tuple[int, ...]) -> list[str]:
    """What keeps a tuple from being a hierarchy."""
    if clusters and clusters[-1] == 1 and min(clusters) >= 1:
        return []
    mended = (*(k for k in clusters if k > 1), 1)
    return [f"clusters must be positive numbers ending in 1 (the root), got {clusters}: try {mended}"]

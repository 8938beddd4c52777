"""The interface of cluster parts: what HSML needs of hierarchical task clustering (paper, section 4.2)."""

import abc
import dataclasses
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.learner import Phase
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, Spec, Task

__all__ = ["Assignments", "ClusterModule", "ClusteredMeta", "Clustering", "Placement", "cluster_errors"]


@runtime_checkable
class ClusteredMeta(Protocol):
    """The meta-parameters of HSML that a cluster part may use."""

    embed: Any
    cluster: Any


Assignments = tuple[Float[Array, "_ _"], ...]
"""p^{k→k'} of each level, rows summing to 1."""


class Placement(eqx.Module):
    """Placement of a task in the hierarchy: the output of a cluster part and the input of the gate."""

    task_embedding: Float[Array, " d"]
    """g, or another representation of the single task in its place."""
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
    """Measures of novelty, larger for a task of none of these clusters; empty for clusters by distance."""


@runtime_checkable
class ClusterModule(Protocol):
    """Interface of the pytree module that a cluster part initialises."""

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

    letter: ClassVar[str] = ""
    """What HSML with this part adds to its name; nothing for the parts of the paper."""
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


def cluster_errors(clusters: tuple[int, ...]) -> list[str]:
    """List the problems of the numbers of clusters, one line each."""
    if clusters and clusters[-1] == 1 and min(clusters) >= 1:
        return []
    mended = (*(k for k in clusters if k > 1), 1)
    return [f"clusters must be positive numbers ending in 1 (the root), got {clusters}: try {mended}"]

"""What a learner says of its task clusters, and how it gains one. By default a learner has no clusters."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.learner.info import ClusterFunctions, GrowthStart, Meta

__all__ = ["ClusterCapabilities"]


class ClusterCapabilities:
    """The part of the contract that concerns task clusters."""

    @property
    def clusters(self) -> tuple[int, ...]:
        """The number of task clusters of each level, K^1 ... K^L; empty for a learner without clusters."""
        return ()

    @property
    def judges_novelty(self) -> bool:
        """Whether `Info.novelty` has "none of these", the log Bayes factor of a task of no known cluster."""
        return False

    def with_clusters(self, clusters: tuple[int, ...]) -> Any:
        """Return the same learner with other numbers of clusters, as a checkpoint records them.

        Args:
            clusters: Number of clusters of each level, K^1 ... K^L.

        Returns:
            The learner.

        Raises:
            InputError: If the learner has no clusters.
        """
        if clusters != self.clusters:
            raise InputError(f"{type(self).__name__} has no clusters, got {clusters}")
        return self

    def growth_errors(self) -> list[str]:
        """List what prevents the learner from gaining clusters during training, one line each.

        Returns:
            A message for each obstacle; empty if the learner can grow.
        """
        return [f"growth_window must be 0 for {type(self).__name__}: it has no clusters"]

    def grow(
        self,
        meta: Meta,
        opt_state: Any,
        *,
        key: PRNGKeyArray,
        start: GrowthStart = "random",
        place: Float[Array, " d"] | None = None,
        tasks: Any = None,
    ) -> tuple[Any, Meta, Any]:
        """Add a cluster to the first level.

        Args:
            meta: The meta-parameters.
            opt_state: State of the optimiser, which contains copies of the structure of `meta`.
            key: Random key of the new cluster.
            start: How the new cluster is initialised: "random" as in the paper, or "warm" at `place`.
            place: With "warm", the new centre, in the space of the other centres.
            tasks: Draws tasks as they come now, by `tasks.sample(key)`.

        Returns:
            The grown learner, its meta-parameters and the state of the optimiser.

        Raises:
            InputError: If the learner cannot grow.
        """
        raise InputError(f"{type(self).__name__} has no clusters and cannot grow")

    def cluster_centers(self, meta: Meta) -> Float[Array, "k d"] | None:
        """Return the centres of the first level.

        Args:
            meta: The meta-parameters.

        Returns:
            Centres of shape (K, d); None for a learner without centres.
        """
        return None

    def cluster_groups(self, meta: Meta, num_groups: int) -> Float[np.ndarray, "k g"] | None:
        """Group the first-level clusters by cutting the dendrogram, of a learner that merges them pair by pair.

        Args:
            meta: The meta-parameters.
            num_groups: Number of nodes to cut the dendrogram to.

        Returns:
            1 where a cluster belongs to a group, shape (K, groups); None for a learner without a dendrogram.
        """
        return None

    def cluster_functions(
        self, meta: Meta, x: np.ndarray, *, num_draws: int, key: PRNGKeyArray
    ) -> tuple[ClusterFunctions, ...] | None:
        """Describe each node of every level by the functions that its prior gives, of a learner with such priors.

        Args:
            meta: The meta-parameters.
            x: Inputs at which the functions are evaluated, shape (n, d).
            num_draws: Number of functions drawn from each prior.
            key: Random key of the draws; all nodes use the same random numbers.

        Returns:
            The functions of the nodes of each level, the root last; None for a learner without priors over functions.
        """
        return None

    def cluster_space(self, meta: Meta, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """Map a task embedding to the space in which distances to the centres are measured.

        Args:
            meta: The meta-parameters.
            task_embedding: The task embedding, as in `Info`.

        Returns:
            A vector of shape (d,); by default the embedding itself.
        """
        return task_embedding

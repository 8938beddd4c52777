"""The cluster module of `EvidenceClusters`: the placement of a task in a dendrogram of priors over functions.

p = softmax(log π_k + ℓ_k)        posterior probabilities given the support set, with ℓ_k its evidence
ε̂_k                               posterior mean of the task's coordinates in cluster k
P_v = Σ_{k below v} p_k           the task's mass at node v of the dendrogram
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from metagrove.hsml.clustering import Placement
from metagrove.learner import ClusterFunctions
from metagrove.mixture.functions import prior_functions
from metagrove.mixture.novelty import NONE, log_bayes_factor
from metagrove.mixture.prior import Mixture, Posterior
from metagrove.mixture.tree import Tree, level_assignments, pick
from metagrove.task import Examples

__all__ = ["EvidenceHierarchy"]


class EvidenceHierarchy(eqx.Module):
    """A mixture of priors over functions and its dendrogram. In the fit, arrays have a first axis of random starts."""

    leaves: Mixture
    node_mean: Float[Array, "*_ nodes f o"]
    """m of every node of the dendrogram: the leaves, then the merges in order; the last is the root."""
    node_factor: Float[Array, "*_ nodes f o s"]
    """L of every node."""
    node_log_mass: Float[Array, "*_ nodes"]
    """log of every node's prior mass."""
    children: Int[Array, "*_ merges 2"]
    merge_loss: Float[Array, "*_ merges"]
    """Nats a task that each merge loses."""
    ancestry: Float[Array, "*_ k nodes"]
    """1 where a leaf is, or stands below, a node."""
    links: tuple[Float[Array, "*_ _ _"], ...]
    """Parents between successive levels, one 1 a row."""

    levels: ClassVar[tuple[Any, ...]] = ()
    """There are no centres."""

    @classmethod
    def of_tree(cls, leaves: Mixture, tree: Tree, levels: tuple[int, ...]) -> "EvidenceHierarchy":
        """The module of a mixture and its dendrogram, cut into these levels above the leaves."""
        return cls(
            leaves,
            tree.nodes.mean,
            tree.nodes.factor,
            tree.nodes.logits,
            jnp.asarray(tree.children, jnp.int32),
            jnp.asarray(tree.loss, float),
            jnp.asarray(tree.ancestry(), float),
            tuple(jnp.asarray(link, float) for link in tree.links(levels)),
        )

    @property
    def tree(self) -> Tree:
        """The dendrogram, outside of compiled functions."""
        return Tree(np.asarray(self.children, int), np.asarray(self.merge_loss, float), self.nodes)

    @property
    def nodes(self) -> Mixture:
        """The prior of every node, the leaves first."""
        return dataclasses.replace(self.leaves, mean=self.node_mean, factor=self.node_factor, logits=self.node_log_mass)

    def posterior(self, support: Examples, assignment: Float[Array, " k"] | None = None) -> Posterior:
        """Return the posterior under the leaves; `assignment`, if given, replaces the probabilities."""
        found = self.leaves.posterior(support)
        return found if assignment is None else dataclasses.replace(found, probabilities=assignment)

    def __call__(
        self, task_embedding: Float[Array, " d"], support: Examples, assignment: Float[Array, " k"] | None = None
    ) -> Placement:
        """The task's placement; `assignment`, where given, replaces the probabilities.

        h^L is vec(p ⊗ [ε̂; 1]). Without a task embedding the posterior mean weights stand for the single task.
        """
        posterior, inner = self.posterior(support, assignment), self.inner_nodes.posterior(support)
        p, coordinates = posterior.probabilities, posterior.coordinates
        with_one = jnp.concatenate([coordinates, jnp.ones_like(coordinates[:, :1])], axis=1)
        return Placement(
            task_embedding if task_embedding.size else posterior.mean_weights.ravel(),
            (p[:, None] * with_one).ravel(),
            level_assignments(p, self.links),
            masses=(p @ self.ancestry).at[-1].set(1.0),  # the root's, also where `assignment` has no mass
            coordinates=coordinates,
            inner_coordinates=inner.coordinates,
            novelty={NONE: log_bayes_factor(self.leaves, support)},
        )

    def groups(self, num_groups: int) -> Float[np.ndarray, "k g"]:
        """Which leaves stand below each node when the dendrogram is cut to so many, 1 or 0."""
        return self.tree.ancestry()[:, self.tree.cut(num_groups)]

    def functions(self, x: np.ndarray, *, num_draws: int, key: PRNGKeyArray) -> tuple[ClusterFunctions, ...]:
        """The prior over functions of the nodes of each level, the root last."""
        counts = [self.leaves.num_clusters, *(link.shape[-1] for link in self.links)]
        levels = [pick(self.nodes, self.tree.cut(count)) for count in counts]
        return tuple(prior_functions(level, x, num_draws=num_draws, key=key) for level in levels)

    @property
    def inner_nodes(self) -> Mixture:
        """The priors of the nodes above the leaves."""
        first = self.leaves.num_clusters
        return dataclasses.replace(
            self.leaves,
            mean=self.node_mean[first:],
            factor=self.node_factor[first:],
            logits=self.node_log_mass[first:],
        )

    def space(self, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """There are no centres: the task embedding itself."""
        return task_embedding

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a placement's parts, for the gate."""
        num_clusters, num_features, y_dim, rank = self.leaves.factor.shape
        return {
            "task": num_features * y_dim,
            "root": num_clusters * (rank + 1),
            "assignment": num_clusters,
            "coordinates": rank,
            "inner_coordinates": self.node_factor.shape[-1],
        }

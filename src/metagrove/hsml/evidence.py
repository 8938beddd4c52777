"""Clusters found by evidence, beyond the paper: a cluster is a prior over functions, the hierarchy their dendrogram.

The clusters are fitted before the first meta-step and not trained further (docs/hierarchy.md). `metagrove.mixture` has
the priors, their fit and the dendrogram; `evidence_hierarchy` has the module that places a task.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError, check_at_least_one
from metagrove.hsml.clustering import ClusteredMeta, Clustering
from metagrove.hsml.evidence_hierarchy import EvidenceHierarchy
from metagrove.learner import Phase
from metagrove.mixture.fit import (
    bound_noise,
    draw_mixture,
    draw_rows,
    draw_starts,
    mean_of_finite,
    noise_bound,
    scale_to,
    start_losses,
)
from metagrove.mixture.grow import grow_mixture, simulate
from metagrove.mixture.tree import chain, choose_start, merge_clusters, prune
from metagrove.nets.basis import BasisName, BasisSettings
from metagrove.sources.source import TaskDraw
from metagrove.task import Spec, Task, join

__all__ = ["EvidenceClusters"]

FIT = "evidence"
"""Name of the phase and of its loss."""


@dataclasses.dataclass(frozen=True)
class EvidenceClusters(Clustering):
    """Clusters found by evidence before the first meta-step: a mixture of Gaussian priors over functions.

    For regression; beyond the paper. Of the first level's clusters those that are not needed are pruned; the levels
    above are cut from the dendrogram of the others.

    Example:
        >>> import metagrove as mg
        >>> clusters = mg.EvidenceClusters(clusters=(8, 4, 2, 1), features="spline", fit_steps=1000)
        >>> learner = mg.HSML(embed=mg.NoEmbedding(), cluster=clusters, gate=mg.NodeGate())
    """

    clusters: tuple[int, ...] = (8, 4, 2, 1)
    """Initial number of clusters, which the fit prunes, and number of nodes of each level above them."""
    features: BasisName = "chebyshev"
    """Features φ(x): fixed functions of each input (linear, chebyshev, spline), or a net of all inputs (learned)."""
    degree: int = 12
    """Highest degree of the Chebyshev polynomials."""
    knots: int = 6
    """Knots of each input's spline."""
    feature_hidden: tuple[int, ...] = (64, 64)
    """Hidden units of the net of learned features."""
    num_features: int = 15
    """Number of learned features, the constant not counted."""
    rank: int = 6
    """R, the number of directions in which a cluster's functions vary; at most features times outputs."""
    fit_steps: int = 2000
    """Steps of the fit, before the first meta-step."""
    fit_batch: int = 100
    """Tasks per step of the fit."""
    fit_lr: float = 0.01
    """Learning rate of the fit, with cosine decay to 0."""
    fit_noise: tuple[float, float] = (0.25, 0.005)
    """Initial and final lower bound on the noise s in the fit, in standard deviations of the targets."""
    annealed: float = 0.75
    """Fraction of the fit in which that bound is annealed."""
    learn_noise: bool = True
    """Learn s above the bound; otherwise s is the bound."""
    restarts: int = 2
    """Number of random restarts, fitted together; validation tasks select one."""
    judging_tasks: int = 1000
    """Number of validation tasks that select a restart, and of training tasks for scales and merges."""
    assumed_noise: float = 0.0
    """Noise s assumed after the fit, in units of y; small for noise-free functions, 0 for the fitted value."""

    letter: ClassVar[str] = "E"
    has_coordinates: ClassVar[bool] = True

    @property
    def basis(self) -> BasisSettings:
        """The settings of φ."""
        return BasisSettings(self.features, self.degree, self.knots, self.feature_hidden, self.num_features)

    def __call__(self, dim: int, *, spec: Spec, key: PRNGKeyArray) -> EvidenceHierarchy:
        del dim
        if spec.is_image:
            raise InputError("evidence clusters need vectors, not images: use --cluster found")
        basis_key, key = jax.random.split(key)
        basis = self.basis(np.stack([-np.ones(spec.x_shape), np.ones(spec.x_shape)]), key=basis_key)
        leaves = draw_mixture(basis, spec.y_dim, self.clusters[0], self.rank, key=key)
        return EvidenceHierarchy.of_tree(leaves, chain(leaves), self.clusters[1:])

    def data_dependent_init(self, meta: ClusteredMeta, tasks: TaskDraw, *, key: PRNGKeyArray) -> EvidenceHierarchy:
        return self.scaled(meta.cluster, tasks, key=key)

    def scaled(self, cluster: EvidenceHierarchy, tasks: TaskDraw, *, key: PRNGKeyArray) -> EvidenceHierarchy:
        """Scale the features and targets of the clusters to training tasks.

        Args:
            cluster: The cluster module.
            tasks: Draws training tasks.
            key: Random key.

        Returns:
            The module on these scales.
        """
        rows_key, basis_key = jax.random.split(key)
        leaves = scale_to(cluster.leaves, self.basis, draw_rows(tasks, rows_key, self.judging_tasks), key=basis_key)
        return eqx.tree_at(lambda cluster: cluster.leaves, cluster, leaves)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.fit_steps, ("cluster",), FIT, outer_lr=self.fit_lr, meta_batch=self.fit_batch),)

    def begin_phase(self, cluster: EvidenceHierarchy, *, key: PRNGKeyArray) -> EvidenceHierarchy:
        starts = draw_starts(cluster.leaves, self.restarts, key=key)
        log_noise = jnp.full_like(starts.log_noise, np.log(self.fit_noise[0]))
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * self.restarts), cluster)
        starts = eqx.tree_at(lambda mixture: mixture.log_noise, starts, log_noise)
        return eqx.tree_at(lambda cluster: cluster.leaves, stacked, starts)

    def phase_loss(
        self, name: str, cluster: EvidenceHierarchy, task: Task, *, progress: Float[Array, ""] | float
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        if name != FIT:
            return super().phase_loss(name, cluster, task, progress=progress)
        bound = noise_bound(*self.fit_noise, self.annealed, progress)
        losses = start_losses(cluster.leaves, join(task.support, task.query), bound, learned=self.learn_noise)
        return mean_of_finite(losses), {}

    def end_phase(
        self, cluster: EvidenceHierarchy, tasks: TaskDraw, validation: TaskDraw, *, key: PRNGKeyArray
    ) -> "tuple[EvidenceClusters, EvidenceHierarchy]":
        """Choose a start, prune it, merge it to a dendrogram, and set the noise that is assumed from now on.

        Args:
            cluster: The cluster module with all starts, as the fit trained them.
            tasks: Draws training tasks, by which clusters are pruned and merged.
            validation: Draws validation tasks, by whose evidence a start is chosen.
            key: Random key.

        Returns:
            The part with as many clusters as are left, and the fitted cluster module.
        """
        train_key, validation_key = jax.random.split(key)
        bound = jnp.log(jnp.asarray(self.fit_noise[1], float))
        starts = bound_noise(cluster.leaves, bound, learned=self.learn_noise)
        chosen, _ = choose_start(starts, draw_rows(validation, validation_key, self.judging_tasks))
        rows = draw_rows(tasks, train_key, self.judging_tasks)
        leaves = prune(chosen, rows)
        tree = merge_clusters(leaves, rows)
        leaves = leaves.with_noise(self.assumed_noise) if self.assumed_noise else leaves
        clusters = (leaves.num_clusters, *(k for k in self.clusters[1:] if k < leaves.num_clusters))
        return dataclasses.replace(self, clusters=clusters), EvidenceHierarchy.of_tree(leaves, tree, clusters[1:])

    def grow(
        self, cluster: EvidenceHierarchy, tasks: TaskDraw, *, key: PRNGKeyArray
    ) -> "tuple[EvidenceClusters, EvidenceHierarchy]":
        """One more cluster, for the tasks that are of none of the others; the dendrogram is merged anew.

        Args:
            cluster: The clusters.
            tasks: Draws tasks as they come now.
            key: Random key.

        Returns:
            The part with as many clusters, and its module.
        """
        grow_key, rows_key, judge_key = jax.random.split(key, 3)
        leaves = grow_mixture(cluster.leaves, tasks, key=grow_key)
        rows = simulate(leaves, draw_rows(tasks, rows_key, self.judging_tasks), key=judge_key)
        clusters = (leaves.num_clusters, *self.clusters[1:])
        hierarchy = EvidenceHierarchy.of_tree(leaves, merge_clusters(leaves, rows), clusters[1:])
        return dataclasses.replace(self, clusters=clusters), hierarchy

    def frozen(self, meta: ClusteredMeta) -> tuple[Any, ...]:
        return (meta.cluster,)

    def growth_errors(self) -> list[str]:
        return ["growth_window must be 0 with evidence clusters: their number is found before the first meta-step"]

    def validation_errors(self, task_dim: int) -> list[str]:
        counts = check_at_least_one(self, "rank", "fit_steps", "fit_batch", "restarts", "judging_tasks")
        falling = list(self.clusters) == sorted(self.clusters, reverse=True)
        first, last = self.fit_noise
        conditions = (
            (falling, f"clusters must not grow towards the root of a dendrogram, got {self.clusters}"),
            (first >= last > 0, f"fit_noise must be a decreasing pair of positive numbers, got {self.fit_noise}"),
            (0 <= self.annealed <= 1, f"annealed must be 0 to 1, got {self.annealed}"),
            (self.fit_lr > 0, f"fit_lr must be positive, got {self.fit_lr}"),
            (self.assumed_noise >= 0, f"assumed_noise must be 0 (as fitted) or more, got {self.assumed_noise}"),
        )
        errors = [message for holds, message in conditions if not holds]
        return super().validation_errors(task_dim) + counts + errors + self.basis.validation_errors()

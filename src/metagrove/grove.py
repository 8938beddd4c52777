"""The mixture of priors over functions as a learner of its own, beyond the paper: closed form, no inner loop.

support → p, ε̂ (posterior of each cluster) → μ(x), σ(x) by the law of total variance over clusters

The clusters and their fit are HSML's evidence clusters (`hsml.evidence`). With one cluster it is a meta-learned
Bayesian linear model (ALPaCA, Harrison et al. 2018; with fixed features the random-coefficient model of statistics).
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.adam import row_ages
from metagrove.errors import InputError
from metagrove.hsml.evidence import EvidenceClusters
from metagrove.hsml.evidence_hierarchy import EvidenceHierarchy
from metagrove.inner import repeat
from metagrove.learner import ClusterFunctions, GrowthStart, Info, Learner, Phase
from metagrove.losses import mse
from metagrove.mixture.novelty import NONE, NONE_LOG_ODDS, log_bayes_factor
from metagrove.mixture.predictor import BasisPredictor, predictor_of
from metagrove.mixture.tree import level_assignments
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, Spec, Task, join

__all__ = ["Grove", "GroveMeta"]

REFUSED = "grove is for regression with mse; for classification use --learner hsml, maml or protonet"


class GroveMeta(eqx.Module):
    """Θ: the clusters."""

    cluster: EvidenceHierarchy


@dataclasses.dataclass(frozen=True)
class Grove(Learner):
    """A mixture of priors over functions: predicts in closed form, with a standard deviation.

    It is fitted by evidence before the first meta-step. Meta-steps, if there are any, then train the priors by the
    predictive density of the query set, -log p(query | support).

    Example:
        >>> import metagrove as mg
        >>> learner = mg.Grove(cluster=mg.EvidenceClusters(features="spline", fit_steps=1000))
        >>> run = mg.train(source=mg.Functions(), learner=learner, steps=0)  # doctest: +SKIP
    """

    cluster: EvidenceClusters = EvidenceClusters()
    """The clusters, their features and their fit."""

    inner_steps: ClassVar[int] = 0

    def validation_errors(self) -> list[str]:
        return ([] if self.loss is mse else [REFUSED]) + self.cluster.validation_errors(0)

    @property
    def clusters(self) -> tuple[int, ...]:
        return self.cluster.clusters

    def with_clusters(self, clusters: tuple[int, ...]) -> "Grove":
        return dataclasses.replace(self, cluster=dataclasses.replace(self.cluster, clusters=clusters))

    @property
    def judges_novelty(self) -> bool:
        return True

    def growth_errors(self) -> list[str]:
        return []

    def grow(
        self,
        meta: GroveMeta,
        opt_state: Any,
        *,
        key: PRNGKeyArray,
        start: GrowthStart = "random",
        place: Float[Array, " d"] | None = None,
        tasks: TaskDraw | None = None,
    ) -> "tuple[Grove, GroveMeta, Any]":
        """Add a cluster for the tasks that are of none of the others; its prior is found in closed form.

        Args:
            meta: The meta-parameters.
            opt_state: State of the optimiser, which contains copies of the structure of `meta`.
            key: Random key.
            start: Not used: the tasks say where the cluster is.
            place: Not used.
            tasks: Draws tasks as they come now.

        Returns:
            The grown learner, its meta-parameters and the state of the optimiser.

        Raises:
            InputError: If there are no tasks to look at.
        """
        del start, place
        if tasks is None:
            raise InputError("grove needs tasks to grow: pass tasks=..., with tasks.sample(key)")
        part, cluster = self.cluster.grow(meta.cluster, tasks, key=key)
        grown = GroveMeta(cluster)

        def is_copy(tree: Any) -> bool:
            return isinstance(tree, GroveMeta)

        def longer(tree: Any) -> Any:
            return jax.tree.map(pad_to, tree, eqx.filter(grown, eqx.is_inexact_array)) if is_copy(tree) else tree

        return dataclasses.replace(self, cluster=part), grown, jax.tree.map(longer, opt_state, is_leaf=is_copy)

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> GroveMeta:
        if self.loss is not mse or spec.is_image:
            raise InputError(REFUSED)
        return GroveMeta(self.cluster(0, spec=spec, key=key))

    def data_dependent_init(self, meta: GroveMeta, tasks: TaskDraw, *, key: PRNGKeyArray) -> GroveMeta:
        return GroveMeta(self.cluster.scaled(meta.cluster, tasks, key=key))

    def phases(self) -> tuple[Phase, ...]:
        return self.cluster.phases()

    def begin_phase(self, name: str, meta: GroveMeta, *, key: PRNGKeyArray) -> GroveMeta:
        del name
        return GroveMeta(self.cluster.begin_phase(meta.cluster, key=key))

    def phase_loss(
        self, name: str, meta: GroveMeta, task: Task, *, key: PRNGKeyArray, progress: Float[Array, ""] | float = 1.0
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        if name == "query":
            return super().phase_loss(name, meta, task, key=key, progress=progress)
        return self.cluster.phase_loss(name, meta.cluster, task, progress=progress)

    def end_phase(
        self, name: str, meta: GroveMeta, tasks: TaskDraw, validation: TaskDraw, *, key: PRNGKeyArray
    ) -> "tuple[Grove, GroveMeta]":
        del name
        part, cluster = self.cluster.end_phase(meta.cluster, tasks, validation, key=key)
        return dataclasses.replace(self, cluster=part), GroveMeta(cluster)

    def trainable(self, meta: GroveMeta) -> Any:
        """The leaves' priors; the dendrogram above them stays as the fit left it.

        Args:
            meta: The meta-parameters.

        Returns:
            A tree of booleans.
        """
        nothing = jax.tree.map(lambda _: False, meta)
        leaves = jax.tree.map(eqx.is_inexact_array, meta.cluster.leaves)
        return eqx.tree_at(lambda meta: meta.cluster.leaves, nothing, leaves)

    def adapt(
        self,
        meta: GroveMeta,
        support: Examples,
        *,
        key: PRNGKeyArray | None = None,
        steps: int | None = None,
        assignment: Float[Array, " k"] | None = None,
    ) -> tuple[BasisPredictor, Info]:
        """Adapt to one task in closed form.

        Args:
            meta: The meta-parameters.
            support: Support set of the task.
            key: Not used: nothing is random.
            steps: Not used: there is no inner loop, and the path has one predictor.
            assignment: Replaces the posterior probabilities of the clusters; shape (K,).

        Returns:
            The predictor, with a standard deviation, and an `Info` with the posterior mean weights as task embedding.
        """
        del key, steps
        posterior = meta.cluster.posterior(support, assignment)
        predictor = predictor_of(posterior)
        return predictor, Info(
            path=repeat(predictor, 1),
            metrics={"largest_share": posterior.probabilities.max()},
            task_embedding=posterior.mean_weights.ravel(),
            assignments=level_assignments(posterior.probabilities, meta.cluster.links),
            novelty={NONE: log_bayes_factor(meta.cluster.leaves, support)},
        )

    def meta_loss(self, meta: GroveMeta, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute the loss of one task: -log p(query | support) per value.

        It is weighted by the posterior probability that the task is of a known cluster, so that tasks of none of these
        do not pull the clusters towards themselves.

        Args:
            meta: The meta-parameters.
            task: The task.
            key: Not used: nothing is random.

        Returns:
            The loss, and the `Info` of the adaptation with the query set's mean squared error.
        """
        del key
        predictor, info = self.adapt(meta, task.support)
        error = mse(predictor(task.query.x), task.query.y, task.query.mask)
        leaves, rows = meta.cluster.leaves, join(task.support, task.query)
        known = jax.nn.sigmoid(NONE_LOG_ODDS - jax.lax.stop_gradient(log_bayes_factor(leaves, rows)))
        density = leaves.log_marginal(rows) - leaves.log_marginal(task.support)
        values = task.query.mask.sum() * task.query.y.shape[-1]
        return -known * density / values, dataclasses.replace(info, metrics={**info.metrics, "mse": error})

    def cluster_groups(self, meta: GroveMeta, num_groups: int) -> Float[np.ndarray, "k g"]:
        return meta.cluster.groups(num_groups)

    def cluster_functions(
        self, meta: GroveMeta, x: np.ndarray, *, num_draws: int, key: PRNGKeyArray
    ) -> tuple[ClusterFunctions, ...]:
        return meta.cluster.functions(x, num_draws=num_draws, key=key)


def pad_to(array: Array, like: Array) -> Array:
    """Statistics of an optimiser with zeros for what has been added; counts have one number a row (`row_ages`)."""
    counts = jnp.issubdtype(array.dtype, jnp.integer)
    shape = row_ages(like).shape if counts else like.shape
    return jnp.pad(array, [(0, new - old) for old, new in zip(array.shape, shape, strict=True)])

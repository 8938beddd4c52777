"""Hierarchically Structured Meta-Learning (Yao et al., ICML 2019): the three stages joined, as in algorithm 1.

g = embed(support)                 eqs. (2)-(5), `hsml.embed`
h^L, p = cluster(g)                eqs. (6)-(7), `hsml.cluster`
θ₀ᵢ = gate([g ⊕ h^L], θ₀)          eq. (8), `hsml.gate`
θ_T = inner steps from θ₀ᵢ         eq. (9), whose second term, ξ·L_r, is `info.penalty`
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.hsml.cluster import DistanceClusters, Hierarchy
from metagrove.hsml.clustering import Placement
from metagrove.hsml.embed import (
    AttentionEmbedding,
    Embedder,
    EmptyEmbedder,
    NoEmbedding,
    PoolingEmbedding,
    RecurrentEmbedding,
)
from metagrove.hsml.evidence import EvidenceClusters
from metagrove.hsml.evidence_hierarchy import EvidenceHierarchy
from metagrove.hsml.found import FoundClusters, FoundHierarchy
from metagrove.hsml.gate import FiLMGate, IdentityGate, NodeGate, NoGate, ParameterGate, TaskFiLM, TaskGate, TreeGate
from metagrove.hsml.grow import grow
from metagrove.hsml.no_clusters import NoClusters, NoHierarchy
from metagrove.hsml.relative import NormalizedHierarchy, RelativeClusters
from metagrove.hsml.small_gate import SmallGate, TaskShifts
from metagrove.inner import GradientLearner
from metagrove.learner import ClusterFunctions, GrowthStart, Info, Phase, Predictor
from metagrove.losses import cross_entropy
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, Spec, Task

__all__ = ["HSML", "HSMLMeta"]


Gate = TaskGate | TaskFiLM | TreeGate | TaskShifts | IdentityGate


class HSMLMeta(eqx.Module):
    """Θ: everything that HSML trains. `net` holds θ₀."""

    net: Predictor
    embed: Embedder | EmptyEmbedder
    cluster: Hierarchy | NormalizedHierarchy | FoundHierarchy | EvidenceHierarchy | NoHierarchy
    gate: Gate


@dataclasses.dataclass(frozen=True)
class HSML(GradientLearner):
    """Tailors a shared initialisation to each task's place in a learned hierarchy of task clusters.

    Hierarchically Structured Meta-Learning (Yao et al., ICML 2019):
    g = embed(support), (h^L, p) = cluster(g), θ₀ᵢ = θ₀ ∘ gate(g ⊕ h^L), then gradient steps from θ₀ᵢ.

    Example:
        >>> import metagrove as mg
        >>> learner = mg.HSML(embed=mg.PoolingEmbedding(), cluster=mg.DistanceClusters(clusters=(6, 3, 1)))
        >>> learner.clusters
        (6, 3, 1)
    """

    embed: RecurrentEmbedding | PoolingEmbedding | AttentionEmbedding | NoEmbedding = RecurrentEmbedding()
    """How a support set becomes the task embedding g."""
    cluster: DistanceClusters | RelativeClusters | FoundClusters | EvidenceClusters | NoClusters = DistanceClusters()
    """How g is assigned to the clusters of each level."""
    gate: ParameterGate | FiLMGate | NodeGate | SmallGate | NoGate = ParameterGate()
    """How the task's placement tailors the initialisation."""
    reconstruction_weight: float = 0.01
    """ξ, the weight of the reconstruction loss."""

    def validation_errors(self) -> list[str]:
        weight = [] if self.reconstruction_weight >= 0 else ["reconstruction_weight must be 0 or more"]
        if isinstance(self.gate, NodeGate) and not self.cluster.has_coordinates:
            weight += ["a gate per node needs the coordinates of a dendrogram: use --cluster evidence"]
        if isinstance(self.gate, SmallGate) and self.cluster.has_coordinates:
            weight += ["a small gate needs clusters by distance: use --gate node with evidence clusters"]
        if self.cluster.has_coordinates and self.loss is cross_entropy:
            weight += ["evidence clusters are for regression: use --cluster found for classification"]
        return (
            super().validation_errors()
            + self.embed.validation_errors()
            + self.cluster.validation_errors(self.embed.task_dim)
            + self.gate.validation_errors()
            + weight
        )

    @property
    def name(self) -> str:
        letter = self.cluster.letter or self.embed.letter
        return f"HSML-{letter}" if letter else "HSML"

    @property
    def clusters(self) -> tuple[int, ...]:
        return self.cluster.clusters

    @property
    def judges_novelty(self) -> bool:
        return self.cluster.has_coordinates

    def with_clusters(self, clusters: tuple[int, ...]) -> "HSML":
        return dataclasses.replace(self, cluster=dataclasses.replace(self.cluster, clusters=clusters))

    def growth_errors(self) -> list[str]:
        return self.cluster.growth_errors() + self.gate.growth_errors()

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> HSMLMeta:
        keys = jax.random.split(key, 5)
        net = self.make_net(spec, key=keys[0])
        cluster = self.cluster(self.embed.task_dim, spec=spec, key=keys[3])
        gate = self.draw_gate(net, cluster, key=keys[4])
        return HSMLMeta(net=net, embed=self.embed(spec, key=keys[1:3]), cluster=cluster, gate=gate)

    def draw_gate(self, net: Predictor, cluster: Any, *, key: PRNGKeyArray) -> Gate:
        """Initialise the gate.

        Args:
            net: The base net.
            cluster: The cluster module.
            key: Random key.

        Returns:
            The gate, for placements such as the cluster module gives.
        """
        sizes = cluster.sizes
        if self.embed.task_dim:
            sizes = {**sizes, "task": self.embed.task_dim}
        return self.gate(eqx.filter(net, eqx.is_inexact_array), sizes, key=key)

    def phases(self) -> tuple[Phase, ...]:
        return self.cluster.phases()

    def begin_phase(self, name: str, meta: HSMLMeta, *, key: PRNGKeyArray) -> HSMLMeta:
        del name
        before: Any = meta.cluster
        return dataclasses.replace(meta, cluster=self.cluster.begin_phase(before, key=key))

    def end_phase(
        self, name: str, meta: HSMLMeta, tasks: TaskDraw, validation: TaskDraw, *, key: PRNGKeyArray
    ) -> "tuple[HSML, HSMLMeta]":
        """Finish the fit of the clusters; the gate is drawn anew, for as many clusters as there are then.

        Args:
            name: Name of the loss of the phase.
            meta: The meta-parameters as the phase trained them.
            tasks: Draws training tasks.
            validation: Draws validation tasks.
            key: Random key.

        Returns:
            The learner with as many clusters, and its meta-parameters.
        """
        del name
        fit_key, gate_key = jax.random.split(key)
        before: Any = meta.cluster
        part, cluster = self.cluster.end_phase(before, tasks, validation, key=fit_key)
        gate = self.draw_gate(meta.net, cluster, key=gate_key)
        return dataclasses.replace(self, cluster=part), dataclasses.replace(meta, cluster=cluster, gate=gate)

    def data_dependent_init(self, meta: HSMLMeta, tasks: TaskDraw, *, key: PRNGKeyArray) -> HSMLMeta:
        cluster = self.cluster.data_dependent_init(meta, tasks, key=key)
        return eqx.tree_at(lambda meta: meta.cluster, meta, cluster)

    def trainable(self, meta: HSMLMeta) -> Any:
        mask = super().trainable(meta)
        frozen = self.cluster.frozen(mask)
        if frozen:
            mask = eqx.tree_at(self.cluster.frozen, mask, jax.tree.map(lambda _: False, frozen))
        return mask

    def adapt(
        self,
        meta: HSMLMeta,
        support: Examples,
        *,
        key: PRNGKeyArray | None = None,
        steps: int | None = None,
        assignment: Float[Array, " k"] | None = None,
    ) -> tuple[Predictor, Info]:
        """Adapt to one task, eqs. (2)-(9).

        Args:
            meta: The meta-parameters.
            support: Support set of the task.
            key: Random key of the row permutation; None for a deterministic result.
            steps: Number of inner steps; None for the number used in training.
            assignment: Replaces the first level's assignment p^{0→k}, e.g. by an oracle's; shape (K,).

        Returns:
            The adapted base net, and an `Info` with the penalty ξ·L_r, the task embedding and the assignments.
        """
        placement, reconstruction_loss = self.place(meta, support, key=key, assignment=assignment)
        gated_net = meta.gate(meta.net, placement, key=None if key is None else jax.random.fold_in(key, 1))
        adapted, path = self.fit(gated_net, support, steps)
        return adapted, Info(
            path=path,
            penalty=self.reconstruction_weight * reconstruction_loss + placement.penalty,
            metrics={
                "reconstruction_loss": reconstruction_loss,
                "largest_share": placement.assignments[0].max(),
            },
            task_embedding=placement.task_embedding,
            assignments=placement.assignments,
            novelty=placement.novelty,
        )

    def place(
        self,
        meta: HSMLMeta,
        support: Examples,
        *,
        key: PRNGKeyArray | None = None,
        assignment: Float[Array, " k"] | None = None,
    ) -> tuple[Placement, Float[Array, ""]]:
        """Find the task's place in the hierarchy, eqs. (2)-(7).

        Args:
            meta: The meta-parameters.
            support: Support set of the task.
            key: Random key of the row permutation; None for a deterministic result.
            assignment: Replaces the first level's assignment p^{0→k}; shape (K,).

        Returns:
            The placement, which is what the gate reads, and the reconstruction loss L_r.
        """
        task_embedding, reconstruction_loss = meta.embed(support, key=key)
        return meta.cluster(task_embedding, support, assignment), reconstruction_loss

    def phase_loss(
        self, name: str, meta: HSMLMeta, task: Task, *, key: PRNGKeyArray, progress: Float[Array, ""] | float = 1.0
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Compute the loss of one task in a training phase.

        Args:
            name: "query"; "reconstruction" for L_r alone, which pretrains the embedding; or "evidence", that of the
                fit of evidence clusters.
            meta: The meta-parameters.
            task: The task.
            key: Random key.
            progress: The part of the phase that is done, from 0 to 1.

        Returns:
            The loss, and metrics to log.

        Raises:
            InputError: If there is no loss of that name.
        """
        if name == "query":
            return super().phase_loss(name, meta, task, key=key, progress=progress)
        if name != "reconstruction":
            cluster: Any = meta.cluster
            return self.cluster.phase_loss(name, cluster, task, progress=progress)
        _, loss = meta.embed(task.support, key=key)
        return loss, {"reconstruction_loss": loss}

    def grow(
        self,
        meta: HSMLMeta,
        opt_state: Any,
        *,
        key: PRNGKeyArray,
        start: GrowthStart = "random",
        place: Float[Array, " d"] | None = None,
        tasks: TaskDraw | None = None,
    ) -> "tuple[HSML, HSMLMeta, Any]":
        del tasks
        first, *above = self.clusters
        return self.with_clusters((first + 1, *above)), *grow(meta, opt_state, key=key, start=start, place=place)

    def cluster_centers(self, meta: HSMLMeta) -> Float[Array, "k d"] | None:
        return meta.cluster.levels[0].centers if meta.cluster.levels else None

    def cluster_space(self, meta: HSMLMeta, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        return meta.cluster.space(task_embedding)

    def cluster_groups(self, meta: HSMLMeta, num_groups: int) -> Float[np.ndarray, "k g"] | None:
        return meta.cluster.groups(num_groups) if isinstance(meta.cluster, EvidenceHierarchy) else None

    def cluster_functions(
        self, meta: HSMLMeta, x: np.ndarray, *, num_draws: int, key: PRNGKeyArray
    ) -> tuple[ClusterFunctions, ...] | None:
        if not isinstance(meta.cluster, EvidenceHierarchy):
            return None
        return meta.cluster.functions(x, num_draws=num_draws, key=key)

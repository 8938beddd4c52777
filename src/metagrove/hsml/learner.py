"""Hierarchically Structured Meta-Learning (Yao et al., ICML 2019): the three stages joined, as in algorithm 1.

g = embed(support)                 eqs. (2)-(5)
h^L, p = cluster(g)                eqs. (6)-(7)
θ₀ᵢ = gate([g ⊕ h^L], θ₀)          eq. (8)
θ_T = inner steps from θ₀ᵢ         eq. (9), whose second term, ξ·L_r, is `info.penalty`
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.hsml.cluster import Hierarchy, cluster_errors
from metagrove.hsml.embed import AggregatorName, Embedder, Frame, make_aggregator
from metagrove.hsml.grow import grow, growth_errors
from metagrove.hsml.start import find_clusters, look_at
from metagrove.inner import GradientLearner
from metagrove.learner import GrowthStart, Info, Predictor
from metagrove.nets.encoder import ImageFeatures, make_example_net
from metagrove.nets.gate import Gate, GateForm, apply_gate
from metagrove.nets.linear import Linear
from metagrove.nets.order import RowOrder
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, Spec

FIRST_BIAS_SD = 0.25
"""Standard deviation of the first clusters' biases where embeddings are about 0, so that h^L tells clusters apart."""


class HSMLMeta(eqx.Module):
    """Θ: everything that HSML trains. `net` holds θ₀."""

    net: Predictor
    embed: Embedder
    cluster: Hierarchy
    gate: Gate | None
    frame: Frame | None = None


@dataclasses.dataclass(frozen=True)
class HSML(GradientLearner):
    """Tailors a shared initialisation to each task's place in a learned hierarchy of clusters."""

    aggregator: AggregatorName = "gru"
    """How examples become one task: gru or lstm (recurrent), mean or max (pooling), attention (beyond the paper)."""
    row_order: RowOrder = "random"
    """Order in which a recurrent aggregator reads the rows in training; `sorted` is beyond the paper."""
    test_permutations: int = 16
    """With random order, seeded permutations of the sorted rows whose embeddings are averaged at test."""
    example_dim: int = 20
    """Size of F(x, y), an example's embedding."""
    task_dim: int = 40
    """d, the size of a task's embedding and of every cluster's representation."""
    input_scale: float = 1.0
    """Multiplies x and y before F."""
    image_features: ImageFeatures = "places"
    """What F sees of an image: values as they lie in it, or moments over its pixels (beyond the paper)."""
    embedding_scale: float = 1.0
    """Multiplies g; with a small one the gate leans on the clusters before it leans on the single task."""
    attention_layers: int = 3
    """Layers of the attention aggregator."""
    attention_heads: int = 4
    """Its heads."""
    clusters: tuple[int, ...] = (4, 2, 1)  # pyright: ignore[reportIncompatibleMethodOverride]
    """K^1 ... K^L, clusters of each level; the last is the root."""
    scales: tuple[float, ...] = (math.sqrt(2), 1.0)
    """σ of each level, the last one repeated as needed."""
    relative_scales: bool = False
    """Take the first σ relative to the spread of task embeddings, and let centres follow them; beyond the paper."""
    start_tasks: int = 0
    """If set, so many training tasks decide the embedding and the first centres, which are not trained then; beyond the
    paper."""
    learn_scales: bool = False
    """Train σ too, starting from `scales`; beyond the paper."""
    masses: bool = False
    """Train how much each cluster counts, 1 at first: what `--growth-start unchanged` needs; beyond the paper."""
    gate: GateForm = "sigmoid"
    """How the initialisation is tailored: the paper's sigmoid, affine (beyond the paper), or none (that is MAML)."""
    gate_rank: int = 0
    """If set, the gate's layer is a product of two of this rank: small enough to release with an image model."""
    gate_on_assignments: bool = False
    """Let the gate see the task's share of each first cluster, beside g and h^L; beyond the paper."""
    reconstruction_weight: float = 0.01
    """ξ, the weight of the reconstruction loss."""

    def validation_errors(self) -> list[str]:
        sizes = ("test_permutations", "example_dim", "task_dim", "attention_layers", "attention_heads")
        heads_fit = self.aggregator != "attention" or self.task_dim % max(1, self.attention_heads) == 0
        starts = self.start_tasks != 0
        first = self.clusters[0] if self.clusters else 0
        least = max(self.task_dim, first)
        conditions = (
            (self.scales and min(self.scales) > 0, f"scales must be positive, got {self.scales}"),
            (self.embedding_scale > 0, f"embedding_scale must be positive, got {self.embedding_scale}"),
            (self.gate_rank >= 0, f"gate_rank must be 0 (whole) or more, got {self.gate_rank}"),
            (self.reconstruction_weight >= 0, "reconstruction_weight must be 0 or more"),
            (
                heads_fit,
                f"task_dim must be a multiple of attention_heads, got {self.task_dim} and {self.attention_heads}",
            ),
            (
                not starts or self.start_tasks > least,
                f"start_tasks must be 0, or more than task_dim and first clusters ({least}), got {self.start_tasks}",
            ),
            (not starts or self.relative_scales, "start_tasks needs relative_scales"),
            (not starts or first > 1, "start_tasks needs two first clusters or more"),
        )
        wrong = [message for holds, message in conditions if not holds]
        return super().validation_errors() + cluster_errors(self.clusters) + check_at_least_one(self, *sizes) + wrong

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> HSMLMeta:
        net_key, aggregator_key, example_key, cluster_key, gate_key = jax.random.split(key, 5)
        net = self.net(spec, key=net_key)
        params = eqx.filter(net, eqx.is_inexact_array)
        example_net, example_dim = make_example_net(spec, self.example_dim, self.image_features, key=example_key)
        aggregator = make_aggregator(
            self.aggregator,
            example_dim,
            self.task_dim,
            num_layers=self.attention_layers,
            num_heads=self.attention_heads,
            key=aggregator_key,
        )
        outward = Linear(self.task_dim, self.task_dim, key=aggregator_key) if self.start_tasks else None  # see `start`
        return HSMLMeta(
            net=net,
            embed=Embedder(example_net, aggregator, self.input_scale, outward),
            cluster=Hierarchy(
                self.clusters,
                self.task_dim,
                self.scales,
                learn_scales=self.learn_scales,
                masses=self.masses,
                key=cluster_key,
            ),
            gate=None
            if self.gate == "none"
            else Gate(self.gate_input_dim, params, self.gate, rank=self.gate_rank, key=gate_key),
            frame=Frame(self.task_dim) if self.relative_scales else None,
        )

    def gate_input(
        self, task_embedding: Float[Array, " d"], root_repr: Float[Array, " d"], assignments: tuple[Array, ...]
    ) -> Float[Array, " i"]:
        """[g ⊕ h^L], and with `gate_on_assignments` p^{0→k} of the first clusters."""
        shares = [assignments[0][0]] if self.gate_on_assignments else []
        return jnp.concatenate([task_embedding, root_repr, *shares])

    @property
    def gate_input_dim(self) -> int:
        """How many numbers that is."""
        return 2 * self.task_dim + (self.clusters[0] if self.gate_on_assignments else 0)

    def start(self, meta: HSMLMeta, tasks: TaskDraw, *, key: PRNGKeyArray) -> HSMLMeta:
        if not self.start_tasks:
            return meta
        find_key, bias_key = jax.random.split(key)
        task_key, means_key = jax.random.split(find_key)
        looks = look_at(
            dataclasses.replace(meta.embed, outward=None),
            tasks,
            self.start_tasks,
            order=self.row_order,
            num_permutations=self.test_permutations,
            key=task_key,
        )
        found = find_clusters(meta.embed, looks, self.clusters[0], scale=self.embedding_scale, key=means_key)
        meta = eqx.tree_at(_found_first, meta, found)
        return eqx.tree_at(
            lambda meta: meta.cluster.levels[0].bias,
            meta,
            replace_fn=lambda b: FIRST_BIAS_SD * jax.random.normal(bias_key, b.shape),
        )

    def adapt(
        self, meta: HSMLMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        if self.start_tasks:
            meta = eqx.tree_at(_found_first, meta, replace_fn=jax.lax.stop_gradient)
        task_embedding, reconstruction_loss = meta.embed(
            support, order=self.row_order, num_permutations=self.test_permutations, key=key
        )
        task_embedding = self.embedding_scale * task_embedding
        place = None if meta.frame is None else meta.frame(task_embedding)
        root_repr, assignments = meta.cluster(task_embedding, place)
        net = apply_gate(meta.net, meta.gate, self.gate_input(task_embedding, root_repr, assignments))
        adapted, path = self.fit(net, support, steps)
        info = Info(
            path=path,
            penalty=self.reconstruction_weight * reconstruction_loss + tracking_loss(meta, task_embedding),
            metrics={
                "reconstruction_loss": reconstruction_loss,
                "largest_share": assignments[0].max(),
            },
            task_embedding=task_embedding,
            assignments=assignments,
        )
        return adapted, info

    def with_clusters(self, clusters: tuple[int, ...]) -> "HSML":
        return dataclasses.replace(self, clusters=clusters)

    def growth_errors(self) -> list[str]:
        return growth_errors(self.clusters, fixed=bool(self.start_tasks or self.gate_on_assignments))

    def grow(
        self,
        meta: HSMLMeta,
        opt_state: Any,
        *,
        key: PRNGKeyArray,
        start: GrowthStart = "random",
        place: Float[Array, " d"] | None = None,
    ) -> "tuple[HSML, HSMLMeta, Any]":
        first, *above = self.clusters
        return self.with_clusters((first + 1, *above)), *grow(meta, opt_state, key=key, start=start, place=place)

    def cluster_centers(self, meta: HSMLMeta) -> Float[Array, "k d"] | None:
        return meta.cluster.levels[0].centers

    def cluster_space(self, meta: HSMLMeta, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        return task_embedding if meta.frame is None else meta.frame(task_embedding)


def _found_first(meta: HSMLMeta) -> tuple[Any, ...]:
    """What `start` finds and training then leaves alone."""
    return meta.embed, meta.frame, meta.cluster.levels[0].centers


def tracking_loss(meta: HSMLMeta, task_embedding: Float[Array, " d"]) -> Float[Array, ""]:
    """A penalty of value 0 whose gradient leads the frame, and the first level's centres in it, to the embeddings."""
    if meta.frame is None:
        return jnp.zeros(())
    seen = jax.lax.stop_gradient(task_embedding)
    neg_log_density = meta.frame.neg_log_density(seen) + meta.cluster.levels[0].neg_log_density(meta.frame(seen))
    return neg_log_density - jax.lax.stop_gradient(neg_log_density)

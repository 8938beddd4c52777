"""ARML (Yao et al. 2020): prototypes of a task attend to a meta-knowledge graph.

prototypes:  cᵢ = Σⱼ Pᵢⱼ F(xⱼ, yⱼ),   P = softmax over the examples of W_p F + b_p; of images, the mean of each class
task graph:  A_R = σ(w_r·|cᵢ - cⱼ| + b_r)
knowledge:   vertices h, learned;  A_G = σ(w_g·|hᵢ - hⱼ| + b_g) (one layer carries it to no prototype)
links:       A_S = softmaxⱼ(-‖(cᵢ - hⱼ)/s‖² / 2)
propagate:   [Ĉ; Ĥ] = tanh([[A_R, A_S], [A_Sᵀ, A_G]] [C; H] W)
gate:        θ₀ᵢ = θ₀ ∘ σ(W[q ⊕ t] + b),   q and t from GRU autoencoders over C and Ĉ, their errors penalised
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import GradientLearner
from metagrove.learner import Info, Predictor
from metagrove.losses import mse
from metagrove.nets.encoder import ImageEncoder, make_example_net
from metagrove.nets.gate import GateForm, GateLayer, apply_gate
from metagrove.nets.linear import Linear, xavier
from metagrove.nets.recurrent import RecurrentAggregator
from metagrove.task import Examples, Spec

__all__ = ["ARML"]


class Graph(eqx.Module):
    """Vertices of the knowledge graph, and the weights of edges and propagation."""

    vertices: Float[Array, "g d"]
    task_edge: Linear
    knowledge_edge: Linear
    weight: Float[Array, "d d"]
    scale: float = eqx.field(static=True)

    def __init__(self, num_vertices: int, dim: int, scale: float, *, key: PRNGKeyArray):
        vertex_key, task_key, knowledge_key, weight_key = jax.random.split(key, 4)
        self.vertices = xavier(vertex_key, (num_vertices, dim), 1 + dim)
        self.task_edge = Linear(dim, 1, key=task_key)
        self.knowledge_edge = Linear(dim, 1, key=knowledge_key)
        self.weight = xavier(weight_key, (dim, dim), 2 * dim)
        self.scale = scale

    def links(self, prototypes: Float[Array, "k d"]) -> Float[Array, "k g"]:
        """Compute A_S; rows sum to 1."""
        offsets = (prototypes[:, None] - self.vertices[None]) / self.scale
        return jax.nn.softmax(-jnp.square(offsets).sum(-1) / 2, axis=-1)

    def propagate(self, prototypes: Float[Array, "k d"]) -> Float[Array, "k d"]:
        """Compute Ĉ: prototypes after one layer of message passing from all prototypes and vertices."""
        links = self.links(prototypes)
        edges = edge_weights(self.task_edge, prototypes), edge_weights(self.knowledge_edge, self.vertices)
        adjacency = jnp.block([[edges[0], links], [links.T, edges[1]]])
        nodes = jnp.concatenate([prototypes, self.vertices])
        return jnp.tanh(adjacency @ nodes @ self.weight)[: len(prototypes)]


class ARMLMeta(eqx.Module):
    """Θ. `net` holds θ₀."""

    net: Predictor
    example_net: Linear | ImageEncoder
    prototype_net: Linear | None
    graph: Graph
    raw_aggregator: RecurrentAggregator
    propagated_aggregator: RecurrentAggregator
    gate: GateLayer


@dataclasses.dataclass(frozen=True)
class ARML(GradientLearner):
    """ARML: gates a shared initialisation by prototypes that attend to a learned meta-knowledge graph.

    From Automated Relational Meta-learning (Yao et al. 2020).
    """

    prototypes: int = 4
    """Soft prototypes of a task; of images there is one a class."""
    vertices: int = 4
    """G, vertices of the knowledge graph."""
    example_dim: int = 40
    """Size of an example's embedding, a prototype and a vertex."""
    task_dim: int = 40
    """Size of each of the task's two embeddings."""
    scale: float = 1.0
    """s, the distance at which a prototype and a vertex are near."""
    gate_form: GateForm = "sigmoid"
    """How the initialisation is tailored: as in the paper by a sigmoid, or affinely."""
    reconstruction_weight: float = 0.01
    """Weight of both autoencoders' reconstruction losses."""

    def validation_errors(self) -> list[str]:
        return (
            super().validation_errors()
            + check_at_least_one(self, "prototypes", "vertices", "example_dim", "task_dim")
            + ([] if self.scale > 0 else [f"scale must be positive, got {self.scale}"])
            + ([] if self.reconstruction_weight >= 0 else ["reconstruction_weight must be 0 or more"])
        )

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> ARMLMeta:
        keys = jax.random.split(key, 7)
        net = self.make_net(spec, key=keys[0])
        example_net, dim = make_example_net(spec, self.example_dim, key=keys[1])
        soft = isinstance(example_net, Linear)
        return ARMLMeta(
            net=net,
            example_net=example_net,
            prototype_net=Linear(dim, self.prototypes, key=keys[2]) if soft else None,  # its b_p cancels in the softmax
            graph=Graph(self.vertices, dim, self.scale, key=keys[3]),
            raw_aggregator=RecurrentAggregator(dim, self.task_dim, "gru", key=keys[4]),
            propagated_aggregator=RecurrentAggregator(dim, self.task_dim, "gru", key=keys[5]),
            gate=GateLayer(2 * self.task_dim, eqx.filter(net, eqx.is_inexact_array), self.gate_form, key=keys[6]),
        )

    def adapt(
        self, meta: ARMLMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        prototypes = find_prototypes(meta, support)
        propagated = meta.graph.propagate(prototypes)
        raw_embedding, raw_loss = autoencode(meta.raw_aggregator, prototypes)
        propagated_embedding, propagated_loss = autoencode(meta.propagated_aggregator, propagated)
        gate_input = jnp.concatenate([raw_embedding, propagated_embedding])
        adapted, path = self.fit(apply_gate(meta.net, meta.gate, gate_input), support, steps)
        reconstruction_loss = raw_loss + propagated_loss
        info = Info(
            path=path,
            penalty=self.reconstruction_weight * reconstruction_loss,
            metrics={"reconstruction_loss": reconstruction_loss},
            task_embedding=gate_input,
            assignments=(meta.graph.links(prototypes).mean(0, keepdims=True),),
        )
        return adapted, info


def find_prototypes(meta: ARMLMeta, support: Examples) -> Float[Array, "k d"]:
    """Compute the prototypes of a task: soft ones for vectors, one per class for images."""
    if isinstance(meta.example_net, ImageEncoder):
        members = support.y * support.mask[:, None]
        return members.T @ meta.example_net(support.x, support.y) / jnp.maximum(members.sum(0), 1)[:, None]
    example_embeddings = meta.example_net(jnp.concatenate([support.x, support.y], axis=1))
    assert meta.prototype_net is not None
    return soft_prototypes(meta.prototype_net, example_embeddings, support.mask)


def soft_prototypes(
    prototype_net: Linear, example_embeddings: Float[Array, "n d"], mask: Bool[Array, " n"]
) -> Float[Array, "k d"]:
    """Compute prototypes as softmax-weighted means of the examples."""
    weights = jax.nn.softmax(prototype_net(example_embeddings), axis=0, where=mask[:, None])
    return weights.T @ example_embeddings


def edge_weights(edge: Linear, nodes: Float[Array, "k d"]) -> Float[Array, "k k"]:
    """Compute edge weights: a sigmoid of a linear function of the absolute difference of two nodes."""
    return jax.nn.sigmoid(edge(jnp.abs(nodes[:, None] - nodes[None]))[..., 0])


def autoencode(
    aggregator: RecurrentAggregator, rows: Float[Array, "k d"]
) -> tuple[Float[Array, " e"], Float[Array, ""]]:
    """Compute the embedding of the rows and the reconstruction loss."""
    everything = jnp.ones(len(rows), bool)
    embedding, reconstruction = aggregator(rows, everything)
    return embedding, mse(reconstruction, rows, everything)

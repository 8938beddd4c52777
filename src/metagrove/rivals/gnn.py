"""Graph neural network (Garcia & Bruna 2018): a query and the labelled support examples are the nodes of a graph.

nodes:      xᵢ = [φ(imageᵢ); one-hot label],   the label of the query is 0 (in the paper's text, 1/N for each class)
adjacency:  A_ij = softmax over j ≠ i of MLP(|xᵢ - xⱼ|)
layer:      X ← [X; leaky_relu(BN([X, A X] W))], each layer with an A of its own
answer:     the query's row of [X, A X] W after the last layer

Every query has a graph of its own; normalisation is by all graphs that are looked at together. Deviations: φ is the
base net and a linear layer, without dropout (`--widths 64 96 128 256` has the published channels); the diagonal, which
the softmax leaves out, does not enter the statistics of the adjacency MLP, and each pair enters once; the first weights
are those of a soft nearest-neighbour classifier (`nearest_init`). From random ones the comparison of images and the
reading of labels must be learned at once, each of which is useless without the other: the loss stays at that of a
uniform prediction for thousands of meta-steps.
"""

import dataclasses
import itertools
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import repeat
from metagrove.learner import Info, Learner, NetFn
from metagrove.losses import LossFn, cross_entropy
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.layers import without_head
from metagrove.nets.linear import xavier
from metagrove.nets.normalise import BatchNorm
from metagrove.nets.predictors import Statistics, bind_support
from metagrove.task import Examples, Spec

__all__ = ["GNN"]

EDGE_SLOPE, NODE_SLOPE = 0.01, 0.01
"""Slopes of the leaky ReLUs of edges and nodes below 0."""
NEVER = -1e9
NEAREST_SCALE, LABEL_SCALE = 2.0, 4.0
"""With `nearest_init`, the sum of the last weights of an adjacency MLP, and the weight of a label that is read."""
Found = tuple[Any, ...]
"""Moments of normalisation layers, in order."""


class Adjacency(eqx.Module):
    """MLP of |xᵢ - xⱼ| and a softmax over j ≠ i."""

    weights: tuple[Float[Array, "..."], ...]
    """Without biases, which would cancel in the normalisation, and the last one in the softmax."""
    norms: tuple[BatchNorm, ...]

    def __init__(self, in_dim: int, dims: tuple[int, ...], *, nearest: bool, key: PRNGKeyArray):
        shapes = itertools.pairwise((in_dim, *dims, 1))
        keys = jax.random.split(key, len(dims) + 1)
        weights = [xavier(k, shape, sum(shape)) for k, shape in zip(keys, shapes, strict=True)]
        self.weights = nearness(weights) if nearest else tuple(weights)
        self.norms = tuple(BatchNorm(size) for size in dims)

    def __call__(
        self, nodes: Float[Array, "q t d"], real: Bool[Array, "q t"], found: Found | None = None
    ) -> tuple[Float[Array, "q t t"], Found]:
        first, second = np.triu_indices(nodes.shape[1], 1)
        rows = jnp.abs(nodes[:, first] - nodes[:, second]).reshape(-1, nodes.shape[-1])
        weight = (real[:, first] & real[:, second]).reshape(-1).astype(rows.dtype)
        seen = []
        for i, norm in enumerate(self.norms):
            rows, moments = norm(rows @ self.weights[i], weight, None if found is None else found[i])
            rows, seen = jax.nn.leaky_relu(rows, EDGE_SLOPE), [*seen, moments]
        scores = (rows @ self.weights[-1]).reshape(len(nodes), len(first))
        full = jnp.full((len(nodes), nodes.shape[1], nodes.shape[1]), NEVER)
        full = full.at[:, first, second].set(scores).at[:, second, first].set(scores)
        return jax.nn.softmax(jnp.where(real[:, None], full, NEVER), axis=-1), tuple(seen)


class GNNMeta(eqx.Module):
    """Θ: the base net without head, the projection of its features, and the layers of the graph."""

    net: Any
    project: Float[Array, "..."]
    project_norm: BatchNorm
    adjacencies: tuple[Adjacency, ...]
    weights: tuple[Float[Array, "..."], ...]
    norms: tuple[BatchNorm, ...]
    bias: Float[Array, "..."]
    """Of the last layer; in the others it would cancel in the normalisation."""

    def embed(
        self, x: Float[Array, "n ..."], mask: Bool[Array, " n"], found: Any = None
    ) -> tuple[Float[Array, "n e"], Any]:
        """Compute φ, and the moments of its normalisation."""
        return self.project_norm(self.net.features(x, mask) @ self.project, mask.astype(x.dtype), found)

    def classify(
        self, nodes: Float[Array, "q t d"], real: Bool[Array, "q t"], found: Found | None = None
    ) -> tuple[Float[Array, "q k"], Found]:
        """Compute the logits of the last node of every graph, and all moments."""
        seen = []
        for i, norm in enumerate(self.norms):
            of_edges, of_nodes = (None, None) if found is None else found[i]
            edges, of_edges = self.adjacencies[i](nodes, real, of_edges)
            both = jnp.concatenate([nodes, edges @ nodes], axis=-1) @ self.weights[i]
            flat, of_nodes = norm(both.reshape(-1, both.shape[-1]), real.reshape(-1) * 1.0, of_nodes)
            nodes = jnp.concatenate([nodes, jax.nn.leaky_relu(flat.reshape(both.shape), NODE_SLOPE)], axis=-1)
            seen.append((of_edges, of_nodes))
        edges, of_edges = self.adjacencies[-1](nodes, real, None if found is None else found[-1])
        last = jnp.concatenate([nodes[:, -1], (edges[:, -1:] @ nodes)[:, 0]], axis=-1)
        return last @ self.weights[-1] + self.bias[None], (*seen, of_edges)


class GraphClassifier(eqx.Module):
    """Predictor: the graph layers, and the support examples as nodes."""

    meta: GNNMeta
    support_nodes: Float[Array, "..."]
    real: Bool[Array, "*_ n"]
    context: Examples | None = None
    """The support set whose moments normalise; without it, those of the queries."""

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n k"]:
        mask = jnp.ones(len(x), bool) if mask is None else mask
        of_features = of_graphs = None
        if self.context is not None:
            features, of_features = self.meta.embed(self.context.x, self.context.mask)
            _, of_graphs = self.meta.classify(*self.graphs(features, self.context.mask))
        features, _ = self.meta.embed(x, mask, of_features)
        return jax.nn.log_softmax(self.meta.classify(*self.graphs(features, mask), of_graphs)[0])

    def graphs(
        self, features: Float[Array, "q e"], mask: Bool[Array, " q"]
    ) -> tuple[Float[Array, "q t d"], Bool[Array, "q t"]]:
        """A graph for each query: the support nodes, and the query without a label as the last node."""
        num_labels = self.support_nodes.shape[-1] - features.shape[-1]
        query = jnp.pad(features, ((0, 0), (0, num_labels)))[:, None]
        support = jnp.broadcast_to(self.support_nodes[None], (len(features), *self.support_nodes.shape))
        real = mask[:, None] & jnp.append(self.real, True)[None]
        return jnp.concatenate([support, query], axis=1), real

    def bind_support(self, support: Examples, statistics: Statistics | None = None) -> "GraphClassifier":
        """The predictor that normalises by the support examples, each asked for in turn, or by the queries."""
        bound = eqx.tree_at(lambda one: one.meta.net, self, bind_support(self.meta.net, support, statistics))
        context = support if statistics == "support" else None
        return eqx.tree_at(lambda one: one.context, bound, context, is_leaf=lambda part: part is None)


@dataclasses.dataclass(frozen=True)
class GNN(Learner):
    """Graph neural network: classifies a query by message passing between it and the support, without gradient steps.

    From Few-Shot Learning with Graph Neural Networks (Garcia & Bruna 2018).
    """

    loss: LossFn = cross_entropy
    """Query loss."""
    net: Conv4Net | NetFn = Conv4Net(filters=64)
    """Settings of the net whose penultimate layer gives the features."""
    feature_dim: int = 128
    """Size of φ, to which the features are projected."""
    edge_dims: tuple[int, ...] = (192, 192, 96, 96)
    """Hidden sizes of the adjacency MLP."""
    node_dim: int = 48
    """Number of features that a graph layer adds to each node."""
    graph_layers: int = 2
    """Number of graph layers before the last one."""
    nearest_init: bool = True
    """Start as a soft nearest-neighbour classifier; otherwise from random weights, as published."""

    inner_steps: ClassVar[int] = 0

    def validation_errors(self) -> list[str]:
        edges = [] if all(n > 0 for n in self.edge_dims) else [f"edge_dims must be positive, got {self.edge_dims}"]
        return check_at_least_one(self, "feature_dim", "node_dim", "graph_layers") + edges

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> GNNMeta:
        net_key, project_key, *keys = jax.random.split(key, 4 + 2 * self.graph_layers)
        net = without_head(self.net(spec, key=net_key), "The graph neural network")
        num_features = jax.eval_shape(net.features, jax.ShapeDtypeStruct((1, *spec.x_shape), jnp.float32)).shape[1]
        sizes = [self.feature_dim + spec.y_dim + i * self.node_dim for i in range(self.graph_layers + 1)]
        outs = [self.node_dim] * self.graph_layers + [spec.y_dim]
        shapes = zip(sizes, outs, keys[1::2], strict=True)
        weights = [xavier(k, (2 * size, out), 2 * size + out) for size, out, k in shapes]
        if self.nearest_init:
            weights[-1] = label_reader(sizes[-1], self.feature_dim, spec.y_dim)
        edges = {"dims": self.edge_dims, "nearest": self.nearest_init}
        return GNNMeta(
            net=net,
            project=xavier(project_key, (num_features, self.feature_dim), num_features + self.feature_dim),
            project_norm=BatchNorm(self.feature_dim),
            adjacencies=tuple(Adjacency(n, **edges, key=k) for n, k in zip(sizes, keys[::2], strict=True)),
            weights=tuple(weights),
            norms=tuple(BatchNorm(self.node_dim) for _ in range(self.graph_layers)),
            bias=jnp.zeros(spec.y_dim),
        )

    def adapt(
        self, meta: GNNMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[GraphClassifier, Info]:
        del key, steps  # there is no inner loop: the path has one predictor
        features, _ = meta.embed(support.x, support.mask)
        bound = eqx.tree_at(lambda one: one.net, meta, bind_support(meta.net, support))
        predictor = GraphClassifier(bound, jnp.concatenate([features, support.y], axis=1), support.mask)
        return predictor, Info(repeat(predictor, 1))


def nearness(weights: list[Float[Array, "..."]]) -> tuple[Float[Array, "..."], ...]:
    """Change signs so that the score of a pair falls with every |xᵢ - xⱼ|.

    Hidden units are large for near pairs: far ones are where the leaky ReLUs are flat, near ones where they are not.
    """
    first, *rest = (jnp.abs(weight) for weight in weights)
    if not rest:
        return (-first * (NEAREST_SCALE / first.sum()),)
    return (-first, *rest[:-1], rest[-1] * (NEAREST_SCALE / rest[-1].sum()))


def label_reader(size: int, label_start: int, num_labels: int) -> Float[Array, "..."]:
    """Weights of the last layer with which [X, A X] W is a multiple of the labels in A X."""
    read = jnp.eye(2 * size, num_labels, k=-(size + label_start))
    return LABEL_SCALE * read

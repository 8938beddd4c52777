"""SNAIL (Mishra et al. 2018): causal attention and dilated convolutions over the support as a sequence, the query last.

rows:           [φ(xⱼ); yⱼ] for the support in random order, then [φ(x); 0] for the query
attention:      X ← [X; softmax over earlier keys(Q Kᵀ / √k) V]
dense block:    X ← [X; tanh(C₁ X) ∘ σ(C₂ X)],   C X at row t sees rows t and t - dilation
stack:          attention, dense blocks, attention, dense blocks, attention, linear; the answer is at the last row

Rows of the support never see the query, so that they are computed once and each query adds a single row. Without a key
the prediction is the mean over fixed permutations of the sorted support. φ is the base net for images and x itself,
scaled, for vectors. Dilations 1, 2, 4 reach 8 rows; the paper's pseudo-code starts at 2. A classifier's first weights
are those of a soft nearest-neighbour classifier (`nearest_init`), which the paper's are not: from random ones the
comparison of images and the reading of labels must be learned at once, each of which is useless without the other.
"""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import repeat
from metagrove.learner import Info, Learner, NetFn
from metagrove.losses import cross_entropy
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.layers import require_layers
from metagrove.nets.linear import Linear, xavier
from metagrove.nets.order import row_orders
from metagrove.nets.predictors import bind_support
from metagrove.task import Examples, Spec

__all__ = ["SNAIL"]

NEVER = -1e9
LABEL_BONUS, LABEL_SCALE = 8.0, 4.0
"""With `nearest_init`, what a labelled row has ahead of the query itself in the first attention, and the weight of a
label that is read."""
Rows = Float[Array, "n c"]


class Attention(eqx.Module):
    """Single-head causal attention, appended to its input."""

    query: Linear
    key: Float[Array, "..."]
    """Without a bias, which would cancel in the softmax."""
    value: Linear

    def __init__(self, in_dim: int, key_dim: int, value_dim: int, *, key: PRNGKeyArray):
        query_key, key_key, value_key = jax.random.split(key, 3)
        self.query = Linear(in_dim, key_dim, key=query_key)
        self.key = xavier(key_key, (in_dim, key_dim), in_dim + key_dim)
        self.value = Linear(in_dim, value_dim, key=value_key)

    def of_support(self, rows: Rows, real: Bool[Array, " n"]) -> Float[Array, "n _"]:
        """Every row attends to itself and to earlier ones."""
        earlier = jnp.tril(jnp.ones((len(rows), len(rows)), bool)) & real[None]
        scores = jnp.where(earlier, self.query(rows) @ (rows @ self.key).T * self.scale, NEVER)
        return jnp.concatenate([rows, jax.nn.softmax(scores) @ self.value(rows)], axis=1)

    def of_queries(self, queries: Float[Array, "q c"], rows: Rows, real: Bool[Array, " n"]) -> Float[Array, "q _"]:
        """Every query attends to itself and to the support, and not to other queries."""
        query = self.query(queries)
        to_support = jnp.where(real[None], query @ (rows @ self.key).T * self.scale, NEVER)
        to_itself = (query * (queries @ self.key)).sum(1, keepdims=True) * self.scale
        weights = jax.nn.softmax(jnp.concatenate([to_support, to_itself], axis=1))
        seen = weights[:, :-1] @ self.value(rows) + weights[:, -1:] * self.value(queries)
        return jnp.concatenate([queries, seen], axis=1)

    @property
    def scale(self) -> float:
        """1 / √k."""
        return 1 / math.sqrt(self.key.shape[-1])


class Dense(eqx.Module):
    """Gated causal convolution of two rows, appended to its input."""

    now: Linear
    before: Float[Array, "..."]
    dilation: int = eqx.field(static=True)

    def __init__(self, in_dim: int, filters: int, dilation: int, *, key: PRNGKeyArray):
        now_key, before_key = jax.random.split(key)
        self.now = Linear(in_dim, 2 * filters, key=now_key)
        self.before = xavier(before_key, (in_dim, 2 * filters), in_dim + 2 * filters)
        self.dilation = dilation

    def of_support(self, rows: Rows, real: Bool[Array, " n"]) -> Float[Array, "n _"]:
        """Every row sees the one `dilation` places before it; 0 before the first."""
        del real  # unmasked rows come first
        return self.gated(rows, jnp.pad(rows, ((self.dilation, 0), (0, 0)))[: len(rows)])

    def of_queries(self, queries: Float[Array, "q c"], rows: Rows, real: Bool[Array, " n"]) -> Float[Array, "q _"]:
        """Every query stands right behind the last unmasked row."""
        position = real.sum() - self.dilation
        before = jnp.where(position >= 0, rows[jnp.maximum(position, 0)], 0)
        return self.gated(queries, before[None])

    def gated(self, rows: Float[Array, "r c"], before: Float[Array, "b c"]) -> Float[Array, "r _"]:
        """[X; tanh(a) ∘ σ(b)]; `before` has a row for each, or one for all."""
        a, b = jnp.split(self.now(rows) + before @ self.before, 2, axis=1)
        return jnp.concatenate([rows, jnp.tanh(a) * jax.nn.sigmoid(b)], axis=1)


class SNAILMeta(eqx.Module):
    """Θ: the base net without head (None for vectors) and the layers over the sequence."""

    net: Any
    layers: tuple[Attention | Dense, ...]
    last: Linear


class Sequences(eqx.Module):
    """Predictor: the layers, and the support as a sequence, in one or several orders."""

    meta: SNAILMeta
    rows: Float[Array, "..."]
    real: Bool[Array, "*_ n"]
    input_scale: float = eqx.field(static=True)
    classifies: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "q ..."], mask: Bool[Array, " q"] | None = None) -> Float[Array, "q y"]:
        features = embed(self.meta.net, x, mask, self.input_scale)
        queries = jnp.pad(features, ((0, 0), (0, self.rows.shape[-1] - features.shape[-1])))
        answers = jax.vmap(lambda rows: self.answer(queries, rows))(self.rows)
        if not self.classifies:
            return answers.mean(0)
        return jax.nn.logsumexp(jax.nn.log_softmax(answers), axis=0) - math.log(len(answers))

    def answer(self, queries: Float[Array, "q c"], rows: Rows) -> Float[Array, "q y"]:
        """The last layer's values for every query, given the support in one order."""
        for layer in self.meta.layers:
            queries, rows = layer.of_queries(queries, rows, self.real), layer.of_support(rows, self.real)
        return self.meta.last(queries)


@dataclasses.dataclass(frozen=True)
class SNAIL(Learner):
    """SNAIL: reads the support as a sequence with causal attention and convolutions, without gradient steps.

    From A Simple Neural Attentive Meta-Learner (Mishra et al. 2018), with the shallow embedding for images.
    """

    net: Conv4Net | NetFn = Conv4Net(filters=64)
    """Settings of the net whose penultimate layer gives the features of an image; vectors are read as they are."""
    key_dims: tuple[int, ...] = (64, 256, 512)
    """Key size of each attention layer."""
    value_dims: tuple[int, ...] = (32, 128, 256)
    """Value size of each attention layer."""
    filters_per_block: int = 128
    """Channels that a dense block adds."""
    dilations: tuple[int, ...] = (1, 2, 4)
    """Dilation of each dense block between two attention layers."""
    input_scale: float = 0.2
    """Factor of vectors and of numeric targets."""
    test_permutations: int = 16
    """Number of orders over which the prediction is averaged at test."""
    nearest_init: bool = True
    """Start a classifier as a soft nearest-neighbour classifier; otherwise from random weights, as published."""

    inner_steps: ClassVar[int] = 0

    def validation_errors(self) -> list[str]:
        sizes = (*self.key_dims, *self.value_dims, *self.dilations)
        errors = [] if min(sizes, default=1) > 0 else ["key_dims, value_dims and dilations must be positive"]
        if len(self.key_dims) != len(self.value_dims) or not self.key_dims:
            errors += [f"key_dims and value_dims must have the same length, got {self.key_dims} and {self.value_dims}"]
        return check_at_least_one(self, "filters_per_block", "test_permutations") + errors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> SNAILMeta:
        net_key, last_key, *keys = jax.random.split(key, 2 + len(self.key_dims) * (1 + len(self.dilations)))
        net, size = None, math.prod(spec.x_shape)
        if spec.is_image:
            net = require_layers(self.net(spec, key=net_key), "SNAIL")
            net = eqx.tree_at(lambda one: one.head, net, (None, None))
            size = jax.eval_shape(net.features, jax.ShapeDtypeStruct((1, *spec.x_shape), jnp.float32)).shape[1]
        num_features, size, layers, drawn = size, size + spec.y_dim, [], iter(keys)
        for i, (key_dim, value_dim) in enumerate(zip(self.key_dims, self.value_dims, strict=True)):
            layers.append(Attention(size, key_dim, value_dim, key=next(drawn)))
            size += value_dim
            for dilation in self.dilations if i < len(self.key_dims) - 1 else ():
                layers.append(Dense(size, self.filters_per_block, dilation, key=next(drawn)))
                size += self.filters_per_block
        last = Linear(size, spec.y_dim, key=last_key)
        if self.nearest_init and self.loss is cross_entropy:
            layers[0], last = nearest_neighbour(layers[0], last, spec, num_features)
        return SNAILMeta(net, tuple(layers), last)

    def adapt(
        self, meta: SNAILMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Sequences, Info]:
        del steps  # there is no inner loop: the path has one predictor
        classifies = self.loss is cross_entropy
        features = embed(meta.net, support.x, support.mask, self.input_scale)
        labels = support.y if classifies else support.y * self.input_scale
        orders = row_orders(support, self.test_permutations, key=key)
        rows = jnp.concatenate([features, labels], axis=1)[orders]
        real = jnp.arange(len(support.mask)) < support.mask.sum()
        predictor = Sequences(bind_support(meta, support), rows, real, self.input_scale, classifies)
        return predictor, Info(repeat(predictor, 1))


def embed(
    net: Any, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None, input_scale: float
) -> Float[Array, "n f"]:
    """Compute φ: the features of images, or scaled vectors."""
    return x * input_scale if net is None else net.features(x, mask)


def nearest_neighbour(attention: Attention, last: Linear, spec: Spec, num_features: int) -> tuple[Attention, Linear]:
    """Change the first and the last layer so that the answer is a mean of the labels of rows with similar features.

    Queries and keys have the same projection of the features, of images without what all features have in common, since
    they are positive. A label adds 1 to each number of a key, to which that projection is orthogonal, and the bias of
    the query rewards it. The last layer reads the labels in the values.
    """
    num_labels, key_dim, value_dim = spec.y_dim, attention.key.shape[1], attention.value.weight.shape[1]
    size, project = num_features + num_labels, attention.key[:num_features]
    project = project - project.mean(0, keepdims=True) if spec.is_image else project
    project = project - project.mean(1, keepdims=True)
    key = jnp.concatenate([project, jnp.ones((num_labels, key_dim))])
    query = jnp.pad(project, ((0, num_labels), (0, 0)))
    bonus = jnp.full(key_dim, LABEL_BONUS / math.sqrt(key_dim))
    value = attention.value.weight.at[:, :num_labels].set(jnp.eye(size, value_dim, k=-num_features)[:, :num_labels])
    reader = LABEL_SCALE * jnp.eye(len(last.weight), num_labels, k=-size)
    attention = eqx.tree_at(
        lambda one: (one.key, one.query.weight, one.query.bias, one.value.weight), attention, (key, query, bonus, value)
    )
    return attention, eqx.tree_at(lambda one: one.weight, last, reader)

"""Relation networks (Sung et al. 2018): a net learns to compare the feature map of a query with that of a class.

m_k = Σⱼ f(xⱼ) over the support of class k,   r_k(x) = σ(g([m_k; f(x)])) in (0, 1)
meta-loss: mean over queries and classes of (r_k(x) - [y = k])²,   p(y = k | x) = r_k / Σ r

Deviations: convolutions are padded (`--no-padding` as published, for 84 px), and normalisation has no learned scale,
which the next layer's kernel can absorb. The first convolution of g is computed once for each map and not once for
each pair: a kernel on [m; f] is the sum of two kernels on m and on f.
"""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import InputError, check_at_least_one
from metagrove.inner import repeat
from metagrove.learner import Info, Learner
from metagrove.losses import LossFn, accuracy, cross_entropy, masked_mean
from metagrove.nets.conv4 import affine
from metagrove.nets.convolution import conv
from metagrove.nets.max_pool import max_pool
from metagrove.nets.normalise import EPSILON, Moments, moments_of
from metagrove.nets.predictors import Statistics
from metagrove.task import Examples, Spec, Task

__all__ = ["RelationNet"]

CENTRE = 0.5
"""Subtracted from pixels in [0, 1]."""
POOLED = (True, True, False, False)
"""Which of the four blocks of f halve the maps."""
SMALL = 1e-8
Maps = Float[Array, "n h w c"]
Found = tuple[Moments, ...]
"""Moments of every block, in order."""


class RelationMeta(eqx.Module):
    """Θ: the kernels and biases of f, of g's two blocks, and g's two fully connected layers."""

    kernels: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]
    pair_kernels: tuple[Float[Array, "..."], ...]
    pair_biases: tuple[Float[Array, "..."], ...]
    hidden: tuple[Float[Array, "..."], Float[Array, "..."]]
    score: tuple[Float[Array, "..."], Float[Array, "..."]]
    padding: bool = eqx.field(static=True)

    def embed(
        self, x: Maps, mask: Bool[Array, " n"], found: Found | None = None
    ) -> tuple[Float[Array, "n p q f"], Found]:
        """Compute f(x), and the moments of its blocks."""
        x, seen = x - CENTRE, []
        for i, (kernel, bias, pooled) in enumerate(zip(self.kernels, self.biases, POOLED, strict=True)):
            values = self.convolve(x, kernel, i < 2)
            x, moments = block(values, bias, mask, None if found is None else found[i], pooled=pooled)
            seen.append(moments)
        return x, tuple(seen)

    def relate(
        self,
        classes: Float[Array, "k h w c"],
        queries: Float[Array, "q h w c"],
        mask: Bool[Array, " q"],
        found: Found | None = None,
    ) -> tuple[Float[Array, "q k"], Found]:
        """Compute r of every query and class, and the moments of g's blocks over all pairs."""
        num_queries, num_classes = len(queries), len(classes)
        halves = jnp.split(self.pair_kernels[0], 2, axis=2)
        of_class, of_query = (self.convolve(x, k, True) for x, k in zip((classes, queries), halves, strict=True))
        values = of_query[:, None] + of_class[None]
        pairs, real = values.reshape(-1, *values.shape[2:]), jnp.repeat(mask, num_classes)
        given = (None, None) if found is None else found
        pairs, first = block(pairs, self.pair_biases[0], real, given[0])
        pairs = self.convolve(pairs, self.pair_kernels[1], True)
        pairs, second = block(pairs, self.pair_biases[1], real, given[1])
        hidden = jax.nn.relu(dense(pairs.reshape(len(pairs), -1), self.hidden))
        return jax.nn.sigmoid(dense(hidden, self.score)).reshape(num_queries, num_classes), (first, second)

    def convolve(
        self, x: Float[Array, "n h w i"], kernel: Float[Array, "3 3 i o"], cut: bool
    ) -> Float[Array, "n p q o"]:
        """Convolve; without padding the outermost pixels are cut off, in the blocks that have none as published."""
        values = conv(x, kernel)
        return values if self.padding or not cut else values[:, 1:-1, 1:-1]


class Relations(eqx.Module):
    """Predictor: the nets, and the map of each class."""

    meta: RelationMeta
    classes: Float[Array, "..."]
    known: Bool[Array, "*_ k"]
    context: Examples | None = None
    """The support set whose moments normalise; without it, those of the images it is called on."""

    def __call__(self, x: Float[Array, "n h w c"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n k"]:
        scores = jnp.where(self.known[None], self.scores(x, mask), 0) + SMALL
        return jnp.log(scores / scores.sum(1, keepdims=True))

    def scores(self, x: Float[Array, "n h w c"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n k"]:
        """r of every image and class."""
        mask = jnp.ones(len(x), bool) if mask is None else mask
        of_maps = of_pairs = None
        if self.context is not None:
            maps, of_maps = self.meta.embed(self.context.x, self.context.mask)
            _, of_pairs = self.meta.relate(self.classes, maps, self.context.mask)
        queries, _ = self.meta.embed(x, mask, of_maps)
        return self.meta.relate(self.classes, queries, mask, of_pairs)[0]

    def bind_support(self, support: Examples, statistics: Statistics | None = None) -> "Relations":
        """The predictor that normalises by this support set's moments, or by those of the set it is called on."""
        context = support if statistics == "support" else None
        return eqx.tree_at(lambda one: one.context, self, context, is_leaf=lambda part: part is None)


@dataclasses.dataclass(frozen=True)
class RelationNet(Learner):
    """Relation networks: classification of images by a learned comparison of feature maps, without gradient steps.

    From Learning to Compare: Relation Network for Few-Shot Learning (Sung et al. 2018). It has its own net.
    """

    loss: LossFn = cross_entropy
    """Query loss of evaluation; training minimises the squared error of the relation scores."""
    filters: int = 64
    """Channels of every convolution."""
    hidden_dim: int = 8
    """Size of the hidden layer of the relation net."""
    padding: bool = True
    """Pad all convolutions; without it, as published for images of 84 px."""

    inner_steps: ClassVar[int] = 0
    any_ways: ClassVar[bool] = True

    def validation_errors(self) -> list[str]:
        return check_at_least_one(self, "filters", "hidden_dim")

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> RelationMeta:
        if not spec.is_image:
            raise InputError("relation networks compare images, not vectors: use --learner protonet or matching-net")
        keys = jax.random.split(key, 8)
        height, width, channels = spec.x_shape
        rows, columns = (pixels_left(size, self.padding) for size in (height, width))
        if min(rows, columns) < 1:
            raise InputError(f"relation networks leave nothing of {height}×{width} pixels: use larger images")
        ins = (channels, *(self.filters,) * 3)
        kernels = [he_normal(k, i, self.filters) for k, i in zip(keys, ins, strict=False)]
        pairs = [he_normal(keys[4], 2 * self.filters, self.filters), he_normal(keys[5], self.filters, self.filters)]
        zeros = jnp.zeros(self.filters)
        return RelationMeta(
            kernels=tuple(kernels),
            biases=(zeros,) * 4,
            pair_kernels=tuple(pairs),
            pair_biases=(zeros,) * 2,
            hidden=small_dense(keys[6], rows * columns * self.filters, self.hidden_dim),
            score=small_dense(keys[7], self.hidden_dim, 1),
            padding=self.padding,
        )

    def adapt(
        self, meta: RelationMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Relations, Info]:
        del key, steps  # there is no inner loop: the path has one predictor
        members = support.y * support.mask[:, None]
        maps, _ = meta.embed(support.x, support.mask)
        classes = jnp.tensordot(members.T, maps, axes=1)  # a sum over the shots of a class, as published
        predictor = Relations(meta, classes, members.sum(0) > 0)
        return predictor, Info(repeat(predictor, 1))

    def meta_loss(self, meta: RelationMeta, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute the mean squared error of the relation scores over queries and known classes.

        Args:
            meta: The meta-parameters.
            task: A training task.
            key: Unused, since nothing is random.

        Returns:
            The loss, and the Info with the query accuracy.
        """
        predictor, info = self.adapt(meta, task.support, key=key)
        query, known = task.query, predictor.known
        scores = predictor.scores(query.x, query.mask)
        errors = jnp.where(known[None], jnp.square(scores - query.y), 0).sum(1) / jnp.maximum(known.sum(), 1)
        seen = {"accuracy": accuracy(jnp.where(known[None], scores, -1), query.y, query.mask)}
        return masked_mean(errors, query.mask), dataclasses.replace(info, metrics=seen)


def block(
    values: Maps, bias: Float[Array, " c"], mask: Bool[Array, " n"], moments: Moments | None, *, pooled: bool = True
) -> tuple[Float[Array, "n p q c"], Moments]:
    """Normalise, pool and apply ReLU; the positive scale changes no order, so that pooling may come first."""
    if moments is None:
        weight = jnp.repeat(mask.astype(values.dtype), values.shape[1] * values.shape[2])
        moments = moments_of(values.reshape(len(weight), -1), weight)
    mean, variance = moments
    scale = jax.lax.rsqrt(variance + EPSILON)
    values = max_pool(values) if pooled and min(values.shape[1:3]) > 1 else values
    return jax.nn.relu(affine(values, scale, bias - mean * scale)), moments


def dense(rows: Float[Array, "n i"], layer: tuple[Float[Array, "i o"], Float[Array, " o"]]) -> Float[Array, "n o"]:
    """Compute x W + b."""
    return rows @ layer[0] + layer[1][None]


def pixels_left(size: int, padding: bool) -> int:
    """Pixels along a side after the four blocks of f and g that halve it; a single pixel is not halved."""
    for _ in range(4):
        size = size if padding else size - 2
        size = size // 2 if size > 1 else size
    return size


def he_normal(key: PRNGKeyArray, in_channels: int, out_channels: int) -> Float[Array, "3 3 i o"]:
    """Draw a kernel from N(0, 2 / (9 · outputs)), as published."""
    return (2 / (9 * out_channels)) ** 0.5 * jax.random.normal(key, (3, 3, in_channels, out_channels))


def small_dense(key: PRNGKeyArray, in_dim: int, out_dim: int) -> tuple[Float[Array, "i o"], Float[Array, " o"]]:
    """Draw a fully connected layer with weights from N(0, .01²) and biases of 1, as published."""
    return 0.01 * jax.random.normal(key, (in_dim, out_dim)), jnp.ones(out_dim)

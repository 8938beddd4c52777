"""The base net for images (paper, section 6.2): four blocks of convolution, normalisation, ReLU and 2×2 max
pooling, then a linear layer and log-softmax.

Normalisation uses the statistics of the set that the net is called on, e.g. of the queries, so that a
prediction depends on the other images of its set (transductive). With `statistics="support"` they are always those of
the support set, and it does not.
"""

import dataclasses
import itertools
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import InputError, check_at_least_one
from metagrove.nets.convolution import conv, im2col
from metagrove.nets.layers import AfterLayer, activation, require_relu
from metagrove.nets.linear import xavier
from metagrove.nets.max_pool import max_pool
from metagrove.nets.predictors import PlainLayers, Statistics
from metagrove.task import Examples, Spec

__all__ = ["EPSILON", "Conv4", "Conv4Net", "affine", "convolve"]

EPSILON = 1e-3
Normalisation = tuple[Float[Array, " _"], Float[Array, " _"]]
"""Scale and shift of each channel of a block; the shift includes the bias."""


class Conv4(eqx.Module):
    """Maps a set of images to log-probabilities. The bias of a block is added after normalisation."""

    kernels: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]
    head_weight: Float[Array, "..."]
    head_bias: Float[Array, "..."]
    log_scales: tuple[Float[Array, "..."], ...] | None = None
    """Logarithm of the scale of each block's channels after normalisation; without it the scale is 1."""
    context: Examples | None = None
    """The support set whose statistics are used; without it, those of the images it is called on."""
    statistics: Literal["batch", "support"] = eqx.field(static=True, default="batch")
    softplus: float = eqx.field(static=True, default=0.0)
    """κ of the activation, 0 for ReLU."""

    def __call__(
        self,
        x: Float[Array, "n h w c"],
        mask: Bool[Array, " n"] | None = None,
        *,
        after_layer: AfterLayer | None = None,
    ) -> Float[Array, "n y"]:
        logits = self.features(x, mask, after_layer) @ self.head_weight + self.head_bias[None]
        logits = logits if after_layer is None else after_layer(len(self.kernels), logits)
        return jax.nn.log_softmax(logits)

    def features(
        self,
        x: Float[Array, "n h w c"],
        mask: Bool[Array, " n"] | None = None,
        after_layer: AfterLayer | None = None,
    ) -> Float[Array, "n f"]:
        """Return the flattened output of the last block."""
        if self.context is None:
            mask = jnp.ones(len(x), bool) if mask is None else mask
            return self.blocks(x, mask, after_layer)[0]
        _, of_support = self.blocks(self.context.x, self.context.mask, after_layer)
        for layer, (kernel, normalisation) in enumerate(zip(self.kernels, of_support, strict=True)):
            x = self.activate(conv(x, kernel), normalisation, layer, after_layer)
        return x.reshape(len(x), -1)

    def blocks(
        self, x: Float[Array, "n h w c"], mask: Bool[Array, " n"], after_layer: AfterLayer | None
    ) -> tuple[Float[Array, "n f"], tuple[Normalisation, ...]]:
        """The last block's values, and each block's normalisation by the statistics of the images in `mask`."""
        found = []
        for layer, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            values, mean, variance = convolve(x, kernel, mask, pixels=layer == 0)
            scale = jax.lax.rsqrt(jnp.maximum(variance, 0) + EPSILON)  # E[x²] - E[x]² may round below 0
            scale = scale if self.log_scales is None else scale * jnp.exp(self.log_scales[layer])
            found.append((scale, bias - mean * scale))
            x = self.activate(values, found[-1], layer, after_layer)
        return x.reshape(len(x), -1), tuple(found)

    def activate(
        self,
        values: Float[Array, "n h w c"],
        normalisation: Normalisation,
        layer: int,
        after_layer: AfterLayer | None,
    ) -> Float[Array, "n _ _ c"]:
        """Normalise, pool and apply the activation.

        A positive scale and a shift preserve the order, so without a hook it pools first, which leaves a quarter of the
        values.
        """
        if after_layer is None:
            return activation(affine(max_pool(values), *normalisation), self.softplus)
        return activation(max_pool(after_layer(layer, affine(values, *normalisation))), self.softplus)

    def bind_support(self, support: Examples, statistics: Statistics | None = None) -> "Conv4":
        """The net that normalises by this support set's statistics, or by those of the set it is called on."""
        if statistics is None:
            statistics = "support" if self.statistics == "support" else "query"
        context = support if statistics == "support" else None
        return eqx.tree_at(lambda net: net.context, self, context, is_leaf=lambda part: part is None)

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """Normalisation by the support set's statistics is multiplied into each block's kernel and bias."""
        if self.context is None:
            raise InputError(
                'a net that normalises by its query images has no plain layers: adapt with statistics="support"'
            )
        require_relu(self.softplus)
        _, of_support = self.blocks(self.context.x, self.context.mask, after_layer)
        both = zip(self.kernels, of_support, strict=True)
        blocks = tuple((kernel * scale[None, None, None], shift) for kernel, (scale, shift) in both)
        return PlainLayers((*blocks, *([] if self.head_weight is None else [self.head])), classifies=True)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Units of each layer."""
        biases = (*self.biases, *([] if self.head_bias is None else [self.head_bias]))
        return tuple(bias.shape[-1] for bias in biases)

    @property
    def head(self) -> tuple[Any, Any]:
        """The last layer's parameters."""
        return self.head_weight, self.head_bias

    def by_layer(self, values: tuple[Any, ...]) -> "Conv4":
        """The net's structure with values[l] in place of each parameter of layer l."""
        *blocks, head = values
        parts = (tuple(blocks), tuple(blocks), head, head)
        net = eqx.tree_at(lambda net: (net.kernels, net.biases, net.head_weight, net.head_bias), self, parts)
        return net if self.log_scales is None else eqx.tree_at(lambda net: net.log_scales, net, tuple(blocks))

    @property
    def film(self) -> tuple[Any, ...]:
        """Shift, and logarithm of the scale if it is learned, of each block's channels after normalisation."""
        return self.biases, self.log_scales


def convolve(
    x: Float[Array, "n h w c"], kernel: Float[Array, "3 3 c o"], mask: Bool[Array, " n"], *, pixels: bool
) -> tuple[Float[Array, "n h w o"], Float[Array, " o"], Float[Array, " o"]]:
    """x * w, and the mean and variance of each of its channels over the images where `mask` holds.

    Pixels do not depend on adapted parameters: the mean m and covariance C of their 3×3 neighbourhoods are constants,
    and those of x * w are mᵀw and wᵀCw, without another pass over the values.
    """
    num_values = x.shape[1] * x.shape[2]
    weight = mask / (jnp.maximum(mask.sum(), 1) * num_values)
    if not pixels:
        values, weight = conv(x, kernel), jnp.repeat(weight, num_values)
        flat = values.reshape(len(weight), -1)
        mean, square = weight @ flat, weight @ jnp.square(flat)
        return values, mean, square - jnp.square(mean)
    flat_kernel = kernel.reshape(-1, kernel.shape[-1])
    patches = im2col(x, len(kernel)).reshape(len(x) * num_values, -1)
    values = (patches @ flat_kernel).reshape(*x.shape[:3], -1)
    patches = patches.reshape(len(x), num_values, -1)
    mean = weight @ patches.sum(1)
    products = jnp.einsum("npi,npj->nij", patches, patches)
    covariance = jnp.einsum("n,nij->ij", weight, products) - jnp.outer(mean, mean)
    return values, mean @ flat_kernel, (flat_kernel * (covariance @ flat_kernel)).sum(0)


def affine(x: Float[Array, "n h w c"], scale: Float[Array, " c"], shift: Float[Array, " c"]) -> Float[Array, "n h w c"]:
    """Scale and shift each channel."""
    return x * scale[None, None, None] + shift[None, None, None]


@dataclasses.dataclass(frozen=True)
class Conv4Net:
    """Initialises a `Conv4` for the images and the number of classes of a source."""

    filters: int = 32
    """Channels of each block of the base net."""
    blocks: int = 4
    """Number of blocks; each halves the image."""
    widths: tuple[int, ...] = ()
    """Channels of each block, if they differ: one number per block, in place of `filters` and `blocks`."""
    statistics: Literal["batch", "support"] = "batch"
    """Statistics that normalise: those of the set that the net is called on, or always those of the support set."""
    softplus: float = 0.0
    """κ of the activation softplus(κx)/κ, which is smooth; 0 for ReLU."""

    channel_scales: bool = False
    """Learn a positive scale of each channel after normalisation, beside the bias."""

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            A message for each setting that cannot be used.
        """
        errors = [] if self.softplus >= 0 else [f"softplus must not be negative, got {self.softplus}"]
        wide = [f"widths must be positive numbers, got {self.widths}"] if any(n < 1 for n in self.widths) else []
        return check_at_least_one(self, "filters", "blocks") + errors + wide

    def __call__(self, spec: Spec, *, key: PRNGKeyArray) -> Conv4:
        if len(spec.x_shape) != 3:
            raise InputError(f"Conv-4 reads images (height, width, channels), not inputs of shape {spec.x_shape}")
        height, width, channels = spec.x_shape
        widths = self.widths or (self.filters,) * self.blocks
        blocks = len(widths)
        if min(height, width) >> blocks == 0:
            raise InputError(f"{blocks} blocks leave nothing of {height}×{width} pixels: lower --blocks")
        *kernel_keys, head_key = jax.random.split(key, blocks + 1)
        pairs = itertools.pairwise((channels, *widths))
        num_features = (height >> blocks) * (width >> blocks) * widths[-1]
        return Conv4(
            tuple(xavier(k, (3, 3, i, o), 9 * (i + o)) for k, (i, o) in zip(kernel_keys, pairs, strict=True)),
            tuple(jnp.zeros(size) for size in widths),
            xavier(head_key, (num_features, spec.y_dim), num_features + spec.y_dim),
            jnp.zeros(spec.y_dim),
            tuple(jnp.zeros(size) for size in widths) if self.channel_scales else None,
            statistics=self.statistics,
            softplus=self.softplus,
        )

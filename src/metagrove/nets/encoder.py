"""Image encoders.

- `ImageEncoder` is the paper's F(x, y) for images: two blocks of 5×5 convolution, ReLU and max pooling, then two
  fully connected layers, whose output is concatenated with the one-hot label.
- `StridedEncoder` is MUMOMAML's: four convolutions of stride 2 with batch normalisation, global average pooling, a
  linear layer, and the mean over the set. It does not use labels.
"""

import itertools
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.losses import masked_mean
from metagrove.nets.convolution import conv
from metagrove.nets.linear import Linear, xavier
from metagrove.nets.max_pool import max_pool
from metagrove.task import Examples, Spec

FILTERS, HIDDEN = 32, 384
"""Channels and hidden width of the paper's F for images."""
PIXEL_MEAN, PIXEL_STD = 0.45, 0.25
"""Approximate statistics of photographs. Without centring, the embeddings of a fresh net are nearly identical."""
SMALL = 1e-4
ImageFeatures = Literal["places", "moments"]
RELU_GAIN = 2**0.5
"""He initialisation gain for ReLU."""


class ImageEncoder(eqx.Module):
    """F(x, y) for images: maps each image and its one-hot label to a vector of size `dim` + number of classes.

    `image_features` selects the input of the fully connected layers: "places" is the flattened output of the last
    block, as in the paper; "moments" is the mean and standard deviation over pixels of every channel of every block.
    """

    kernels: tuple[Float[Array, "..."], ...]
    layers: tuple[Linear, Linear]
    image_features: ImageFeatures = eqx.field(static=True)

    def __init__(self, spec: Spec, dim: int, image_features: ImageFeatures, *, key: PRNGKeyArray):
        height, width, channels = spec.x_shape
        keys = jax.random.split(key, 4)
        shapes = [(5, 5, channels, FILTERS), (5, 5, FILTERS, FILTERS)]
        self.kernels = tuple(RELU_GAIN * xavier(k, s, 25 * (s[2] + s[3])) for k, s in zip(keys, shapes, strict=False))
        num_features = 4 * FILTERS if image_features == "moments" else (height // 4) * (width // 4) * FILTERS
        layers = (Linear(num_features, HIDDEN, key=keys[2]), Linear(HIDDEN, dim, key=keys[3]))
        self.layers = eqx.tree_at(lambda pair: [one.weight for one in pair], layers, replace_fn=lambda w: RELU_GAIN * w)
        self.image_features = image_features

    def __call__(self, x: Float[Array, "n h w c"], y: Float[Array, "n y"]) -> Float[Array, "n e"]:
        x, moments = (x - PIXEL_MEAN) / PIXEL_STD, []
        for kernel in self.kernels:
            x = jax.nn.relu(max_pool(conv(x, kernel)))  # 2×2; the authors' 3×3 with stride 2 is slow on a CPU
            moments += [x.mean((1, 2)), jnp.sqrt(x.var((1, 2)) + SMALL)]
        features = jnp.concatenate(moments, axis=1) if self.image_features == "moments" else x.reshape(len(x), -1)
        return jnp.concatenate([self.layers[1](jax.nn.relu(self.layers[0](features))), y], axis=1)


def make_example_net(
    spec: Spec, dim: int, image_features: ImageFeatures = "places", *, key: PRNGKeyArray
) -> tuple[Linear | ImageEncoder, int]:
    """Create F for tables or for images; return it and the size of its output."""
    if len(spec.x_shape) == 1:
        return Linear(spec.x_shape[0] + spec.y_dim, dim, key=key), dim
    return ImageEncoder(spec, dim, image_features, key=key), dim + spec.y_dim


class StridedEncoder(eqx.Module):
    """Mean over a set of images of the features of four strided convolutions."""

    kernels: tuple[Float[Array, "..."], ...]
    scales: tuple[Float[Array, "..."], ...]
    shifts: tuple[Float[Array, "..."], ...]
    outward: Linear

    def __init__(self, num_channels: int, out_dim: int, *, key: PRNGKeyArray):
        sizes = [num_channels, 32, 64, 128, 256]
        keys = jax.random.split(key, len(sizes))
        pairs = list(itertools.pairwise(sizes))
        self.kernels = tuple(xavier(k, (3, 3, i, o), 9 * (i + o)) for k, (i, o) in zip(keys, pairs, strict=False))
        self.scales = tuple(jnp.ones(o) for _, o in pairs)
        self.shifts = tuple(jnp.zeros(o) for _, o in pairs)
        self.outward = Linear(sizes[-1], out_dim, key=keys[-1])

    def __call__(self, examples: Examples) -> Float[Array, " d"]:
        x = examples.x
        for kernel, scale, shift in zip(self.kernels, self.scales, self.shifts, strict=True):
            x = strided(x, kernel)
            mean = masked_mean(x, examples.mask).mean((0, 1))
            variance = masked_mean(jnp.square(x - mean[None, None, None]), examples.mask).mean((0, 1))
            scale = scale * jax.lax.rsqrt(variance + 1e-3)
            x = jax.nn.relu((x - mean[None, None, None]) * scale[None, None, None] + shift[None, None, None])
        return masked_mean(self.outward(x.mean((1, 2))), examples.mask)


def strided(x: Float[Array, "n h w i"], kernel: Float[Array, "k k i o"]) -> Float[Array, "n p q o"]:
    """Compute a convolution of stride 2."""
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

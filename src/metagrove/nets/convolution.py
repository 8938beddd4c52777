"""k×k convolution (odd k, stride 1, zero padding) with fast derivatives of any order on a CPU.

y = x * w          dx = y' * ŵ  (ŵ: rotated by 180°, inputs and outputs exchanged)          dw = x ⋆ y'
and for the correlation ⋆, with cotangent v:   dx = y' * v̂,   dy' = x * v

The two operations are closed under differentiation, so every higher derivative is composed of them. XLA's own rule for
⋆ is a convolution with a kernel as large as the image, which is slow on a CPU; here ⋆ is one matrix product per kernel
position. For few input channels (RGB), x * w is one matrix product over gathered neighbourhoods (im2col). On GPU and
TPU `conv` is the standard convolution, whose derivatives are fast.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FEW_CHANNELS = 8
"""Up to this many input channels, im2col and one matrix product is faster than a convolution."""

Images = Float[Array, "n h w i"]
Kernel = Float[Array, "k k i o"]


def conv(x: Images, kernel: Kernel) -> Float[Array, "n h w o"]:
    """Compute x * w with the implementation that is fastest on the default device."""
    if jax.default_backend() != "cpu":
        return plain_conv(x, kernel)
    if x.shape[-1] <= FEW_CHANNELS:
        return im2col(x, len(kernel)) @ kernel.reshape(-1, kernel.shape[-1])
    return fast_conv(x, kernel)


def plain_conv(x: Images, kernel: Kernel) -> Float[Array, "n h w o"]:
    """Compute x * w with XLA's convolution and its derivatives."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def fast_conv(x: Images, kernel: Kernel) -> Float[Array, "n h w o"]:
    """Compute x * w with fast derivatives on a CPU."""
    return plain_conv(x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def correlate(x: Images, dy: Float[Array, "n h w o"], size: int) -> Kernel:
    """Compute x ⋆ y', the gradient of x * w with respect to a kernel of this size."""
    flat = dy.reshape(-1, dy.shape[-1])
    products = [shifted.reshape(-1, x.shape[-1]).T @ flat for shifted in neighbours(x, size)]
    return jnp.stack(products).reshape(size, size, x.shape[-1], dy.shape[-1])


def neighbours(x: Images, size: int) -> list[Images]:
    """Return size² shifted copies of the images, one per kernel position, with zero padding."""
    padded = zero_pad(x, size // 2)
    height, width = x.shape[1:3]
    return [padded[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]


def im2col(x: Images, size: int) -> Float[Array, "n h w _"]:
    """Gather the channels of all neighbours of each pixel, in the order of a kernel.

    Columns are gathered first and rows second: this copies longer contiguous pieces, which is faster.
    """
    padded = zero_pad(x, size // 2)
    height, width = x.shape[1:3]
    rows = jnp.concatenate([padded[:, :, j : j + width] for j in range(size)], axis=-1)
    rows = jax.lax.optimization_barrier(rows)  # prevents XLA from fusing both gathers into one
    return jnp.concatenate([rows[:, i : i + height] for i in range(size)], axis=-1)


def zero_pad(x: Images, reach: int) -> Float[Array, "n _ _ i"]:
    """Pad images with zeros on all sides."""
    return jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)))


def transpose_kernel(kernel: Kernel) -> Float[Array, "k k o i"]:
    """Compute ŵ: the kernel rotated by 180°, with inputs and outputs exchanged."""
    return jnp.flip(kernel, (0, 1)).swapaxes(2, 3)


def _conv_forward(x: Images, kernel: Kernel):
    return fast_conv(x, kernel), (x, kernel)


def _conv_backward(seen, dy):
    x, kernel = seen
    return fast_conv(dy, transpose_kernel(kernel)), correlate(x, dy, len(kernel))


def _correlate_forward(x: Images, dy, size: int):
    return correlate(x, dy, size), (x, dy)


def _correlate_backward(_size: int, seen, dkernel):
    x, dy = seen
    return fast_conv(dy, transpose_kernel(dkernel)), fast_conv(x, dkernel)


fast_conv.defvjp(_conv_forward, _conv_backward)
correlate.defvjp(_correlate_forward, _correlate_backward)

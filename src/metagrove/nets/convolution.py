"""A convolution, k×k with odd k, stride 1 and zeros around, that is fast to differentiate on a CPU, to any order.

y = x * w          dx = y' * ŵ  (ŵ: turned by 180°, inputs and outputs exchanged)          dw = x ⋆ y'
and for the correlation ⋆, with cotangent v:   dx = y' * v̂,   dy' = x * v

So the two operations are closed under differentiation: whatever derivative is asked for is made of them again. The
compiler's own rule for ⋆ is a convolution with a kernel as large as the image, which is slow on a CPU; here it is a
matrix product for each place of the kernel. Of few channels, as colours, the neighbours of each pixel are gathered, and
x * w is one matrix product. On GPU and TPU `conv` is the plain convolution, whose derivatives are fast.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FEW_CHANNELS = 8
"""With so few input channels one matrix product over gathered neighbours is faster than a convolution."""

Images = Float[Array, "n h w i"]
Kernel = Float[Array, "k k i o"]


def conv(x: Images, kernel: Kernel) -> Float[Array, "n h w o"]:
    """x * w, by the way that is fast on the present device."""
    if jax.default_backend() != "cpu":
        return plain_conv(x, kernel)
    if x.shape[-1] <= FEW_CHANNELS:
        return gathered(x, len(kernel)) @ kernel.reshape(-1, kernel.shape[-1])
    return fast_conv(x, kernel)


def plain_conv(x: Images, kernel: Kernel) -> Float[Array, "n h w o"]:
    """x * w, as the compiler has it."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def fast_conv(x: Images, kernel: Kernel) -> Float[Array, "n h w o"]:
    """x * w."""
    return plain_conv(x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def correlate(x: Images, dy: Float[Array, "n h w o"], size: int) -> Kernel:
    """x ⋆ y', the gradient of x * w with respect to a kernel of this size."""
    flat = dy.reshape(-1, dy.shape[-1])
    products = [shifted.reshape(-1, x.shape[-1]).T @ flat for shifted in neighbours(x, size)]
    return jnp.stack(products).reshape(size, size, x.shape[-1], dy.shape[-1])


def neighbours(x: Images, size: int) -> list[Images]:
    """size² images: for each pixel what stands up left of it, ..., down right; zeros outside."""
    padded = with_border(x, size // 2)
    height, width = x.shape[1:3]
    return [padded[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]


def gathered(x: Images, size: int) -> Float[Array, "n h w _"]:
    """For each pixel all its neighbours' channels, in the order of a kernel's.

    First those of its row, then of that the rows: pieces are longer so, and copying them is faster.
    """
    padded = with_border(x, size // 2)
    height, width = x.shape[1:3]
    rows = jnp.concatenate([padded[:, :, j : j + width] for j in range(size)], axis=-1)
    rows = jax.lax.optimization_barrier(rows)  # or the compiler makes one gathering of both
    return jnp.concatenate([rows[:, i : i + height] for i in range(size)], axis=-1)


def with_border(x: Images, reach: int) -> Float[Array, "n _ _ i"]:
    """The images with zeros around them."""
    return jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)))


def turned(kernel: Kernel) -> Float[Array, "k k o i"]:
    """ŵ."""
    return jnp.flip(kernel, (0, 1)).swapaxes(2, 3)


def _conv_forward(x: Images, kernel: Kernel):
    return fast_conv(x, kernel), (x, kernel)


def _conv_backward(seen, dy):
    x, kernel = seen
    return fast_conv(dy, turned(kernel)), correlate(x, dy, len(kernel))


def _correlate_forward(x: Images, dy, size: int):
    return correlate(x, dy, size), (x, dy)


def _correlate_backward(_size: int, seen, dkernel):
    x, dy = seen
    return fast_conv(dy, turned(dkernel)), fast_conv(x, dkernel)


fast_conv.defvjp(_conv_forward, _conv_backward)
correlate.defvjp(_correlate_forward, _correlate_backward)

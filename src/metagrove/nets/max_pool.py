"""2×2 max pooling whose derivatives of any order are composed of two simple operations.

gather(x, k) = k-th value of each 2×2 window          scatter(p, k) = p at position k of each 2×2 window, 0 elsewhere
They are transposes of each other. The derivative of the maximum is `gather` at the argmax of each window, the first one
of equal values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Full = Float[Array, "n h w c"]
Pooled = Float[Array, "n p q c"]
Position = Float[Array, "n p q c"]
"""Position 0 to 3 in the order of `quarters`; floats, since a CPU compares numbers of equal width fastest."""


def max_pool(x: Full) -> Pooled:
    """Max pooling with window and stride 2; an odd last row or column is dropped."""
    return _even_max_pool(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])


@jax.custom_vjp
def _even_max_pool(x: Full) -> Pooled:
    a, b, c, d = quarters(x)
    return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


@jax.custom_vjp
def gather(x: Full, position: Position) -> Pooled:
    """Select one value of each 2×2 window."""
    a, b, c, d = quarters(x)
    return jnp.where(position < 2, jnp.where(position == 0, a, b), jnp.where(position == 2, c, d))


@jax.custom_vjp
def scatter(pooled: Pooled, position: Position) -> Full:
    """Write each pooled value to its position in the 2×2 window, and 0 to the other three."""
    n, height, width, channels = pooled.shape
    order = jnp.arange(4, dtype=position.dtype).reshape(1, 1, 2, 1, 2, 1)
    blocks = jnp.where(position[:, :, None, :, None] == order, pooled[:, :, None, :, None], 0)
    return blocks.reshape(n, 2 * height, 2 * width, channels)


def quarters(x: Full) -> list[Pooled]:
    """Return the upper left, upper right, lower left and lower right pixels of all windows."""
    n, height, width, channels = x.shape
    blocks = x.reshape(n, height // 2, 2, width // 2, 2, channels)
    return [blocks[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]


def window_argmax(x: Full) -> Position:
    """Compute the position of the maximum of each 2×2 window, which has no derivative.

    The four values are compared with each other and not with their maximum: compiled code may compute x twice with
    different rounding, and then none of the four would equal the maximum.
    """
    a, b, c, d = quarters(x)
    above, below = jnp.where(a >= b, 0, 1), jnp.where(c >= d, 2, 3)
    return jnp.where(jnp.maximum(a, b) >= jnp.maximum(c, d), above, below).astype(x.dtype)


# The barrier prevents XLA from recomputing the pooling wherever pooled values are used.
_even_max_pool.defvjp(
    lambda x: jax.lax.optimization_barrier((_even_max_pool(x), window_argmax(x))),
    lambda position, dp: (scatter(dp, position),),
)
gather.defvjp(
    lambda x, position: (gather(x, position), position),
    lambda position, dp: (scatter(dp, position), jnp.zeros_like(position)),
)
scatter.defvjp(
    lambda p, position: (scatter(p, position), position),
    lambda position, dx: (gather(dx, position), jnp.zeros_like(position)),
)

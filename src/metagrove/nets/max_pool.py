"""2×2 max pooling whose derivatives, of any order, are made of two simple operations.

gather(x, k) = of each 2×2 the k-th          spread(p, k) = p at the k-th of each 2×2, 0 at the others
They are each other's transpose; the derivative of the maximum is gather with k the place of the largest of each 2×2,
the first of equals.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Full = Float[Array, "n h w c"]
Pooled = Float[Array, "n p q c"]
Place = Float[Array, "n p q c"]
"""0 to 3, in the order of `quarters`; as floats, since a CPU compares numbers of one width fastest."""


def max_pool(x: Full) -> Pooled:
    """The largest of each 2×2; an odd last row or column is left out."""
    return _even_max_pool(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])


@jax.custom_vjp
def _even_max_pool(x: Full) -> Pooled:
    a, b, c, d = quarters(x)
    return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


@jax.custom_vjp
def gather(x: Full, place: Place) -> Pooled:
    """The value at its place of each 2×2."""
    a, b, c, d = quarters(x)
    return jnp.where(place < 2, jnp.where(place == 0, a, b), jnp.where(place == 2, c, d))


@jax.custom_vjp
def spread(pooled: Pooled, place: Place) -> Full:
    """Each pooled value at its place of the 2×2, 0 at the other three."""
    n, height, width, channels = pooled.shape
    order = jnp.arange(4, dtype=place.dtype).reshape(1, 1, 2, 1, 2, 1)
    blocks = jnp.where(place[:, :, None, :, None] == order, pooled[:, :, None, :, None], 0)
    return blocks.reshape(n, 2 * height, 2 * width, channels)


def quarters(x: Full) -> list[Pooled]:
    """The four images of upper left, upper right, lower left and lower right pixels."""
    n, height, width, channels = x.shape
    blocks = x.reshape(n, height // 2, 2, width // 2, 2, channels)
    return [blocks[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]


def place_of_largest(x: Full) -> Place:
    """Where the largest of each 2×2 stands. A constant: it has no derivative.

    The four are compared with each other and not with their maximum: compiled, x may be computed twice and rounded
    differently, and then none of the four would equal it.
    """
    a, b, c, d = quarters(x)
    above, below = jnp.where(a >= b, 0, 1), jnp.where(c >= d, 2, 3)
    return jnp.where(jnp.maximum(a, b) >= jnp.maximum(c, d), above, below).astype(x.dtype)


# The barrier: or the compiler pools again wherever the pooled values are read.
_even_max_pool.defvjp(
    lambda x: jax.lax.optimization_barrier((_even_max_pool(x), place_of_largest(x))),
    lambda place, dp: (spread(dp, place),),
)
gather.defvjp(lambda x, place: (gather(x, place), place), lambda place, dp: (spread(dp, place), jnp.zeros_like(place)))
spread.defvjp(lambda p, place: (spread(p, place), place), lambda place, dx: (gather(dx, place), jnp.zeros_like(place)))

"""2×2 max pooling whose derivatives, of any order, are made of two simple operations.

gather(x, s) = Σ over each 2×2 of s·x          spread(p, s) = s·(p repeated over each 2×2)
They are each other's transpose; the derivative of the maximum is gather with s = 1 where x is the largest of its four,
shared equally among equals (common in plain backgrounds).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Full = Float[Array, "n h w c"]
Pooled = Float[Array, "n p q c"]


def max_pool(x: Full) -> Pooled:
    """The largest of each 2×2; an odd last row or column is left out."""
    return _even_max_pool(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2])


@jax.custom_vjp
def _even_max_pool(x: Full) -> Pooled:
    a, b, c, d = quarters(x)
    return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


@jax.custom_vjp
def gather(x: Full, share: Full) -> Pooled:
    """Σ over each 2×2 of share·x."""
    a, b, c, d = quarters(x * share)
    return (a + b) + (c + d)


@jax.custom_vjp
def spread(pooled: Pooled, share: Full) -> Full:
    """share·(pooled repeated over each 2×2)."""
    return repeated(pooled) * share


def quarters(x: Full) -> list[Pooled]:
    """The four pictures of upper left, upper right, lower left and lower right pixels."""
    n, height, width, channels = x.shape
    blocks = x.reshape(n, height // 2, 2, width // 2, 2, channels)
    return [blocks[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]


def repeated(pooled: Pooled) -> Full:
    """Each pixel four times."""
    n, height, width, channels = pooled.shape
    blocks = jnp.broadcast_to(pooled[:, :, None, :, None], (n, height, 2, width, 2, channels))
    return blocks.reshape(n, 2 * height, 2 * width, channels)


def share_of_largest(x: Full) -> Full:
    """1 at the largest of each 2×2, 1/k at k equal ones, 0 elsewhere. A constant: it has no derivative.

    The four are compared with each other and not with their maximum: compiled, x may be computed twice and rounded
    differently, and then none of the four would equal it.
    """
    a, b, c, d = quarters(x)
    over, under = jnp.maximum(a, b), jnp.maximum(c, d)
    largest = [
        ((one >= beside) & (one >= across)).astype(x.dtype)
        for one, beside, across in ((a, b, under), (b, a, under), (c, d, over), (d, c, over))
    ]
    number = (largest[0] + largest[1]) + (largest[2] + largest[3])
    rows = [jnp.stack(largest[i : i + 2], axis=3) for i in (0, 2)]
    shares = jnp.stack(rows, axis=2) / number[:, :, None, :, None]
    return jax.lax.stop_gradient(shares.reshape(x.shape))


def _pool_forward(x):
    return _even_max_pool(x), share_of_largest(x)


_even_max_pool.defvjp(_pool_forward, lambda share, dp: (spread(dp, share),))
gather.defvjp(lambda x, share: (gather(x, share), share), lambda share, dp: (spread(dp, share), jnp.zeros_like(share)))
spread.defvjp(lambda p, share: (spread(p, share), share), lambda share, dx: (gather(dx, share), jnp.zeros_like(share)))

"""Hessian norms by power iteration on Hessian-vector products; no Hessian is ever stored."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ITERATIONS = 30

Loss = Callable[[Float[Array, " p"]], Float[Array, ""]]


def spectral_norm(
    matvec: Callable[[Float[Array, " p"]], Float[Array, " p"]], size: int, iterations: int = ITERATIONS
) -> Float[Array, ""]:
    """‖A‖₂ of a symmetric A, its largest absolute eigenvalue: v ← Av/‖Av‖ from a fixed random v.

    Args:
        matvec: v to Av.
        size: Length of v.
        iterations: Number of products.

    Returns:
        ‖Av‖ at the last v, a lower estimate.
    """

    def step(vector: Array, _: None) -> tuple[Array, Array]:
        moved = matvec(vector)
        norm = jnp.linalg.norm(moved)
        return moved / jnp.maximum(norm, 1e-30), norm

    start = jax.random.normal(jax.random.key(0), (size,))
    _, norms = jax.lax.scan(step, start / jnp.linalg.norm(start), length=iterations)
    return norms[-1]


def hessian_vector(loss: Loss, params: Float[Array, " p"], vector: Float[Array, " p"]) -> Float[Array, " p"]:
    """∇²L(θ) v, the derivative of the gradient along v."""
    return jax.jvp(jax.grad(loss), (params,), (vector,))[1]


def reverse_hessian_vector(loss: Loss, params: Float[Array, " p"], vector: Float[Array, " p"]) -> Float[Array, " p"]:
    """∇²L(θ) v as the gradient of ∇L(θ)·v, for a loss without a forward-mode derivative (our max pooling has none)."""
    return jax.grad(lambda p: jnp.vdot(jax.grad(loss)(p), vector))(params)


def hessian_norm(loss: Loss, params: Float[Array, " p"]) -> Float[Array, ""]:
    """‖∇²L(θ)‖₂."""
    return spectral_norm(lambda v: hessian_vector(loss, params, v), params.size)


def hessian_change(loss: Loss, first: Float[Array, " p"], second: Float[Array, " p"]) -> Float[Array, ""]:
    """‖∇²L(θ′) − ∇²L(θ)‖₂ / ‖θ′ − θ‖, a lower estimate of the Lipschitz constant ρ; 0 where θ′ = θ."""
    change = spectral_norm(lambda v: hessian_vector(loss, second, v) - hessian_vector(loss, first, v), first.size)
    distance = jnp.linalg.norm(second - first)
    return jnp.where(distance > 0, change / jnp.maximum(distance, 1e-30), 0.0)

"""Rows under a Gaussian prior of low rank: evidence and posterior, by one orthogonalisation in single precision.

r = B ε + e,   ε ~ N(0, I_R),   e ~ N(0, I)        (residuals from the prior's mean, in units of the noise)

Everything follows from the least-squares problem min_ε ‖[B; I] ε - [r; 0]‖², solved by modified Gram-Schmidt on the
augmented matrix [B r; I 0] = Q̄ R̄, which is backward stable (Björck, 1967), where I + BᵀB would square its condition
number. With Q = [Q₁; Q₂] the orthonormal columns of [B; I] and ρ = [ρ₁; ρ₂] what is left of [r; 0]:

ε̂ = -ρ₂                        posterior mean
(I + BᵀB)⁻¹ = Q₂ Q₂ᵀ           posterior covariance
log|I + BBᵀ| = 2 Σ log R_jj,   R_jj ≥ 1
rᵀ(I + BBᵀ)⁻¹ r = ‖ρ‖²         a sum of squares: nothing cancels, however small the noise
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LOG_2PI = 1.8378770664093453


class Factors(eqx.Module):
    """Q, R and ρ of the module's docstring."""

    rows: Float[Array, "n r"]
    """Q₁."""
    inverse: Float[Array, "r r"]
    """Q₂ = R⁻¹."""
    log_diagonal: Float[Array, " r"]
    """log R_jj."""
    residual: Float[Array, " n"]
    """ρ₁ = r - B ε̂ = (I + BBᵀ)⁻¹ r."""
    coordinates: Float[Array, " r"]
    """ε̂."""


def factorize(design: Float[Array, "n r"], residual: Float[Array, " n"]) -> Factors:
    """Orthogonalise [B r; I 0]; rows that are all 0 change nothing."""
    num_rows, rank = design.shape
    left = jnp.concatenate([design, residual[:, None]], axis=1)
    left = jnp.concatenate([left, jnp.eye(rank, rank + 1, dtype=left.dtype)])
    columns, log_diagonal = [], []
    for _ in range(rank):
        norm = jnp.sqrt(jnp.square(left[:, 0]).sum())
        column, left = left[:, 0] / norm, left[:, 1:]
        left = left - column[:, None] * (column[:, None] * left).sum(0)[None]
        columns.append(column)
        log_diagonal.append(jnp.log(norm))
    q = jnp.stack(columns, axis=1)
    return Factors(q[:num_rows], q[num_rows:], jnp.stack(log_diagonal), left[:num_rows, 0], -left[num_rows:, 0])


@jax.custom_jvp
def log_density(design: Float[Array, "n r"], residual: Float[Array, " n"]) -> Float[Array, ""]:
    """log N(r; 0, I + BBᵀ) + n/2 log 2π, with the gradient in closed form:

    ∂/∂r = -ρ₁,   ∂/∂B = ρ₁ ε̂ᵀ - Q₁ Q₂ᵀ
    """
    factors = factorize(design, residual)
    squares = jnp.square(factors.residual).sum() + jnp.square(factors.coordinates).sum()
    return -squares / 2 - factors.log_diagonal.sum()


@log_density.defjvp
def _log_density_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    factors = factorize(*primals)
    squares = jnp.square(factors.residual).sum() + jnp.square(factors.coordinates).sum()
    by_design = factors.residual[:, None] * factors.coordinates[None]
    by_design = by_design - (factors.rows[:, None] * factors.inverse[None]).sum(-1)  # mapped, faster than a product
    change = (by_design * tangents[0]).sum() - (factors.residual * tangents[1]).sum()
    return -squares / 2 - factors.log_diagonal.sum(), change

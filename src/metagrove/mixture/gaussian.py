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

    @property
    def log_density(self) -> Float[Array, ""]:
        """log N(r; 0, I + BBᵀ) + n/2 log 2π = -‖ρ‖² / 2 - Σ log R_jj."""
        squares = jnp.square(self.residual).sum() + jnp.square(self.coordinates).sum()
        return -squares / 2 - self.log_diagonal.sum()


def factorize(design: Float[Array, "n r"], residual: Float[Array, " n"]) -> Factors:
    """Orthogonalise [B r; I 0], column after column; rows that are all 0 change nothing."""
    num_rows, rank = design.shape
    columns = jnp.arange(rank + 1)

    def orthogonalize(matrix: Float[Array, "m c"], j: Array) -> tuple[Float[Array, "m c"], Float[Array, ""]]:
        """Column j becomes a unit vector, and its direction is taken out of all later ones."""
        column = jax.lax.dynamic_index_in_dim(matrix, j, axis=1)
        norm = jnp.sqrt(jnp.square(column).sum())
        unit = column / norm
        overlap = jnp.where(columns > j, (unit * matrix).sum(0), 0)[None]
        return jnp.where(columns[None] == j, unit, matrix - unit * overlap), jnp.log(norm)

    matrix = jnp.concatenate([design, residual[:, None]], axis=1)
    matrix = jnp.concatenate([matrix, jnp.eye(rank, rank + 1, dtype=matrix.dtype)])
    matrix, log_diagonal = jax.lax.scan(orthogonalize, matrix, jnp.arange(rank))
    top, bottom = matrix[:num_rows], matrix[num_rows:]
    return Factors(top[:, :rank], bottom[:, :rank], log_diagonal, top[:, rank], -bottom[:, rank])


@jax.custom_jvp
def log_density(design: Float[Array, "n r"], residual: Float[Array, " n"]) -> Float[Array, ""]:
    """`Factors.log_density`, with the gradient in closed form:

    ∂/∂r = -ρ₁,   ∂/∂B = ρ₁ ε̂ᵀ - Q₁ Q₂ᵀ
    """
    return factorize(design, residual).log_density


@log_density.defjvp
def _log_density_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    factors = factorize(*primals)
    by_design = factors.residual[:, None] * factors.coordinates[None]
    by_design = by_design - (factors.rows[:, None] * factors.inverse[None]).sum(-1)  # mapped, faster than a product
    change = (by_design * tangents[0]).sum() - (factors.residual * tangents[1]).sum()
    return factors.log_density, change

"""Clusters as priors over functions: a mixture of Gaussians over the weights of a linear model on features φ(x).

cluster k:   f(x) = φ(x)ᵀ W,   W = m_k + L_k ε,   ε ~ N(0, I_R),   y = f(x) + s e,   e ~ N(0, I)

A task's evidence ℓ_k = log N(y; Φ m_k, Φ L_k L_kᵀ Φᵀ + s² I) gives its posterior probabilities

p = softmax(log π_k + ℓ_k)

and within a cluster the posterior mean ε̂_k of its coordinates. Outputs share ε and have a noise each. With one cluster
it is the random-coefficient model of statistics; with learned features also ALPaCA (Harrison et al., 2018).
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metagrove.mixture.gaussian import LOG_2PI, factorize, log_density
from metagrove.nets.basis import Basis
from metagrove.task import Examples


class Mixture(eqx.Module):
    """K priors over functions on common features; m, L and s are in units of `y_scale`."""

    basis: Basis
    mean: Float[Array, "k f o"]
    """m_k."""
    factor: Float[Array, "k f o r"]
    """L_k."""
    logits: Float[Array, " k"]
    """log π_k, up to a constant."""
    log_noise: Float[Array, " o"]
    """log s of each output."""
    y_shift: Float[Array, " o"]
    """Mean of training targets; no gradient changes it."""
    y_scale: Float[Array, " o"]
    """Their standard deviation; no gradient changes it."""

    @property
    def num_clusters(self) -> int:
        """K."""
        return self.logits.shape[0]

    @property
    def noise(self) -> Float[Array, " o"]:
        """s in the units of y."""
        return jnp.exp(self.log_noise) * self.y_scale

    def with_noise(self, noise: float | Float[Array, " o"]) -> "Mixture":
        """The same priors with noise s, in the units of y."""
        log_noise = jnp.log(jnp.broadcast_to(jnp.asarray(noise, float), self.y_scale.shape) / self.y_scale)
        return dataclasses.replace(self, log_noise=log_noise)

    def log_evidence(self, rows: Examples) -> Float[Array, " k"]:
        """ℓ_k of the rows whose mask holds; 0 without any."""
        return jax.vmap(log_density)(*self._whiten(rows)) - self._log_unit(rows)

    def log_marginal(self, rows: Examples) -> Float[Array, ""]:
        """log Σ_k π_k exp ℓ_k."""
        return jax.nn.logsumexp(jax.nn.log_softmax(self.logits) + self.log_evidence(rows))

    def posterior(self, rows: Examples) -> "Posterior":
        """Return the posterior of a task given its rows."""
        factors = jax.vmap(factorize)(*self._whiten(rows))
        evidence = jax.vmap(lambda one: one.log_density)(factors) - self._log_unit(rows)
        return Posterior(
            mixture=self,
            probabilities=jax.nn.softmax(jax.nn.log_softmax(self.logits) + evidence),
            coordinates=factors.coordinates,
            root=factors.inverse,
            log_evidence=evidence,
        )

    def _log_unit(self, rows: Examples) -> Float[Array, ""]:
        """log of the volume that whitening makes 1, and the Gaussian's constant: Σ over rows of ½ log 2π s²."""
        per_row = LOG_2PI / 2 + self.log_noise + jnp.log(jax.lax.stop_gradient(self.y_scale))
        return rows.mask.sum() * per_row.sum()

    def _whiten(self, rows: Examples) -> tuple[Float[Array, "k m r"], Float[Array, "k m"]]:
        """B_k = Φ L_k / s and (y - Φ m_k) / s, a line for each row and output, 0 where the mask does not hold."""
        weight = rows.mask[:, None] * jnp.exp(-self.log_noise)[None]
        both = jnp.concatenate([self.factor, self.mean[..., None]], axis=-1)
        both = jnp.einsum("nf,kfor->knor", self.basis(rows.x), both)
        designs = both[..., :-1] * weight[None, :, :, None]
        residuals = (standardized(self, rows.y)[None] - both[..., -1]) * weight[None]
        lines = rows.y.size
        return designs.reshape(-1, lines, designs.shape[-1]), residuals.reshape(-1, lines)


class Posterior(eqx.Module):
    """The posterior of a task under the mixture; `mixture.predictor` makes a predictor of it."""

    mixture: Mixture
    probabilities: Float[Array, " k"]
    """p."""
    coordinates: Float[Array, "k r"]
    """ε̂_k."""
    root: Float[Array, "k r r"]
    """C_k with C_k C_kᵀ = (I + L_kᵀ ΦᵀΦ L_k / s²)⁻¹, the posterior covariance of ε."""
    log_evidence: Float[Array, " k"]
    """ℓ_k."""

    @property
    def cluster_weights(self) -> Float[Array, "k f o"]:
        """m_k + L_k ε̂_k."""
        return self.mixture.mean + jnp.einsum("kfor,kr->kfo", self.mixture.factor, self.coordinates)

    @property
    def mean_weights(self) -> Float[Array, "f o"]:
        """W̄ = Σ_k p_k (m_k + L_k ε̂_k)."""
        return jnp.einsum("k,kfo->fo", self.probabilities, self.cluster_weights)


def standardized(mixture: Mixture, y: Float[Array, "n o"]) -> Float[Array, "n o"]:
    """(y - shift) / scale."""
    shift, scale = jax.lax.stop_gradient((mixture.y_shift, mixture.y_scale))
    return (y - shift[None]) / scale[None]

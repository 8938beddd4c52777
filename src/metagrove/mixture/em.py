"""Fitting a mixture on fixed features by EM, in double precision.

Only G = ΦᵀΦ, b = Φᵀy and c = yᵀy of a task's rows enter. With W ~ N(m_k, Σ_k) in cluster k and noise s:

E:   C_ik = (Σ_k⁻¹ + G_i/s²)⁻¹,   ŵ_ik = m_k + C_ik (b_i - G_i m_k)/s²,   r_i = softmax(log π_k + ℓ_ik)
M:   m_k = Σ_i r_ik ŵ_ik / n_k,   Σ_k = Σ_i r_ik (C_ik + (ŵ_ik - m_k)(ŵ_ik - m_k)ᵀ) / n_k,   n_k = Σ_i r_ik
     s² = mean over rows of Σ_k r_ik ((y - φᵀŵ_ik)² + φᵀC_ik φ)

With one cluster it is the maximum-likelihood fit of a linear mixed model with random coefficients (Laird & Ware, 1982).
Each output has its own noise; the weights of all outputs are one vector.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from metagrove.mixture.prior import Mixture
from metagrove.nets.basis import Basis

LEAST_NOISE = 1e-3
"""Smallest s, in units of the targets' standard deviation."""
LOG_2PI = float(np.log(2 * np.pi))


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Sufficient statistics of the rows of tasks (or of their support sets) for their weights."""

    gram: np.ndarray  # (tasks, f, f)
    cross: np.ndarray  # (tasks, f, o)
    squares: np.ndarray  # (tasks, o)
    counts: np.ndarray  # (tasks,)


@dataclasses.dataclass(frozen=True)
class Prior:
    """Parameters of a mixture in double precision; p = f * o weights, the outputs of a feature side by side."""

    mean: np.ndarray  # (k, p)
    covariance: np.ndarray  # (k, p, p)
    log_weights: np.ndarray  # (k,)
    noise: np.ndarray  # (o,)


@dataclasses.dataclass(frozen=True)
class Expectation:
    """Posterior of each task's weights under each cluster."""

    means: np.ndarray  # (tasks, k, p)
    covariances: np.ndarray  # (tasks, k, p, p)
    log_evidence: np.ndarray  # (tasks, k)
    shares: np.ndarray  # (tasks, k)
    log_marginal: np.ndarray  # (tasks,)

    def blended(self) -> np.ndarray:
        """Posterior mean of the weights over clusters, (tasks, p)."""
        return np.einsum("tk,tkp->tp", self.shares, self.means)


def statistics_of(phi: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Statistics:
    """Statistics of features (tasks, n, f) and standardised targets (tasks, n, o) without masked rows."""
    phi, y = phi * mask[..., None], y * mask[..., None]
    gram, cross = np.einsum("tnf,tng->tfg", phi, phi, optimize=True), np.einsum("tnf,tno->tfo", phi, y, optimize=True)
    return Statistics(gram, cross, np.square(y).sum(1), mask.sum(1))


def expect(prior: Prior, found: Statistics) -> Expectation:
    """The E step."""
    per_cluster = [
        _expect_one(mean, cov, prior.noise, found) for mean, cov in zip(prior.mean, prior.covariance, strict=True)
    ]
    means, covariances, evidence = (np.stack(part, 1) for part in zip(*per_cluster, strict=True))
    joint = prior.log_weights[None] + evidence
    top = joint.max(1, keepdims=True)
    log_marginal = top[:, 0] + np.log(np.exp(joint - top).sum(1))
    return Expectation(means, covariances, evidence, np.exp(joint - log_marginal[:, None]), log_marginal)


def _expect_one(
    mean: np.ndarray, covariance: np.ndarray, noise: np.ndarray, found: Statistics
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Posterior mean and covariance of each task's weights, and its log evidence; with Σ = LLᵀ, C = L M⁻¹ Lᵀ,
    M = I + LᵀGL/s².
    """
    num_tasks, features, outputs = found.cross.shape
    precision = 1 / np.square(noise)
    gram = np.einsum("tfg,op,o->tfogp", found.gram, np.eye(outputs), precision, optimize=True)
    gram = gram.reshape(num_tasks, features * outputs, -1)
    cross = (found.cross * precision).reshape(num_tasks, -1)
    root = _root(covariance)
    inner = np.eye(root.shape[1]) + root.T @ gram @ root
    chol = np.linalg.cholesky(inner)
    half = np.linalg.solve(chol, np.broadcast_to(root.T, (num_tasks, *root.T.shape)))
    posterior = half.transpose(0, 2, 1) @ half
    residual = cross - gram @ mean
    change = np.einsum("tpq,tq->tp", posterior, residual)
    squares = (found.squares * precision).sum(1) - 2 * cross @ mean + np.einsum("p,tpq,q->t", mean, gram, mean)
    quadratic = squares - np.einsum("tp,tp->t", residual, change)
    log_det = 2 * np.log(np.einsum("tpp->tp", chol)).sum(1)
    constant = found.counts * (LOG_2PI * outputs + 2 * np.log(noise).sum())
    return mean + change, posterior, -0.5 * (constant + log_det + quadratic)


def _root(covariance: np.ndarray) -> np.ndarray:
    """L with L Lᵀ = Σ, which may be singular."""
    size, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(size, 0))


def maximize(expected: Expectation, found: Statistics, shrinkage: float) -> Prior:
    """The M step; a diagonal covariance has the weight of `shrinkage` tasks."""
    weights = expected.shares.sum(0)
    mean = np.einsum("tk,tkp->kp", expected.shares, expected.means) / weights[:, None]
    around = expected.means - mean[None]
    second = np.einsum("tk,tkpq->kpq", expected.shares, expected.covariances, optimize=True)
    second += np.einsum("tk,tkp,tkq->kpq", expected.shares, around, around, optimize=True)
    covariance = second / weights[:, None, None]
    diagonal = np.einsum("kpp->kp", covariance)[..., None] * np.eye(covariance.shape[1])
    share = (shrinkage / (weights + shrinkage))[:, None, None]
    covariance = (1 - share) * covariance + share * diagonal
    return Prior(mean, covariance, np.log(weights / weights.sum()), _noise(expected, found))


def _noise(expected: Expectation, found: Statistics) -> np.ndarray:
    """s of each output."""
    num_tasks, features, outputs = found.cross.shape
    means = expected.means.reshape(num_tasks, -1, features, outputs)
    blocks = expected.covariances.reshape(num_tasks, means.shape[1], features, outputs, features, outputs)
    spread = np.einsum("tkfogo->tkfgo", blocks)
    second = spread + np.einsum("tkfo,tkgo->tkfgo", means, means)
    error = np.einsum("tkfgo,tfg->tko", second, found.gram, optimize=True)
    error += found.squares[:, None] - 2 * np.einsum("tkfo,tfo->tko", means, found.cross, optimize=True)
    total = np.einsum("tk,tko->o", expected.shares, error)
    return np.sqrt(np.maximum(total / found.counts.sum(), LEAST_NOISE**2))


def first_prior(found: Statistics, amplitudes: np.ndarray) -> Prior:
    """One cluster: the least-squares weights of all rows, and independent weights around them."""
    features, outputs = found.cross.shape[1:]
    gram = found.gram.sum(0)
    mean = np.linalg.solve(gram + 1e-6 * np.trace(gram) / features * np.eye(features), found.cross.sum(0))
    std = np.repeat(0.5 * amplitudes, outputs)
    return Prior(mean.reshape(1, -1), np.diag(np.square(std))[None], np.zeros(1), np.full(outputs, 0.5))


def fit_em(
    found: Statistics, start: Prior, *, shrinkage: float = 0.0, steps: int = 200, tolerance: float = 1e-5
) -> Prior:
    """EM from initial values until the mean log likelihood of a row gains less than `tolerance` in ten steps."""
    prior, before = start, -np.inf
    for step in range(steps):
        expected = expect(prior, found)
        if step % 10 == 0:
            now = expected.log_marginal.sum() / found.counts.sum()
            if now - before < tolerance:
                break
            before = now
        prior = maximize(expected, found, shrinkage)
    return prior


def split_prior(prior: Prior, found: Statistics, clusters: int, seed: int, shrinkage: float) -> Prior:
    """Initial values of several clusters: k-means of the tasks' weights under one."""
    from sklearn.cluster import KMeans

    expected = expect(prior, found)
    size = np.sqrt(np.maximum(np.diag(prior.covariance[0]), 1e-12))
    once: Any = 1  # the stubs have it as a string
    labels = KMeans(clusters, n_init=once, random_state=seed).fit_predict(expected.means[:, 0] / size)
    shares = 0.05 / clusters + 0.95 * np.eye(clusters)[labels]
    wide = dataclasses.replace(
        expected,
        means=np.repeat(expected.means, clusters, 1),
        covariances=np.repeat(expected.covariances, clusters, 1),
        shares=shares,
    )
    return maximize(wide, found, shrinkage)


def as_mixture(prior: Prior, basis: Basis, y_shift: np.ndarray, y_scale: np.ndarray) -> Mixture:
    """The mixture with these parameters, for `Mixture.posterior`."""
    clusters, outputs = len(prior.mean), len(prior.noise)
    features = prior.mean.shape[1] // outputs
    factor = np.stack([_root(covariance) for covariance in prior.covariance])
    return Mixture(
        basis=basis,
        mean=jnp.asarray(prior.mean.reshape(clusters, features, outputs), float),
        factor=jnp.asarray(factor.reshape(clusters, features, outputs, -1), float),
        logits=jnp.asarray(prior.log_weights, float),
        log_noise=jnp.asarray(np.log(prior.noise), float),
        y_shift=jnp.asarray(y_shift, float),
        y_scale=jnp.asarray(y_scale, float),
    )

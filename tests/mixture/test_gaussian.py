"""The factorisation in single precision against dense double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from metagrove.mixture.gaussian import LOG_2PI, factorize, log_density


def rows(noise, num=15, rank=6, seed=0):
    """B and r as functions with targets up to 25 give them at this noise."""
    rng = np.random.default_rng(seed)
    phi = np.polynomial.chebyshev.chebvander(rng.uniform(-1, 1, num), 12)
    factor = rng.normal(size=(13, rank)) * 5 / np.arange(1, 14)[:, None]
    design = (phi @ factor / noise).astype(np.float32)
    residual = design.astype(float) @ rng.normal(size=rank) + rng.normal(size=num)
    return design, residual.astype(np.float32)


def dense(design, residual):
    covariance = np.eye(len(design)) + design.astype(float) @ design.T.astype(float)
    return multivariate_normal(np.zeros(len(design)), covariance).logpdf(residual) + len(design) * LOG_2PI / 2


@jax.jit
def both(design, residual):
    return log_density(design, residual), factorize(design, residual)


def padded(design, residual, num=20, rank=13):
    """The same problem in arrays of one size, so that all cases are compiled once: rows and columns of 0 are inert."""
    extra = num - len(design), rank - design.shape[1]
    return jnp.pad(jnp.asarray(design), [(0, extra[0]), (0, extra[1])]), jnp.pad(jnp.asarray(residual), (0, extra[0]))


@pytest.mark.parametrize("noise", [1.0, 0.1, 0.01])
@pytest.mark.parametrize(("num", "rank"), [(15, 6), (3, 6), (1, 1), (20, 13)])
def test_equals_double_precision(noise, num, rank):
    design, residual = rows(noise, num, rank)
    want = dense(design, residual)
    value, factors = both(*padded(design, residual))
    assert float(value) == pytest.approx(want, rel=1e-4, abs=0.01)
    big = design.astype(float)
    precision = np.eye(rank) + big.T @ big
    scale = 1 / np.sqrt(np.diag(np.linalg.inv(precision)))  # in posterior standard deviations
    mean = np.linalg.solve(precision, big.T @ residual)
    np.testing.assert_allclose(factors.coordinates[:rank] * scale, mean * scale, atol=0.02)
    inverse = np.asarray(factors.inverse, float)[:rank, :rank]
    np.testing.assert_allclose(inverse @ inverse.T, np.linalg.inv(precision), rtol=1e-2, atol=1e-3)


def test_gradient_equals_the_numerical_one():
    design, residual = rows(0.3, 5, 3)
    by_design, by_residual = jax.jit(jax.grad(log_density, argnums=(0, 1)))(jnp.asarray(design), jnp.asarray(residual))
    step = 1e-5
    for at, got in [*np.ndenumerate(by_design)]:
        change = np.zeros_like(design, float)
        change[at] = step
        want = (dense(design + change, residual) - dense(design - change, residual)) / (2 * step)
        assert float(got) == pytest.approx(want, rel=1e-3, abs=1e-3)
    covariance = np.eye(5) + design.astype(float) @ design.T.astype(float)
    np.testing.assert_allclose(by_residual, -np.linalg.solve(covariance, residual), rtol=1e-3, atol=1e-4)


def test_far_rows_stay_finite_with_finite_gradients():
    design, residual = jnp.full((4, 3), 1e7), jnp.array([1e8, -1e8, 1e8, 0])
    value, grads = jax.jit(jax.value_and_grad(log_density, argnums=(0, 1)))(design, residual)
    assert np.isfinite(value)
    assert all(np.isfinite(grad).all() for grad in grads)

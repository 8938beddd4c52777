"""Tasks of no known cluster: what is said of them, and the cluster that is grown for them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove import Functions
from metagrove.mixture.fit import draw_rows
from metagrove.mixture.grow import fit_prior, grow_mixture, simulate
from metagrove.mixture.novelty import NONE_LOG_ODDS, log_bayes_factor, none_of_these
from metagrove.mixture.prior import Mixture
from metagrove.nets.basis import BasisSettings

LINES, PARABOLAS = Functions(families=("line",)), Functions(families=("parabola",))
SCALE = 5.0


@pytest.fixture(scope="module")
def lines():
    """The prior of lines, a x + b with a and b of standard deviation √3, and a noise of .05."""
    basis = BasisSettings(degree=4)(np.array([[-5.0], [5.0]]), key=jax.random.key(0))
    factor = np.zeros((1, 5, 1, 2))
    factor[0, 0, 0, 0], factor[0, 1, 0, 1] = np.sqrt(3) / SCALE, np.sqrt(3) * 5 / SCALE
    return Mixture(
        basis=basis,
        mean=jnp.zeros((1, 5, 1)),
        factor=jnp.asarray(factor, float),
        logits=jnp.zeros(1),
        log_noise=jnp.full(1, np.log(0.05 / SCALE)),
        y_shift=jnp.zeros(1),
        y_scale=jnp.full(1, SCALE),
    )


def bayes_factors(mixture, source):
    rows = draw_rows(source, jax.random.key(1), 200)
    return np.asarray(jax.jit(jax.vmap(log_bayes_factor, in_axes=(None, 0)))(mixture, rows))


def test_the_bayes_factor_is_that_of_the_definition(lines):
    rows = jax.tree.map(lambda leaf: leaf[0], draw_rows(PARABOLAS, jax.random.key(2), 1))
    phi, y = np.asarray(lines.basis(rows.x), np.float64), np.asarray(rows.y, np.float64)[:, 0] / SCALE

    def log_normal(factor):
        covariance = phi @ factor @ factor.T @ phi.T + 1e-4 * np.eye(len(y))
        return -(y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1]) / 2

    broad, known = np.diag(lines.basis.amplitudes()), np.asarray(lines.factor, np.float64)[0, :, 0]
    expected = log_normal(broad) - log_normal(known)
    assert float(log_bayes_factor(lines, rows)) == pytest.approx(expected, rel=1e-3)
    assert none_of_these(lines).factor.shape == (1, 5, 1, 5)


def test_new_tasks_are_told_from_known_ones(lines):
    assert (bayes_factors(lines, LINES) < NONE_LOG_ODDS).all()
    assert (bayes_factors(lines, PARABOLAS) > NONE_LOG_ODDS).mean() > 0.8


def test_a_grown_cluster_is_the_new_family_and_changes_no_other(lines):
    grown = grow_mixture(
        dataclasses.replace(lines, factor=jnp.pad(lines.factor, [(0, 0)] * 3 + [(0, 1)])),
        PARABOLAS,
        key=jax.random.key(3),
    )
    assert grown.num_clusters == 2
    np.testing.assert_array_equal(grown.factor[0, ..., :2], lines.factor[0])
    assert (bayes_factors(grown, PARABOLAS) > NONE_LOG_ODDS).mean() < 0.02
    rows = draw_rows(LINES, jax.random.key(4), 100)
    p = jax.jit(jax.vmap(lambda one: grown.posterior(one).probabilities))(rows)
    assert float(p[:, 0].mean()) > 0.8  # lines stay where they were, though the new cluster has most of the mass


def test_the_prior_of_simulated_tasks_is_found_again(lines):
    rows = simulate(lines, draw_rows(LINES, jax.random.key(5), 800), key=jax.random.key(6))
    mean, factor = fit_prior(lines, rows)
    covariance = np.einsum("fr,gr->fg", factor[:, 0], factor[:, 0])
    known = np.asarray(lines.factor)[0, :, 0]
    np.testing.assert_allclose(covariance, known @ known.T, atol=0.35)
    np.testing.assert_allclose(mean, 0, atol=0.2)

"""With one cluster and linear features the mixture is statsmodels' MixedLM with random coefficients, on real data."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove.mixture.predictor import predictor_of
from metagrove.mixture.prior import Mixture
from metagrove.nets.basis import LinearBasis
from metagrove.task import unpadded

pytest.importorskip("statsmodels")


@pytest.fixture(scope="module")
def fitted():
    """Grunfeld's investment of eleven firms in twenty years: intercept and slope on a firm's value vary by firm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from statsmodels.datasets import grunfeld
        from statsmodels.regression.mixed_linear_model import MixedLM

        data = grunfeld.load_pandas().data
        x, y = (np.asarray(data[name], float) for name in ("value", "invest"))
        x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
        design = np.column_stack([np.ones_like(x), x])
        firm = np.asarray(data["firm"], str)
        return x, y, firm, MixedLM(y, design, groups=firm, exog_re=design).fit(reml=False, method="powell")


def one_cluster(result) -> Mixture:
    """The mixture with MixedLM's estimates."""
    root = np.linalg.cholesky(np.asarray(result.cov_re))
    one = jnp.ones(1)
    return Mixture(
        basis=LinearBasis(0 * one, one),
        mean=jnp.asarray(result.fe_params, jnp.float32)[None, :, None],
        factor=jnp.asarray(root, jnp.float32)[None, :, None],
        logits=jnp.zeros(1),
        log_noise=jnp.full(1, 0.5 * np.log(result.scale)),
        y_shift=0 * one,
        y_scale=one,
    )


def firms(x, y, firm):
    for name in np.unique(firm):
        here = firm == name
        yield name, unpadded(jnp.asarray(x[here], jnp.float32)[:, None], jnp.asarray(y[here], jnp.float32)[:, None])


def test_likelihood_and_predictions_are_those_of_mixed_lm(fitted):
    x, y, firm, result = fitted
    mixture = one_cluster(result)
    total, predictions = 0.0, np.zeros_like(y)
    for name, rows in firms(x, y, firm):
        posterior = eqx.filter_jit(mixture.posterior)(rows)
        total += float(posterior.log_evidence[0])
        effects = np.asarray(mixture.factor[0, :, 0]) @ np.asarray(posterior.coordinates[0])
        np.testing.assert_allclose(effects, np.asarray(result.random_effects[name]), atol=1e-3)
        predictions[firm == name] = np.asarray(predictor_of(posterior)(rows.x))[:, 0]
    assert total == pytest.approx(result.llf, abs=0.02)
    np.testing.assert_allclose(predictions, np.asarray(result.fittedvalues), atol=2e-3)


def test_its_maximum_likelihood_estimates_are_ours(fitted):
    """At MixedLM's estimates our likelihood has no slope, and near them it has."""
    x, y, firm, result = fitted
    rows = jax.tree.map(lambda *each: jnp.stack(each), *(rows for _, rows in firms(x, y, firm)))

    @eqx.filter_jit
    def slope(mixture):
        grads = eqx.filter_grad(lambda m: jax.vmap(m.log_marginal)(rows).sum())(mixture)
        return jnp.stack([jnp.abs(leaf).max() for leaf in (grads.mean, grads.factor, grads.log_noise)])

    mixture = one_cluster(result)
    assert (slope(mixture) < 0.5).all()
    moved = eqx.tree_at(lambda m: (m.mean, m.log_noise), mixture, replace_fn=lambda leaf: leaf + 0.1)
    assert (slope(moved) > 0.5).all()

"""Features against NumPy and SciPy, and inputs that are easily mishandled."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from metagrove.errors import InputError
from metagrove.nets.basis import BASES, BasisSettings

ROWS = np.random.default_rng(0).uniform(-5, 3, (200, 2)) * [1, 10]
COUNTS = {"linear": 3, "chebyshev": 9, "spline": 11, "learned": 8}


def basis(kind, rows=ROWS):
    return BasisSettings(kind, degree=4, knots=6, hidden=(5,), features=7)(rows, key=jax.random.key(0))


@pytest.mark.parametrize("kind", BASES)
def test_a_constant_first_and_as_many_features_as_said(kind):
    phi = basis(kind)
    assert eqx.filter_eval_shape(basis, kind).num_features == phi.num_features  # as a run is loaded
    features = eqx.filter_jit(phi)(jnp.asarray(ROWS, jnp.float32))
    assert features.shape == (200, COUNTS[kind]) == (200, phi.num_features)
    np.testing.assert_array_equal(features[:, 0], 1)
    assert np.linalg.matrix_rank(np.asarray(features, np.float64)) == COUNTS[kind]


def test_chebyshev_polynomials_are_those_of_numpy_and_stop_at_the_range():
    phi = basis("chebyshev", ROWS[:, :1])
    z = np.linspace(-1, 1, 7)
    low, high = ROWS[:, 0].min(), ROWS[:, 0].max()
    x = jnp.asarray((low + high) / 2 + z * (high - low) / 2, jnp.float32)[:, None]
    np.testing.assert_allclose(phi(x), np.polynomial.chebyshev.chebvander(z, 4), atol=1e-5)
    np.testing.assert_allclose(phi(x[-1:] + 100), phi(x[-1:]), atol=1e-5)


def test_splines_hold_every_natural_cubic_spline_on_their_knots():
    phi = basis("spline", ROWS[:, :1])
    knots = np.asarray(phi.knots[0] * phi.scale + phi.shift, np.float64)
    curve = CubicSpline(knots, np.random.default_rng(1).normal(size=6), bc_type="natural")
    x = np.linspace(knots[0], knots[-1], 60)
    features = np.asarray(phi(jnp.asarray(x, jnp.float32)[:, None]), np.float64)
    weights = np.linalg.lstsq(features, curve(x), rcond=None)[0]
    np.testing.assert_allclose(features @ weights, curve(x), atol=1e-3)
    beyond = np.asarray(phi(jnp.asarray(knots[-1] + np.array([1.0, 2, 3]), jnp.float32)[:, None]), np.float64) @ weights
    assert beyond[2] - beyond[1] == pytest.approx(beyond[1] - beyond[0], abs=1e-3)


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("rows", [np.full((5, 2), 7.0), np.array([[1e6, 0.0]]), np.array([[0.0, 1], [1, 1], [0, 1]])])
def test_inputs_that_do_not_vary_give_finite_features(kind, rows):
    phi = basis(kind, rows)
    x = jnp.asarray(np.concatenate([rows, rows + 1]), jnp.float32)
    features, grads = jax.jit(lambda phi: (phi(x), jax.grad(lambda phi: phi(x).sum())(phi)))(phi)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((features, grads)))


@pytest.mark.parametrize("rows", [np.zeros((0, 1)), np.array([[np.nan]])])
def test_no_row_or_no_number_is_refused(rows):
    with pytest.raises(InputError, match="at least one row of finite inputs"):
        basis("linear", rows)


def test_settings_are_checked():
    errors = BasisSettings(degree=0, knots=2, hidden=(0,), features=0).validation_errors()
    assert [error.split()[0] for error in errors] == ["degree", "knots", "features", "hidden"]
    assert BasisSettings().validation_errors() == []

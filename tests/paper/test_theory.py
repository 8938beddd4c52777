"""The terms of the paper's bounds against closed forms."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS, TINY_NET, hsml

from metagrove import MAML, Functions
from metagrove.paper.theory import bounds
from metagrove.paper.theory.convex import PolynomialBase, measure_convex
from metagrove.paper.theory.curvature import hessian_change, hessian_norm, reverse_hessian_vector, spectral_norm
from metagrove.paper.theory.gates import decompose, flat, out_of_reach
from metagrove.paper.theory.measure import Measurement, measure


def test_the_hessian_norm_of_a_quadratic_is_its_largest_absolute_eigenvalue():
    eigenvalues = np.array([0.3, -2.5, 1.0, 0.0])
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))
    matrix = jnp.asarray(basis * eigenvalues @ basis.T, jnp.float32)
    assert float(spectral_norm(lambda v: matrix @ v, 4)) == pytest.approx(2.5, rel=1e-4)
    assert float(hessian_norm(lambda p: p @ matrix @ p / 2, jnp.ones(4))) == pytest.approx(2.5, rel=1e-4)
    assert float(hessian_norm(lambda p: p.sum(), jnp.ones(4))) == 0  # linear
    backwards = reverse_hessian_vector(lambda p: p @ matrix @ p / 2, jnp.ones(4), jnp.arange(4.0))
    np.testing.assert_allclose(backwards, matrix @ jnp.arange(4.0), rtol=1e-5)


def test_a_cubic_loss_has_a_hessian_that_changes_by_six():
    first, second = jnp.array([1.0, 0.0]), jnp.array([1.5, 0.0])  # the Hessian of x³ is 6x
    assert float(hessian_change(lambda p: p[0] ** 3, first, second)) == pytest.approx(6.0, rel=1e-4)
    assert float(hessian_change(lambda p: p[0] ** 3, first, first)) == 0


def test_terms_of_the_bounds_by_hand():
    risk, n = np.array([0.25]), 16
    assert bounds.theorem1_term(risk, n) == pytest.approx(math.sqrt(0.25 + 0.25))
    assert bounds.convex_term(np.array([2.0]), risk, np.array([0.05]), np.array([3.0]), n) == pytest.approx(
        math.sqrt(2 * 0.2) * 2 / 16 + 2 * 3 * 4 / 16
    )
    assert bounds.step_constant(np.array([2.0]), 1) == pytest.approx(0.5)
    assert bounds.step_constant(np.array([2.0]), 16) == pytest.approx(1 / (4 * (4 * math.log(16)) ** 2))
    assert bounds.step_constant(np.array([0.01]), 3) == pytest.approx(100.0)
    gamma = bounds.gamma_hat(np.array([1.0]), risk)
    assert gamma == pytest.approx(1.5)
    c = np.array([0.5])
    low, high = 0.5 * (1.5 - 0.5), 0.5 * (1.5 + 0.5)  # 16^(-1/4) is 1/2
    expected = (1 + 1 / low) * 0.25 ** (high / (1 + high)) * 16 ** (-1 / (1 + high))
    assert bounds.theorem2_term(risk, gamma, c, n) == pytest.approx(expected)
    assert np.isnan(bounds.theorem2_term(risk, np.array([0.4]), c, n))  # the condition fails


def test_a_sigmoid_gate_reaches_what_shrinks_and_keeps_its_sign():
    params, gradient = jnp.array([1.0, 1.0, 1.0, -1.0, 0.0, 2.0]), jnp.array([0.5, -0.5, 2.0, 0.5, 1.0, 0.0])
    reach = out_of_reach(params, gradient, 1.0)  # moved: .5, 1.5, -1, -1.5, -1, 2
    np.testing.assert_allclose([reach.above, reach.below, reach.unchanged], [2 / 6, 2 / 6, 1 / 6], rtol=1e-6)


def test_the_linear_form_of_a_gate_is_exact_where_gate_and_tanh_are_linear():
    learner = hsml(embed="mean")
    task = Functions().sample(jax.random.key(5))
    meta = learner.init(Functions().spec, key=jax.random.key(3))
    part = decompose(meta, task.support)
    place = meta.cluster(meta.embed(task.support)[0], task.support)
    out = np.concatenate([place.task_embedding, place.root_repr]) @ np.array(meta.gate.layer.weight)
    np.testing.assert_allclose(part.from_task + part.from_root, out, rtol=1e-4, atol=1e-6)

    def shrink(factor):
        def weights(meta):
            return meta.gate.layer.weight, *(level.weight for level in meta.cluster.levels)

        return eqx.tree_at(weights, meta, replace_fn=lambda weight: factor * weight)

    small, tiny = (float(decompose(shrink(factor), task.support).error) for factor in (0.1, 0.01))
    assert tiny < 0.01 * small + 1e-6  # what is left out are terms of third order


def test_measured_quantities_of_a_task_are_those_of_their_definitions():
    source = Functions(shots=4, queries=30)
    learner = dataclasses.replace(LEARNERS["hsml-mean"], net=dataclasses.replace(TINY_NET, softplus=10.0))
    meta = learner.init(source.spec, key=jax.random.key(0))
    maml = MAML(net=learner.net).init(source.spec, key=jax.random.key(1))
    task = source.sample(jax.random.key(2))
    how = Measurement(steps=2, scale=100.0, fresh_hessians=30)
    found = jax.jit(lambda task: measure(learner, meta, maml, how, task))(task)
    predictor, info = learner.adapt(meta, task.support, steps=2)
    start = jax.tree.map(lambda leaf: leaf[0], info.path)

    def risk(net, rows):
        return float(jnp.square(net(rows.x) - rows.y).mean())

    assert float(found.risk) == pytest.approx(risk(start, task.support), rel=1e-4)
    assert float(found.risk_shared) == pytest.approx(risk(meta.net, task.support), rel=1e-4)
    assert float(found.risk_reference) == pytest.approx(risk(maml, task.support), rel=1e-4)
    assert float(found.fresh_adapted_risk) == pytest.approx(risk(predictor, task.query), rel=1e-4)
    params, unravel = jax.flatten_util.ravel_pytree(start)
    hessians = [
        np.linalg.norm(jax.hessian(lambda p, x=x, y=y: jnp.square(unravel(p)(x[None])[0, 0] - y[0]))(params), ord=2)
        for x, y in zip(task.support.x, task.support.y, strict=True)
    ]
    assert float(found.hessian_norm) == pytest.approx(np.mean(hessians), rel=2e-2)
    assert float(found.smoothness) >= np.max(hessians) * 0.98
    assert np.isfinite(float(found.fresh_hessian_norm))
    assert flat(start).shape == params.shape


def test_a_pass_over_a_polynomial_is_stochastic_gradient_descent_by_hand():
    source = Functions(families=("line",), shots=3, queries=50)
    learner = MAML(net=PolynomialBase())
    meta = learner.init(source.spec, key=jax.random.key(0))
    task = source.sample(jax.random.key(1))
    found = measure_convex(learner, meta, meta, task)
    designs = (np.array(task.support.x) / 5) ** np.arange(4)[None]
    c = 1 / (2 * (designs**2).sum(1).max())
    weight = np.array(meta.weight)[:, 0]
    for design, y in zip(designs, np.array(task.support.y)[:, 0], strict=True):
        weight = weight - c / math.sqrt(3) * 2 * (design @ weight - y) * design

    def risk(rows):
        return np.mean((((np.array(rows.x) / 5) ** np.arange(4)[None]) @ weight - np.array(rows.y)[:, 0]) ** 2)

    assert float(found.gap) == pytest.approx(risk(task.query) - risk(task.support), rel=1e-4)
    assert float(found.step) == pytest.approx(c, rel=1e-5)
    assert float(found.least_risk) == pytest.approx(0, abs=1e-8)  # a line is a polynomial
    assert float(found.risk) == float(found.risk_reference)

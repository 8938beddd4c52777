"""LLAMA and PLATIPUS: what they are without their own parts, and their uncertainty against dense posteriors."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TINY_NET
from rival_parts import KEY, SPEC, assert_trees_close, loss_and_grads

from metagrove import LLAMA, MAML, PLATIPUS, Conv4Net, Functions
from metagrove.inner import squared_distance
from metagrove.nets.kfac import kronecker_factors, log_determinant
from metagrove.nets.mlp import MLP
from metagrove.rivals.llama import LaplaceNet
from metagrove.rivals.platipus import kl_divergence
from metagrove.task import Examples, Spec, unpadded


@pytest.fixture(scope="module")
def task():
    return Functions().sample(jax.random.key(1))


# LLAMA


def test_log_determinant_by_kfac_equals_the_dense_matrix_of_two_layers():
    net = MLP((2, 3, 2), 0.7, key=KEY)
    x, mask = jax.random.normal(jax.random.key(1), (4, 2)), jnp.array([True, True, True, False])
    targets = jax.random.normal(jax.random.key(2), (4, 2))
    factors = jax.jit(lambda net: kronecker_factors(net, x, mask, lambda out: -jnp.square(out - targets).sum(1) / 2))(
        net
    )
    rows = np.array(x)[:3]
    weights, biases = [np.array(w) for w in net.weights], [np.array(b) for b in net.biases]
    before = rows @ weights[0] + biases[0]
    hidden = np.maximum(before, 0)
    last = np.array(targets)[:3] - (hidden @ weights[1] + biases[1])  # d log p / d output
    first = (last @ weights[1].T) * (before > 0)
    total = 0.0
    for inputs, slopes, (omega, gamma) in zip((rows, hidden), (first, last), factors, strict=True):
        ones = np.concatenate([inputs, np.ones((3, 1))], axis=1)
        np.testing.assert_allclose(omega, ones.T @ ones / 3, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(gamma, slopes.T @ slopes / 3, rtol=1e-4, atol=1e-6)
        damped = [m + 0.1 * np.eye(len(m)) for m in (np.array(omega), np.array(gamma))]
        total += np.linalg.slogdet(np.kron(*damped))[1]
    assert float(log_determinant(factors, 0.1)) == pytest.approx(total, rel=1e-4)


def test_factors_of_a_convolution_sum_over_positions():
    """One 1×1-pixel image is its own neighbourhood: a is the pixel in the middle, and a 1."""
    net = Conv4Net(filters=2, blocks=1)(Spec((2, 2, 3), 2), key=KEY)
    x = jax.random.uniform(jax.random.key(1), (3, 2, 2, 3))
    (omega, gamma), (head_omega, head_gamma) = jax.jit(
        lambda net: kronecker_factors(net, x, jnp.ones(3, bool), lambda out: out[:, 0])
    )(net)
    assert omega.shape == (28, 28)
    assert gamma.shape == (2, 2)
    assert head_omega.shape == (3, 3)
    assert float(omega[-1, -1]) == pytest.approx(4.0)  # the 1 of the bias, at four positions
    middle = np.square(np.array(x)).sum((1, 2)).mean(0)
    np.testing.assert_allclose(np.diagonal(omega)[12:15], middle, rtol=1e-5)
    p = np.exp(np.array(net(x)))
    np.testing.assert_allclose(head_gamma[0, 0], np.square(1 - p[:, 0]).mean(), rtol=1e-4)


def test_llama_without_curvature_is_maml(task):
    learner, maml = LLAMA(net=TINY_NET, curvature_weight=0.0), MAML(net=TINY_NET)
    meta = eqx.filter_jit(learner.init)(SPEC, key=KEY)
    (loss, grads), (plain, plain_grads) = loss_and_grads(learner, meta, task), loss_and_grads(maml, meta.net, task)
    assert float(loss) == pytest.approx(float(plain), rel=1e-5)
    assert_trees_close(grads.net, plain_grads)
    assert float(grads.log_noise_precision) != 0
    assert float(grads.log_prior_precision) != 0


def test_laplace_variance_equals_the_dense_posterior():
    net = MLP((1, 3, 1), 0.7, key=KEY)
    support = Examples(jnp.array([[1.0], [2.0], [9.0]]), jnp.ones((3, 1)), jnp.array([True, True, False]))
    predictor = LaplaceNet(net, support, jnp.log(jnp.array(0.5)), jnp.log(jnp.array(4.0)))
    x = jnp.array([[0.3], [5.0]])
    rows, new = (np.concatenate([np.array(net.features(one)), np.ones((2, 1))], axis=1) for one in (support.x[:2], x))
    covariance = np.linalg.inv(4 * rows.T @ rows + 0.5 * np.eye(4))
    expected = np.sqrt(np.einsum("ni,ij,nj->n", new, covariance, new) + 1 / 4)
    np.testing.assert_allclose(predictor.std(x)[:, 0], expected, rtol=1e-4)
    np.testing.assert_allclose(predictor(x), net(x), rtol=1e-6)


def test_laplace_of_a_classifier_equals_the_dense_posterior():
    net = MLP((1, 3, 2), 0.7, classifies=True, key=KEY)
    support = unpadded(jnp.array([[1.0], [-2.0]]), jnp.eye(2))
    predictor = LaplaceNet(net, support, jnp.log(jnp.array(0.5)), None)
    x = jnp.array([[0.3], [5.0]])
    rows, new = (np.concatenate([np.array(net.features(one)), np.ones((2, 1))], axis=1) for one in (support.x, x))
    p = np.exp(np.array(net(support.x)))
    gamma = np.mean([np.diag(one) - np.outer(one, one) for one in p], axis=0)
    covariance = np.linalg.inv(np.kron(rows.T @ rows, gamma) + 0.5 * np.eye(8))
    logits = new @ np.concatenate([np.array(net.weights[1]), np.array(net.biases[1])[None]])
    for row, logit, answer, std in zip(new, logits, np.exp(predictor(x)), predictor.std(x), strict=True):
        spread = np.kron(row[None], np.eye(2))
        of_logits = spread @ covariance @ spread.T
        scaled = np.exp(logit / np.sqrt(1 + math.pi / 8 * np.diag(of_logits)))
        np.testing.assert_allclose(answer, scaled / scaled.sum(), rtol=1e-3)
        q = np.exp(logit) / np.exp(logit).sum()
        slope = np.diag(q) - np.outer(q, q)
        np.testing.assert_allclose(std, np.sqrt(np.diag(slope @ of_logits @ slope)), rtol=1e-3)


# PLATIPUS


def test_platipus_without_noise_and_gradient_offsets_is_maml(task):
    settings = {"initial_log_std": -30.0, "initial_rate": 0.0, "kl_weight": 0.0}
    learner, maml = PLATIPUS(net=TINY_NET, samples=2, **settings), MAML(net=TINY_NET)
    meta = eqx.filter_jit(learner.init)(SPEC, key=KEY)
    (loss, grads), (plain, plain_grads) = loss_and_grads(learner, meta, task), loss_and_grads(maml, meta.net, task)
    assert float(loss) == pytest.approx(float(plain), rel=1e-5)
    assert_trees_close(grads.net, plain_grads)
    ours, theirs = (eqx.filter_jit(lambda one, m: one.adapt(m, task.support)[0](task.query.x))(*pair) for pair in (
        (learner, meta), (maml, meta.net)))  # fmt: skip
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_first_order_offsets_change_the_derivative_alone(task):
    learner = PLATIPUS(net=TINY_NET, initial_rate=0.1)
    meta = eqx.filter_jit(learner.init)(SPEC, key=KEY)
    constant = dataclasses.replace(learner, first_order_offsets=True)
    (loss, grads), (same, others) = loss_and_grads(learner, meta, task), loss_and_grads(constant, meta, task)
    assert float(loss) == pytest.approx(float(same), rel=1e-5)
    assert squared_distance(grads.net, others.net) > 1e-4 * optax.tree.norm(grads.net, squared=True)


def test_kl_divergence_by_hand():
    """σ = 2 around 1 against σ = 3 around -1, twice."""
    first, second = {"a": jnp.array([1.0, 1.0])}, {"a": jnp.array([-1.0, -1.0])}
    log = lambda value: {"a": jnp.full(2, math.log(value))}  # noqa: E731
    expected = 2 * (math.log(3 / 2) + (4 + 4) / (2 * 9) - 0.5)
    assert float(kl_divergence(first, log(2), second, log(3))) == pytest.approx(expected, rel=1e-5)

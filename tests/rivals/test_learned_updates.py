"""Meta-learner LSTM and Reptile as published: their update rules, by hand."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY_NET
from rival_parts import KEY, SPEC, assert_trees_close, loss_and_grads

from metagrove import MAML, Functions, MetaLSTM, Reptile
from metagrove.config.config import Training
from metagrove.rivals.meta_lstm import prep
from metagrove.rivals.reptile import draw_batches
from metagrove.task import Examples, join


@pytest.fixture(scope="module")
def task():
    return Functions().sample(jax.random.key(1))


# Meta-learner LSTM


def test_meta_lstm_with_fixed_gates_is_sgd(task):
    rate = 0.003
    learner = MetaLSTM(net=TINY_NET, inner_steps=4, hidden_dim=3)
    meta = eqx.filter_jit(learner.init)(SPEC, key=KEY)
    gates = lambda m: (m.forget.weight, m.forget.bias, m.step.weight, m.step.bias)  # noqa: E731
    fixed = jnp.zeros(5), jnp.asarray(99.0), jnp.zeros(5), jnp.asarray(math.log(rate / (1 - rate)))
    meta = eqx.tree_at(gates, meta, fixed)
    sgd = MAML(net=TINY_NET, inner_lr=rate, inner_steps=4)
    adapt = eqx.filter_jit(lambda one, meta: one.adapt(meta, task.support)[1].path)
    assert_trees_close(adapt(learner, meta), adapt(sgd, meta.net))


def test_prep_by_hand():
    values = jnp.array([math.exp(-5), -math.exp(-5), 0.0, 1e-6, -1.0])
    expected = [[-0.5, 1], [-0.5, -1], [-1, 0], [-1, 1e-6 * math.exp(10)], [0, -1]]
    np.testing.assert_allclose(prep(values), expected, rtol=1e-5, atol=1e-7)
    assert np.isfinite(jax.grad(lambda x: prep(x).sum())(values)).all()


# Reptile as published


def test_reptile_with_one_update_is_joint_training(task):
    """The meta-gradient of one SGD step is the gradient of the loss on all examples, times the learning rate."""
    learner = Reptile(net=TINY_NET, inner_lr=0.01, inner_steps=1)
    meta = eqx.filter_jit(learner.init)(SPEC, key=KEY)
    both = join(task.support, task.query)
    _, grads = loss_and_grads(learner, meta, task)
    expected = jax.grad(lambda net: learner.loss(net(both.x), both.y, both.mask))(meta)
    assert_trees_close(grads, jax.tree.map(lambda leaf: 0.01 * leaf, expected))


def test_minibatches_use_every_row_once_before_any_twice():
    examples = Examples(jnp.arange(7.0)[:, None], jnp.zeros((7, 1)), jnp.array([1, 1, 0, 1, 1, 1, 0], bool))
    rows = np.array(draw_batches(examples, 5, 2, jax.random.key(3))).reshape(-1)
    assert sorted(rows[:5]) == sorted(rows[5:]) == [0, 1, 3, 4, 5]
    assert list(rows[:5]) != list(rows[5:])


def test_lasting_adam_by_hand(task):
    """The first update of a fresh Adam is α sign(g); its second moments are part of what the outer step moves."""
    learner = Reptile(net=TINY_NET, inner_lr=0.01, inner_steps=1, inner_rule="adam")
    meta = eqx.filter_jit(learner.init)(SPEC, key=KEY)
    both = join(task.support, task.query)
    gradient = jax.grad(lambda net: learner.loss(net(both.x), both.y, both.mask))(meta.net)
    _, grads = loss_and_grads(learner, meta, task)
    last = gradient.biases[-1]
    np.testing.assert_allclose(grads.net.biases[-1], 0.01 * np.sign(last), rtol=1e-3)
    np.testing.assert_allclose(grads.moments.squares.biases[-1], -0.001 * np.square(last), rtol=1e-3)
    assert float(grads.moments.weight) == pytest.approx(-0.001, rel=1e-3)


def test_the_plain_outer_step_moves_towards_the_adapted_parameters():
    """θ ← θ + β (mean θᵏ - θ), with β from 1 linearly to 0."""
    training = Training(outer_rule="sgd", outer_lr=1.0, schedule="linear", steps=4)
    optimizer, params, found = training.optimizer(), {"w": jnp.zeros(1)}, []
    state = optimizer.init(params)
    for _ in range(4):
        updates, state = optimizer.update({"w": jnp.ones(1)}, state, params)
        found.append(float(updates["w"][0]))
    np.testing.assert_allclose(found, [-1, -0.75, -0.5, -0.25], rtol=1e-6)

"""The inner loop on a problem whose path and meta-gradient have a closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metagrove.inner import adapt_net, clipped, descend, trainable_mask
from metagrove.losses import mse
from metagrove.nets.mlp import MLP
from metagrove.task import unpadded


def half_square(target):
    return lambda theta: 0.5 * jnp.square(theta - target).sum()


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_path_of_a_quadratic_is_a_geometric_sequence(steps):
    start, target, rate = jnp.array([3.0, -1.0]), jnp.array([1.0, 2.0]), 0.1
    last, path = descend(half_square(target), start, optax.sgd(rate), steps)
    expected = np.array(target) + (1 - rate) ** np.arange(steps + 1)[:, None] * np.array(start - target)
    np.testing.assert_allclose(path, expected, rtol=1e-5)
    np.testing.assert_array_equal(last, path[-1])


@pytest.mark.parametrize("first_order", [True, False])
def test_meta_gradient_of_a_quadratic(first_order):
    """θ_T - a = (1-α)^T (θ-a): second order has a factor (1-α)^T more than first order."""
    target, query_target, rate, steps = jnp.array([1.0, 2.0]), jnp.array([0.0, 1.0]), 0.1, 4

    def query_loss(start):
        last, _ = descend(half_square(target), start, optax.sgd(rate), steps, first_order=first_order)
        return half_square(query_target)(last)

    start = jnp.array([3.0, -1.0])
    last = np.array(target) + (1 - rate) ** steps * np.array(start - target)
    factor = 1.0 if first_order else (1 - rate) ** steps
    np.testing.assert_allclose(jax.grad(query_loss)(start), factor * (last - np.array(query_target)), rtol=1e-5)


def test_meta_gradient_equals_finite_differences():
    with jax.enable_x64(True):
        start = jnp.array([0.3, -0.7])

        def query_loss(theta):
            last, _ = descend(lambda t: jnp.sin(t[0] * 3) * t[1] + (t**4).sum(), theta, optax.sgd(0.05), 3)
            return jnp.cos(last).sum()

        eps = 1e-6
        numeric = [(query_loss(start.at[i].add(eps)) - query_loss(start.at[i].add(-eps))) / (2 * eps) for i in range(2)]
        np.testing.assert_allclose(jax.grad(query_loss)(start), np.array(numeric), rtol=1e-7)


def test_three_second_derivatives_are_exact_too():
    """Differentiable to any order: d²/dθ² of the adapted quadratic's query loss is (1-α)^{2T}."""

    def query_loss(theta):
        last, _ = descend(lambda t: 0.5 * (t - 2.0) ** 2, theta, optax.sgd(0.2), 3)
        return 0.5 * last**2

    assert jax.grad(jax.grad(query_loss))(1.0) == pytest.approx((1 - 0.2) ** 6, rel=1e-5)


def test_recomputed_steps_have_the_same_meta_gradient_in_less_memory():
    x, y = jnp.linspace(-1, 1, 200)[:, None], jnp.linspace(0, 2, 200)[:, None]
    net = MLP((1, 16, 1), 0.3, key=jax.random.key(0))

    def compiled(recompute):
        def query_loss(net):
            last, _ = adapt_net(net, unpadded(x, y), mse, optax.sgd(0.1), 20, recompute=recompute)
            return mse(last(-x), y, jnp.ones(200, bool))

        return jax.jit(jax.grad(query_loss)).lower(net).compile()

    kept, recomputed = compiled(False), compiled(True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), kept(net), recomputed(net))
    memory = [program.memory_analysis().temp_size_in_bytes for program in (kept, recomputed)]
    assert memory[1] < memory[0] / 3


def test_clipping_keeps_each_number_of_the_gradient_small():
    start, target = jnp.array([3.0, 1.2]), jnp.array([0.0, 1.0])
    last, _ = descend(half_square(target), start, clipped(optax.sgd(0.1), 1.0), 1)
    np.testing.assert_allclose(last, [3.0 - 0.1 * 1.0, 1.2 - 0.1 * 0.2], rtol=1e-6)


def test_many_updates_may_count_as_one_step():
    start, rule = jnp.array([3.0, -1.0]), optax.adam(0.1)
    _, every = descend(half_square(jnp.zeros(2)), start, rule, 6)
    _, third = descend(half_square(jnp.zeros(2)), start, rule, 2, updates_per_step=3)
    np.testing.assert_allclose(third, every[::3], rtol=1e-5)


def test_what_is_not_to_adapt_stays_along_the_path():
    net = MLP((1, 3, 1), 0.3, key=jax.random.key(0))
    support = unpadded(jnp.array([[1.0], [2.0]]), jnp.array([[3.0], [-1.0]]))
    adapted, path = adapt_net(net, support, mse, optax.sgd(0.1), 2, adapts=trainable_mask(net, lambda n: n.head))
    for index, moved in ((0, False), (1, True)):
        assert (not np.array_equal(adapted.weights[index], net.weights[index])) == moved
        assert path.weights[index].shape == (3, *net.weights[index].shape)
        np.testing.assert_array_equal(path.weights[index][0], net.weights[index])
        np.testing.assert_array_equal(path.weights[index][-1], adapted.weights[index])

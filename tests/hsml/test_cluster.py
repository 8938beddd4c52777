"""The hierarchy against plain loops written from eqs. (6)-(7)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metagrove.errors import InputError
from metagrove.hsml.cluster import Hierarchy

TUPLES = [(4, 2, 1), (2, 2, 1), (6, 3, 1), (8, 4, 2, 1), (8, 4, 4, 1), (10, 2, 1), (5, 1), (1,)]


def hierarchy(clusters=(4, 2, 1), dim=3, scales=(1.5, 0.7), seed=0, **options):
    return Hierarchy(clusters, dim, scales, key=jax.random.key(seed), **options)


def oracle(h: Hierarchy, embedding: np.ndarray):
    """Loops over clusters, nothing shared with the implementation."""
    reprs, assignments = [embedding], []
    for level in h.levels:
        count = len(level.weight)
        p = np.ones((len(reprs), count))
        if level.centers is not None:
            for k, repr_ in enumerate(reprs):
                scores = [np.exp(-np.sum(((repr_ - c) / level.scale) ** 2) / 2) for c in np.array(level.centers)]
                p[k] = np.array(scores) / np.sum(scores)
        new = []
        for to in range(count):
            total = np.zeros_like(embedding)
            for k, repr_ in enumerate(reprs):
                total = total + p[k, to] * np.tanh(np.array(level.weight[to]) @ repr_ + np.array(level.bias[to]))
            new.append(total)
        reprs = new
        assignments.append(p)
    return reprs[0], assignments


@pytest.mark.parametrize("clusters", TUPLES)
def test_equals_the_loops(clusters):
    h = hierarchy(clusters)
    h = jax.tree.map(lambda leaf: leaf + 0.1, h)  # biases off zero
    embedding = np.array([0.4, -1.2, 0.9], np.float32)
    root, assignments = h(jnp.asarray(embedding))
    expected_root, expected = oracle(h, embedding)
    np.testing.assert_allclose(root, expected_root, rtol=2e-5, atol=1e-6)
    assert [a.shape for a in assignments] == [e.shape for e in expected]
    for got, want in zip(assignments, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))
def test_rows_sum_to_one(embedding):
    _, assignments = hierarchy()(jnp.array(embedding, jnp.float32))
    for assignment in assignments:
        np.testing.assert_allclose(assignment.sum(1), 1, rtol=1e-5)


def test_equidistant_centers_share_equally():
    level = hierarchy((4, 1)).levels[0]
    around = eqx.tree_at(lambda one: one.centers, level, jnp.array([[2.0, 0, 0], [0, 2, 0], [0, 0, -2], [0, -2, 0]]))
    np.testing.assert_allclose(around.assign(jnp.zeros((1, 3))), np.full((1, 4), 0.25))
    assert not np.allclose(level.assign(jnp.zeros((1, 3))), 0.25)  # the centres that were drawn do not


def test_a_small_scale_takes_the_nearest():
    h = hierarchy((4, 1), scales=(1e-3,))
    embedding = jnp.array([0.3, 0.1, -0.2])
    nearest = int(jnp.square(h.levels[0].centers - embedding[None]).sum(1).argmin())
    assert h(embedding)[1][0][0, nearest] == pytest.approx(1.0)


def test_permuting_clusters_permutes_the_shares_and_leaves_the_root():
    h = hierarchy((4, 2, 1))
    order = jnp.array([2, 0, 3, 1])
    shuffled = eqx.tree_at(lambda h: h.levels[0], h, jax.tree.map(lambda leaf: leaf[order], h.levels[0]))
    embedding = jnp.array([0.3, 0.1, -0.2])
    root, assignments = h(embedding)
    other_root, other = shuffled(embedding)
    np.testing.assert_allclose(other_root, root, rtol=1e-5)
    np.testing.assert_allclose(other[0], assignments[0][:, order], rtol=1e-6)
    np.testing.assert_allclose(other[1], assignments[1][order], rtol=1e-6)


def test_far_away_stays_finite_with_finite_gradients():
    h = hierarchy()
    far = jnp.full(3, 1e4)
    root, assignments = h(far)
    grads = jax.grad(lambda h: h(far)[0].sum())(h)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((root, assignments, grads)))


def test_learned_scales_get_a_gradient_and_start_at_the_given_ones():
    fixed, learned = hierarchy(), hierarchy(learn_scales=True)
    embedding = jnp.array([0.4, -1.2, 0.9])
    np.testing.assert_allclose(learned(embedding)[0], fixed(embedding)[0], rtol=1e-6)
    grads = jax.grad(lambda h: h(embedding)[0].sum())(learned)
    assert [level.log_scale is None for level in grads.levels] == [False, False, True]
    assert all(float(jnp.abs(level.log_scale)) > 0 for level in grads.levels[:2])


@pytest.mark.parametrize("clusters", [(), (4, 2), (4, 0, 1), (1, 2)])
def test_a_tuple_that_is_no_hierarchy_is_refused(clusters):
    with pytest.raises(InputError, match="ending in 1"):
        hierarchy(clusters)

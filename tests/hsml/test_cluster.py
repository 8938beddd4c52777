"""The hierarchy against plain loops written from eqs. (6)-(7)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metagrove.errors import InputError
from metagrove.hsml.cluster import DistanceClusters, Hierarchy
from metagrove.task import Spec, unpadded

TUPLES = [(4, 2, 1), (2, 2, 1), (6, 3, 1), (8, 4, 2, 1), (8, 4, 4, 1), (10, 2, 1), (5, 1), (1,)]


def hierarchy(clusters=(4, 2, 1), dim=3, scales=(1.5, 0.7), seed=0):
    return eqx.filter_jit(DistanceClusters(clusters, scales))(dim, spec=Spec((1,), 1), key=jax.random.key(seed))


NO_ROWS = unpadded(jnp.zeros((0, 1)), jnp.zeros((0, 1)))


def place(h, embedding, assignment=None):
    """h^L and the assignments."""
    placement = h(embedding, NO_ROWS, assignment)
    return placement.root_repr, placement.assignments


placed = eqx.filter_jit(place)


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
    root, assignments = placed(h, jnp.asarray(embedding))
    expected_root, expected = oracle(h, embedding)
    np.testing.assert_allclose(root, expected_root, rtol=2e-5, atol=1e-6)
    assert [a.shape for a in assignments] == [e.shape for e in expected]
    for got, want in zip(assignments, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))
def test_rows_sum_to_one(embedding):
    _, assignments = placed(hierarchy(), np.array(embedding, np.float32))
    for assignment in assignments:
        np.testing.assert_allclose(np.asarray(assignment).sum(1), 1, rtol=1e-5)


def test_equidistant_centers_share_equally():
    level = hierarchy((4, 1)).levels[0]
    around = eqx.tree_at(lambda one: one.centers, level, jnp.array([[2.0, 0, 0], [0, 2, 0], [0, 0, -2], [0, -2, 0]]))
    np.testing.assert_allclose(around.assign(jnp.zeros((1, 3))), np.full((1, 4), 0.25))
    assert not np.allclose(level.assign(jnp.zeros((1, 3))), 0.25)  # the centres that were drawn do not


def test_a_small_scale_takes_the_nearest():
    h = hierarchy((4, 1), scales=(1e-3,))
    embedding = jnp.array([0.3, 0.1, -0.2])
    nearest = int(jnp.square(h.levels[0].centers - embedding[None]).sum(1).argmin())
    assert placed(h, embedding)[1][0][0, nearest] == pytest.approx(1.0)


def test_permuting_clusters_permutes_the_shares_and_leaves_the_root():
    h = hierarchy((4, 2, 1))
    order = jnp.array([2, 0, 3, 1])
    shuffled = eqx.tree_at(lambda h: h.levels[0], h, jax.tree.map(lambda leaf: leaf[order], h.levels[0]))
    embedding = jnp.array([0.3, 0.1, -0.2])
    root, assignments = placed(h, embedding)
    other_root, other = placed(shuffled, embedding)
    np.testing.assert_allclose(other_root, root, rtol=1e-5)
    np.testing.assert_allclose(other[0], assignments[0][:, order], rtol=1e-6)
    np.testing.assert_allclose(other[1], assignments[1][order], rtol=1e-6)


def test_far_away_stays_finite_with_finite_gradients():
    h = hierarchy()
    far = jnp.full(3, 1e4)
    root, assignments = placed(h, far)
    grads = jax.jit(jax.grad(lambda h: place(h, far)[0].sum()))(h)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((root, assignments, grads)))


def test_a_given_assignment_replaces_the_first_level():
    h, embedding = hierarchy((3, 2, 1)), jnp.array([0.4, -1.2, 0.9])
    root, assignments = place(h, embedding)
    same_root, same = place(h, embedding, assignments[0][0])
    np.testing.assert_array_equal(root, same_root)
    jax.tree.map(np.testing.assert_array_equal, assignments, same)
    given = jnp.array([0.0, 1.0, 0.0])
    other_root, other = place(h, embedding, given)
    np.testing.assert_array_equal(other[0], given[None])
    first = np.tanh(np.array(h.levels[0].weight[1]) @ np.array(embedding) + np.array(h.levels[0].bias[1]))
    second = h.levels[1].assign(jnp.asarray(np.stack([0 * first, first, 0 * first])))
    np.testing.assert_allclose(other[1], second, rtol=1e-5)
    assert not np.allclose(other_root, root)


@pytest.mark.parametrize("clusters", [(), (4, 2), (4, 0, 1), (1, 2)])
def test_a_tuple_that_is_no_hierarchy_is_refused(clusters):
    with pytest.raises(InputError, match="ending in 1"):
        hierarchy(clusters)

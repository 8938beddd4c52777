"""Pruning and merging on mixtures whose structure is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove.errors import InputError
from metagrove.mixture.prior import Mixture
from metagrove.mixture.tree import Tree, level_assignments, merge_clusters, prune
from metagrove.nets.basis import LinearBasis
from metagrove.task import Examples

MEANS = np.array([-10.0, -9, 9, 10, 1000])


def lines_around(means, logits=None):
    """Clusters of nearly constant functions."""
    means = jnp.asarray(means, jnp.float32)
    factor = jnp.zeros((len(means), 2, 1, 1)).at[:, 0].set(0.5)
    logits = jnp.zeros(len(means)) if logits is None else jnp.asarray(logits)
    mean = jnp.zeros((len(means), 2, 1)).at[:, 0, 0].set(means)
    one = jnp.ones(1)
    return Mixture(LinearBasis(0 * one, one), mean, factor, logits, jnp.log(0.3 * one), 0 * one, one)


def tasks_around(means, each=20):
    rng = np.random.default_rng(0)
    level = np.repeat(means, each) + 0.5 * rng.normal(size=each * len(means))
    x = rng.normal(size=(len(level), 4, 1))
    y = level[:, None, None] + 0.3 * rng.normal(size=x.shape)
    return Examples(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), jnp.ones(x.shape[:2], bool))


@pytest.fixture(scope="module")
def tree() -> Tree:
    return merge_clusters(lines_around(MEANS), tasks_around(MEANS))


def test_near_clusters_merge_first(tree):
    pairs = [set(pair) for pair in tree.children.tolist()]
    assert {frozenset(pair) for pair in pairs[:2]} == {frozenset({0, 1}), frozenset({2, 3})}
    assert pairs[2] == {5, 6}
    assert pairs[3] == {4, 7}
    assert (np.diff(tree.loss) > -1e-6).all()


def test_every_node_has_the_moments_of_its_leaves(tree):
    mean = np.asarray(tree.nodes.mean)[:, 0, 0]
    variance = np.square(np.asarray(tree.nodes.factor))[:, 0].sum((1, 2))
    below = tree.ancestry()
    for node in range(9):
        leaves = MEANS[below[:, node] > 0]
        assert mean[node] == pytest.approx(leaves.mean(), abs=1e-3)
        assert variance[node] == pytest.approx(0.25 + leaves.var(), rel=1e-3)
    np.testing.assert_allclose(np.exp(tree.nodes.logits), below.sum(0) / 5, rtol=1e-5)


def test_levels_have_hard_links_and_rows_that_sum_to_one(tree):
    p = jnp.array([0.1, 0.2, 0.3, 0.15, 0.25])
    assignments = level_assignments(p, tree.links((3, 2, 1)))
    assert [a.shape for a in assignments] == [(1, 5), (5, 3), (3, 2), (2, 1)]
    for assignment in assignments:
        np.testing.assert_allclose(assignment.sum(1), 1, rtol=1e-6)
    masses = assignments[0] @ assignments[1]
    np.testing.assert_allclose(masses[0], [0.3, 0.45, 0.25], rtol=1e-6)
    np.testing.assert_allclose(masses @ assignments[2], [[0.75, 0.25]], rtol=1e-6)
    np.testing.assert_allclose((p @ jnp.asarray(tree.ancestry(), jnp.float32))[-1], 1, rtol=1e-6)


def test_more_nodes_than_leaves_are_the_leaves(tree):
    assert tree.cut(9) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(tree.links((8, 1))[0], np.eye(5))


@pytest.mark.parametrize("levels", [(2, 3), (0,)])
def test_levels_that_are_no_tree_are_refused(tree, levels):
    with pytest.raises(InputError, match="level"):
        tree.links(levels)


def test_clusters_that_no_task_needs_are_pruned():
    mixture = lines_around([-10, 10, 10.0, 300], logits=[0, 0, -6.0, -6.0])
    kept = prune(mixture, tasks_around([-10.0, 10]))
    np.testing.assert_allclose(kept.mean[:, 0, 0], [-10, 10])
    assert kept.factor.shape[0] == kept.logits.shape[0] == 2


def test_one_cluster_is_a_tree():
    mixture = lines_around([3.0])
    rows = tasks_around([3.0, -1])
    assert prune(mixture, rows).num_clusters == 1
    tree = merge_clusters(mixture, rows)
    assert tree.children.shape == (0, 2)
    np.testing.assert_array_equal(tree.links((1,))[0], [[1.0]])
    assert dataclasses.replace(tree).num_leaves == 1


def test_a_merged_prior_keeps_the_largest_directions():
    rng = np.random.default_rng(3)
    basis = LinearBasis(jnp.zeros(20), jnp.ones(20))
    shape = (2, 21, 1)
    factor = jnp.asarray(rng.normal(size=(*shape, 12)), jnp.float32)
    mean = jnp.zeros(shape)
    mixture = Mixture(basis, mean, factor, jnp.zeros(2), jnp.zeros(1), jnp.zeros(1), jnp.ones(1))
    rows = Examples(jnp.zeros((1, 2, 20)), jnp.zeros((1, 2, 1)), jnp.ones((1, 2), bool))
    merged = np.asarray(merge_clusters(mixture, rows).nodes.factor[2, :, 0], np.float64)
    flat = np.asarray(factor[..., 0, :], np.float64)
    covariance = (flat[0] @ flat[0].T + flat[1] @ flat[1].T) / 2
    best = np.sort(np.linalg.eigvalsh(covariance))[::-1][:16]
    np.testing.assert_allclose(np.sort(np.linalg.eigvalsh(merged @ merged.T))[::-1][:16], best, rtol=1e-4)
    assert merged.shape[1] == 16
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(merged))

"""Does the tree matter? On runs whose answer is known."""

import dataclasses
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS, TINY

from metagrove import Run
from metagrove.evaluation.agreement import level_shares
from metagrove.evaluation.hierarchy import in_words, measure_hierarchy
from metagrove.evaluation.shapes import SHAPES, shape_classes

X = np.linspace(-5, 5, 101)


@pytest.mark.parametrize(
    ("curve", "shape"),
    [
        (2 * X - 1, "rising"),
        (-0.01 * X, "falling"),
        ((X - 1) ** 2, "arc"),
        (-((X - 1) ** 2), "arc"),
        ((X - 4.8) ** 2, "falling"),  # turns, but by less than a twentieth of its range
        (np.sin(X), "wave"),
        (0.1 * X**3 - X, "wave"),
        (0.1 * X**3 + X, "rising"),
    ],
)
def test_the_shape_of_a_curve(curve, shape):
    assert SHAPES[shape_classes(curve[None])[0]] == shape


def test_shares_of_levels_multiply_up():
    first, second = np.array([[[0.25, 0.75]]]), np.array([[[1.0, 0.0], [0.5, 0.5]]])
    shares = level_shares([first, second, np.ones((1, 2, 1))])
    np.testing.assert_allclose(np.concatenate(shares, axis=1), [[0.25, 0.75, 0.625, 0.375, 1.0]])


def a_run(learner, meta):
    """A run that was never trained."""
    return Run(Path("run"), dataclasses.replace(TINY, learner=learner), meta, {"validation": {"steps": 0}})


@pytest.fixture(scope="module")
def untrained():
    learner = LEARNERS["hsml-gru"]
    return a_run(learner, learner.init(TINY.source.spec, key=jax.random.key(0)))


def test_a_gate_that_ignores_the_root_makes_the_clusters_idle(untrained):
    gate_layer = untrained.meta.gate.layer
    from_root = jnp.arange(gate_layer.weight.shape[0])[:, None] >= untrained.config.learner.embed.task_dim
    weight = jnp.where(from_root, 0, gate_layer.weight)
    deaf = eqx.tree_at(lambda meta: meta.gate.layer.weight, untrained.meta, weight)
    found = measure_hierarchy(dataclasses.replace(untrained, meta=deaf), num_tasks=30)
    assert found.shuffled_minus_own.difference == pytest.approx(0, abs=1e-6)
    assert found.node_share == pytest.approx(0, abs=1e-10)
    assert not found.matters
    assert "the clusters do not matter here" in in_words(found, "mse")
    assert 1 <= found.effective_clusters <= 3
    assert [one.nodes for one in found.levels] == [3, 2]
    assert sum(map(len, found.families_by_parent.values())) == 4


def test_a_gate_that_reads_the_assignment_alone_is_all_nodes(untrained):
    learner = dataclasses.replace(
        untrained.config.learner,
        gate=dataclasses.replace(untrained.config.learner.gate, gate_inputs=("assignment",), gate_form="affine"),
    )
    meta = learner.init(TINY.source.spec, key=jax.random.key(0))
    around = 1000 * jnp.array([[1.0, 0, 0, 0, 0, 0], [-1.0, 0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0, 0]])
    apart = eqx.tree_at(lambda m: m.cluster.levels[0].centers, meta, around)
    loud = eqx.tree_at(lambda m: m.gate.layer.weight, apart, replace_fn=lambda w: 10 * w)
    found = measure_hierarchy(a_run(learner, loud), num_tasks=30)
    assert found.node_share == pytest.approx(1, abs=1e-4)
    assert found.shuffled_minus_own.difference != 0
    assert found.largest_share > 0.9


def test_without_clusters_there_is_nothing_to_measure(untrained):
    maml = LEARNERS["maml"]
    assert measure_hierarchy(a_run(maml, maml.init(TINY.source.spec, key=jax.random.key(0)))) is None

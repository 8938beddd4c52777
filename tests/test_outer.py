"""The meta-gradient in groups, and the probe."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS

from metagrove import Functions, outer
from metagrove.outer import Cut, family_of, map_drawn, meta_gradient, probe, task_keys, whole_task


@pytest.mark.parametrize("in_flight", [1, 4, 5, 8])
def test_blocks_give_the_same_gradient(in_flight):
    learner = LEARNERS["maml"]
    meta = learner.init(Functions().spec, key=jax.random.key(0))
    tasks = jax.vmap(Functions().sample)(jax.random.split(jax.random.key(1), 12))
    gradient = eqx.filter_jit(meta_gradient)
    whole = gradient(learner, meta, tasks, key=jax.random.key(2))
    parts = gradient(learner, meta, tasks, key=jax.random.key(2), task_chunk_size=in_flight)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), whole, parts)


def test_blocks_are_equal_and_small_enough():
    cases = [(25, 400), (1600, 400), (25, 24), (7, 3), (12, 5), (25, 400, 4), (4, 1, 2), (3, 400, 8)]
    cuts = [Cut.of(*case) for case in cases]
    assert [(cut.blocks, cut.size) for cut in cuts] == [
        (1, 25),
        (4, 400),
        (2, 13),
        (3, 3),
        (3, 4),
        (4, 7),
        (4, 1),
        (3, 1),
    ]


def test_blocks_add_up_to_the_mean_without_what_fills_them_up():
    cut, values = Cut.of(25, task_blocks=4), np.arange(25.0)
    parts = [cut.mean(cut.block(jnp.asarray(values), i), i) for i in range(cut.blocks)]
    assert cut.fills_up
    assert float(sum(parts)) == pytest.approx(values.mean())


def keep_prediction(task, predictor, info):
    return predictor(task.query.x)[:, 0], task.family, info.path.weights[0].shape[0] * jnp.ones(())


def test_the_probe_is_a_loop_over_tasks(monkeypatch):
    """In batches of three, the last of them filled up, worked on two at a time."""
    monkeypatch.setattr(outer, "BATCH", 3)
    learner, tasks, keys = LEARNERS["maml"], Functions(), task_keys(jax.random.key(1), 7)
    meta = learner.init(tasks.spec, key=jax.random.key(0))
    found = probe(learner, meta, tasks, keys, keep_prediction, steps=3, task_chunk_size=2)
    predictions, families, path_lengths = found
    assert predictions.shape == (7, 10)
    assert path_lengths.tolist() == [4.0] * 7
    for i, key in enumerate(keys):
        task = tasks.sample(key)
        predictor, _ = learner.adapt(meta, task.support, steps=3)
        np.testing.assert_allclose(predictions[i], predictor(task.query.x)[:, 0], rtol=1e-4, atol=1e-5)
        assert families[i] == task.family


def test_a_tasks_key_depends_on_its_number_alone():
    key = jax.random.key(5)
    few, many = task_keys(key, 3), task_keys(key, 9)
    assert (few == many[:3]).all()
    assert many[4] == jax.random.fold_in(key, 4)


def test_tasks_are_drawn_without_a_learner():
    keys = task_keys(jax.random.key(2), 5)
    drawn, families = (map_drawn(fn, Functions(), keys) for fn in (whole_task, family_of))
    np.testing.assert_array_equal(drawn.family, families)
    np.testing.assert_array_equal(drawn.support.x[3], Functions().sample(keys[3]).support.x)


def test_the_probe_compiles_once_for_meta_parameters_of_one_shape():
    traces, learner, keys = [], LEARNERS["maml"], task_keys(jax.random.key(1), 4)

    def counted(task, predictor, info):
        traces.append(task)
        return task.family

    for seed in range(3):
        meta = learner.init(Functions().spec, key=jax.random.key(seed))
        probe(learner, meta, Functions(), keys, counted)
    assert len(traces) == 1

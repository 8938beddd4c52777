"""One table: every learner through the same checks. Few compiled functions serve them all."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS

from metagrove import Functions, Scratch, Spec
from metagrove.config.config import Config, Training
from metagrove.losses import mse
from metagrove.outer import meta_gradient
from metagrove.task import Examples, unpadded
from metagrove.training.block import run_block
from metagrove.training.phases import init_state
from metagrove.training.scores import after_each_step

SOURCE = Functions(min_shots=2)


@eqx.filter_jit
def adapt_and_score(learner, meta, task, steps):
    predictor, info = learner.adapt(meta, task.support, steps=steps)
    return predictor(task.query.x), after_each_step(info.path, task.query, mse)


@eqx.filter_jit
def loss_and_grads(learner, meta, task, key):
    return eqx.filter_value_and_grad(lambda meta: learner.meta_loss(meta, task, key=key)[0])(meta)


@pytest.fixture(scope="module")
def start():
    """Each learner's first `meta`, drawn once."""
    drawn = {}

    def get(learner):
        if learner not in drawn:
            drawn[learner] = eqx.filter_jit(learner.init)(SOURCE.spec, key=jax.random.key(0))
        return drawn[learner]

    return get


def some_tasks(count=3):
    return jax.vmap(SOURCE.sample)(jax.random.split(jax.random.key(7), count))


def test_contract(learner, start):
    meta, task = start(learner), SOURCE.sample(jax.random.key(1))
    prediction, path = adapt_and_score(learner, meta, task, None)
    assert prediction.shape == task.query.y.shape
    assert path.shape == (learner.inner_steps + 1,)
    np.testing.assert_allclose(path[-1], mse(prediction, task.query.y, task.query.mask), rtol=1e-4)
    assert hash(learner) == hash(dataclasses.replace(learner))
    assert learner.validation_errors() == []


def test_number_of_inner_steps_is_free_at_test_and_nothing_is_random(learner, start):
    if learner.inner_steps == 0:
        pytest.skip("has no inner loop")
    meta, task = start(learner), SOURCE.sample(jax.random.key(1))
    _, trained = adapt_and_score(learner, meta, task, None)
    _, longer = adapt_and_score(learner, meta, task, learner.inner_steps + 2)
    assert len(longer) == len(trained) + 2
    np.testing.assert_allclose(longer[: len(trained)], trained, rtol=1e-4)
    np.testing.assert_array_equal(adapt_and_score(learner, meta, task, None)[1], trained)


def test_order_of_rows_does_not_matter_at_test(learner, start):
    meta, task = start(learner), SOURCE.sample(jax.random.key(1))
    backwards = dataclasses.replace(task, support=jax.tree.map(lambda rows: rows[::-1], task.support))
    first, second = (adapt_and_score(learner, meta, one, None)[0] for one in (task, backwards))
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["maml", "hsml-mean", "bmaml", "mt-net"])
def test_jit_equals_eager(name, start):
    learner = LEARNERS[name]
    meta, task = start(learner), SOURCE.sample(jax.random.key(1))
    predictor, _ = learner.adapt(meta, task.support)
    prediction, _ = adapt_and_score(learner, meta, task, None)
    np.testing.assert_allclose(predictor(task.query.x), prediction, rtol=1e-4, atol=1e-5)


def with_junk(rows, count=2):
    """A batch of examples, padded with rows of NaN."""
    x, y = (jnp.pad(part, ((0, 0), (0, count), (0, 0)), constant_values=jnp.nan) for part in (rows.x, rows.y))
    return Examples(x, y, jnp.pad(rows.mask, ((0, 0), (0, count))))


def test_a_padded_batch_of_tasks_of_different_sizes_equals_a_loop(learner, start):
    """Neither the task axis nor padding, even NaNs, changes the loss or its gradients."""
    meta, tasks, key = start(learner), some_tasks(), jax.random.key(2)
    padded = dataclasses.replace(tasks, support=with_junk(tasks.support))
    loss, _, grads = eqx.filter_jit(meta_gradient)(learner, meta, padded, key=key)
    each = [
        loss_and_grads(learner, meta, jax.tree.map(lambda leaf, i=i: leaf[i], tasks), task_key)
        for i, task_key in enumerate(jax.random.split(key, 3))
    ]
    assert len({int(n) for n in tasks.support.mask.sum(1)}) > 1
    np.testing.assert_allclose(loss, np.mean([float(value) for value, _ in each]), rtol=1e-4)
    mean = jax.tree.map(lambda *leaves: np.stack(leaves).mean(0), *[g for _, g in each])
    trainable = learner.trainable(meta)
    grads, mean = eqx.filter(grads, trainable), eqx.filter(mean, trainable)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), grads, mean)
    if not isinstance(learner, Scratch):  # which learns nothing
        check_every_leaf_learns(grads)


NEVER_LEARN = {  # of ARML: b_p cancels in the softmax; one layer of propagation carries no vertex to another
    ".prototype_net.bias",
    ".graph.knowledge_edge.weight",
    ".graph.knowledge_edge.bias",
}


SCALES = (".cluster.leaves.basis", ".cluster.leaves.y_")
"""Of evidence clusters: scales of the training tasks."""


def check_every_leaf_learns(grads):
    leaves = jax.tree_util.tree_leaves_with_path(grads)
    assert all(np.isfinite(leaf).all() for _, leaf in leaves)
    largest = max(np.abs(np.array(leaf)).max() for _, leaf in leaves)
    still = [jax.tree_util.keystr(path) for path, leaf in leaves if not np.abs(np.array(leaf)).max() > 1e-7 * largest]
    assert [name for name in still if name not in NEVER_LEARN and not name.startswith(SCALES)] == []


def test_the_loss_falls_and_a_second_block_does_not_trace_again(distinct_learner):
    learner = distinct_learner
    if isinstance(learner, Scratch):
        pytest.skip("learns nothing from other tasks")
    traces = []

    @dataclasses.dataclass(frozen=True)
    class Counted(Functions):
        def sample(self, key):
            traces.append(key)
            return super().sample(key)

    training = Training(outer_lr=0.01, meta_batch=8)
    config = Config(Counted(families=("line",)), learner, training)
    state, losses = init_state(config), []
    for stop in (10, 200, 400):
        state, block = run_block(learner, config.source.schedule(400), training, state, jnp.asarray(stop, jnp.int32))
        losses.append(float(block.means.get("query_loss", block.means.get("known_loss", block.means["loss"]))))
        if stop == 10:
            first = len(traces)
    assert int(state.step) == 400
    assert len(traces) == first
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["maml", "hsml-gru", "hsml-attention", "mumomaml", "arml", "neural-process"])
def test_two_inputs_and_two_outputs(name):
    learner = LEARNERS[name]
    meta = learner.init(Spec(x_shape=(2,), y_dim=2), key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (5, 2))
    predictor, _ = eqx.filter_jit(learner.adapt)(meta, unpadded(x, x[:, ::-1]))
    assert predictor(x).shape == (5, 2)

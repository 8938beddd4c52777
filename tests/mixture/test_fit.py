"""The fit finds known families, chooses among starts, and survives a start that diverges."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY_TRAINING
from sklearn.metrics import normalized_mutual_info_score

from metagrove import EvidenceClusters, Functions, Grove
from metagrove.config.config import Config
from metagrove.errors import DivergedError, InputError
from metagrove.mixture.fit import draw_rows, noise_bound
from metagrove.mixture.tree import choose_start
from metagrove.sources.source import Source, Steady
from metagrove.training.block import run_block
from metagrove.training.phases import end_fit, started

TASKS = Functions(families=("sinusoid", "line"), shots=4, queries=4)
FIT = EvidenceClusters(
    clusters=(3, 2, 1), degree=8, rank=4, fit_steps=300, fit_batch=20, fit_lr=0.03, restarts=2, judging_tasks=100
)
CONFIG = Config(TASKS, Grove(cluster=FIT), dataclasses.replace(TINY_TRAINING, steps=0))


def run_fit(config, state, stop=0):
    tasks = Steady(config.source.split("train"))
    return run_block(config.learner, tasks, config.training, state, jnp.asarray(stop, jnp.int32))


@pytest.fixture(scope="module")
def states():
    """Before the first step, and after all of them."""
    start = started(CONFIG, Steady(TASKS))
    return start, run_fit(CONFIG, start)[0]


@pytest.fixture(scope="module")
def rows():
    return draw_rows(TASKS, jax.random.key(2), 100)


def test_the_evidence_rises_and_the_best_start_is_kept(states, rows):
    (_, before), (chosen, scores) = (choose_start(state.meta.cluster.leaves, rows) for state in states)
    assert (scores > before + 5).all()
    np.testing.assert_array_equal(chosen.mean, states[1].meta.cluster.leaves.mean[scores.argmax()])


def test_clusters_are_the_families_that_nobody_named(states):
    config, state = end_fit(CONFIG, states[1], Steady(TASKS))
    tasks = jax.vmap(TASKS.sample)(jax.random.split(jax.random.key(9), 200))
    num = config.learner.clusters[0]
    p = eqx.filter_jit(jax.vmap(lambda rows: state.meta.cluster.posterior(rows).probabilities))(tasks.query)
    line, strongest = np.asarray(tasks.family) == 1, np.asarray(p).argmax(1)
    kinds = np.array([line[strongest == k].mean() > 0.5 if (strongest == k).any() else False for k in range(num)])
    assert normalized_mutual_info_score(line, kinds[strongest]) > 0.5
    assert config.learner.clusters[-1] == 1
    assert jax.tree.map(jnp.shape, state.meta) == jax.tree.map(
        jnp.shape, config.learner.init(TASKS.spec, key=jax.random.key(0))
    )


def broken_at(state, index):
    leaves = state.meta.cluster.leaves
    mean = leaves.mean.at[index].set(jnp.nan)
    return eqx.tree_at(lambda state: state.meta.cluster.leaves.mean, state, mean)


def test_a_start_that_diverges_hurts_no_other_and_is_never_chosen(states, rows):
    start = states[0]
    after, block = run_fit(CONFIG, broken_at(start, 0), -290)
    want, _ = run_fit(CONFIG, start, -290)
    assert np.isfinite(block.means["loss"])
    np.testing.assert_allclose(
        after.meta.cluster.leaves.mean[1], want.meta.cluster.leaves.mean[1], rtol=1e-3, atol=1e-5
    )
    chosen, _ = choose_start(after.meta.cluster.leaves, rows)
    np.testing.assert_array_equal(chosen.mean, after.meta.cluster.leaves.mean[1])
    with pytest.raises(DivergedError, match="lower --fit-lr"):
        choose_start(broken_at(start, slice(None)).meta.cluster.leaves, rows)
    _, block = run_fit(CONFIG, broken_at(start, slice(None)), -290)
    assert not bool(block.finite["loss"])  # the loop stops with a message


def test_the_bound_on_the_noise_falls_geometrically():
    bounds = [float(jnp.exp(noise_bound(0.25, 0.005, 0.75, progress))) for progress in (0.0, 0.375, 0.75, 1.0)]
    np.testing.assert_allclose(bounds, [0.25, (0.25 * 0.005) ** 0.5, 0.005, 0.005], rtol=1e-3)


@dataclasses.dataclass(frozen=True)
class OneTask(Source):
    """The same task for every key, with constant targets and more features than rows."""

    value: float = 0.0
    spec = TASKS.spec

    def sample(self, key):
        del key
        task = TASKS.sample(jax.random.key(0))
        constant = dataclasses.replace(task.support, y=jnp.full_like(task.support.y, self.value))
        return dataclasses.replace(task, support=constant, query=constant)


@pytest.mark.parametrize("value", [0.0, 1e6])
def test_one_task_with_constant_targets_is_learned(value):
    config = dataclasses.replace(CONFIG, source=OneTask(value)).with_settings(fit_steps=20, fit_batch=2)
    state, _ = run_fit(config, started(config, Steady(config.source)))
    config, state = end_fit(config, state, Steady(config.source))
    support = OneTask(value).sample(None).support
    predictor, info = eqx.filter_jit(config.learner.adapt)(state.meta, support)
    np.testing.assert_allclose(predictor(support.x), value, rtol=0.05, atol=0.1)
    assert np.isfinite(predictor.std(support.x)).all()
    assert info.assignments[0].sum() == pytest.approx(1)


def test_targets_that_are_not_finite_are_refused():
    config = dataclasses.replace(CONFIG, source=OneTask(np.nan))
    with pytest.raises(InputError, match="finite targets"):
        started(config, Steady(config.source))

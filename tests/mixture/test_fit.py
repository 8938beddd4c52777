"""The fit finds known families, chooses among starts, is reproducible, and survives a start that diverges."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from metagrove import Functions
from metagrove.errors import DivergedError
from metagrove.mixture.fit import FitState, MixtureFit, finish_fit, fit_block, fit_mixture, noise_bound, start_fit
from metagrove.nets.basis import BasisSettings

TASKS = Functions(families=("sinusoid", "line"), shots=4, queries=4)
FIT = MixtureFit(
    BasisSettings(degree=8), clusters=3, rank=4, steps=300, batch=20, lr=0.03, restarts=2, validation_tasks=100
)


@pytest.fixture(scope="module")
def states():
    """Before the first step, and after all of them in two blocks."""
    start = start_fit(FIT, TASKS, key=jax.random.key(0))
    half = fit_block(FIT, start, TASKS, jax.random.key(1), 150)
    return start, fit_block(FIT, half, TASKS, jax.random.key(1), 150)


@pytest.fixture(scope="module")
def result(states):
    return finish_fit(FIT, states[1], TASKS, key=jax.random.key(2))


def test_the_evidence_rises_and_the_best_start_is_kept(states, result):
    before = finish_fit(FIT, states[0], TASKS, key=jax.random.key(2)).log_marginal
    assert (result.log_marginal > before + 5).all()
    best = result.log_marginal.argmax()
    np.testing.assert_array_equal(result.mixture.mean, result.restarts.mean[best])


def test_clusters_are_the_families_that_nobody_named(result):
    tasks = jax.vmap(TASKS.sample)(jax.random.split(jax.random.key(9), 200))
    p = eqx.filter_jit(jax.vmap(lambda rows: result.mixture.posterior(rows).probabilities))(tasks.query)
    line = np.asarray(tasks.family) == 1
    strongest = np.asarray(p).argmax(1)
    kinds = np.array([line[strongest == k].mean() > 0.5 if (strongest == k).any() else False for k in range(3)])
    assert normalized_mutual_info_score(line, kinds[strongest]) > 0.5


def test_a_start_that_diverged_is_never_chosen(states):
    last = states[1].mixture
    broken = eqx.tree_at(lambda m: m.mean, last, last.mean.at[0].set(jnp.nan))
    chosen = finish_fit(FIT, dataclasses.replace(states[1], mixture=broken), TASKS, key=jax.random.key(2)).mixture
    np.testing.assert_array_equal(chosen.mean, last.mean[1])
    all_broken = dataclasses.replace(states[1], mixture=eqx.tree_at(lambda m: m.mean, last, last.mean * jnp.nan))
    with pytest.raises(DivergedError, match="lower lr"):
        finish_fit(FIT, all_broken, TASKS, key=jax.random.key(2))


def test_the_bound_on_the_noise_falls_geometrically():
    bounds = [float(jnp.exp(noise_bound(FIT, jnp.asarray(step)))) for step in (0, 112.5, 225, 300)]
    np.testing.assert_allclose(bounds, [0.25, (0.25 * 0.005) ** 0.5, 0.005, 0.005], rtol=1e-3)


@dataclasses.dataclass(frozen=True)
class OneTask:
    """The same task for every key."""

    value: float

    def sample(self, key):
        del key
        task = TASKS.sample(jax.random.key(0))
        constant = dataclasses.replace(task.support, y=jnp.full_like(task.support.y, self.value))
        return dataclasses.replace(task, support=constant, query=dataclasses.replace(task.query, y=constant.y))


@pytest.mark.parametrize("value", [0.0, 1e6])
def test_one_task_with_constant_targets_is_learned(value):
    small = dataclasses.replace(FIT, steps=20, batch=2, restarts=1, validation_tasks=2, clusters=2)
    result = fit_mixture(small, OneTask(value), OneTask(value), key=jax.random.key(0))
    support = OneTask(value).sample(None).support
    mean, std = eqx.filter_jit(lambda m: m.posterior(support).mean_and_std(support.x))(result.mixture)
    np.testing.assert_allclose(mean, value, rtol=0.05, atol=0.1)
    assert np.isfinite(std).all()


def test_settings_are_checked():
    errors = MixtureFit(clusters=0, noise=(0.1, 0.2), annealed=2.0).validation_errors()
    assert [error.split()[0] for error in errors] == ["clusters", "noise", "annealed"]
    assert isinstance(start_fit(FIT, TASKS, key=jax.random.key(0)), FitState)

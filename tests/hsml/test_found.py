"""Clusters that are found before the first meta-step: the map by hand, what is found, what training leaves alone."""

import contextlib
import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY_NET
from sklearn.metrics import normalized_mutual_info_score

from metagrove import HSML
from metagrove.config.config import Config, Training, check_config
from metagrove.errors import InputError
from metagrove.hsml.cluster import climb
from metagrove.hsml.embed import PoolingEmbedding
from metagrove.hsml.found import FoundClusters, SplitHalfEmbeddings, find_clusters, signal_map
from metagrove.hsml.gate import ParameterGate
from metagrove.hsml.relative import UNIT, EmbeddingNormalizer
from metagrove.sources.source import Source
from metagrove.task import Spec, Task, unpadded
from metagrove.training import loop
from metagrove.training.block import run_block
from metagrove.training.loop import train
from metagrove.training.phases import started

LEARNER = HSML(
    net=TINY_NET,
    embed=PoolingEmbedding(task_dim=4),
    cluster=FoundClusters(clusters=(2, 1), start_tasks=200, projection_scale=0.1),
    gate=ParameterGate(gate_form="affine", gate_inputs=("task", "root", "assignment")),
    inner_steps=1,
)


@dataclasses.dataclass(frozen=True)
class TwoKinds(Source):
    """Lines at heights of either sign; inputs scatter far more than that."""

    @property
    def spec(self) -> Spec:
        return Spec((1,), 1)

    @property
    def family_names(self) -> tuple[str, ...]:
        return ("low", "high")

    def sample(self, key) -> Task:
        family_key, x_key = jax.random.split(key)
        family = jax.random.randint(family_key, (), 0, 2)
        x = jax.random.uniform(x_key, (12, 1), minval=-5.0, maxval=5.0)
        y = jnp.full((12, 1), 0.5) * (2 * family - 1)
        return Task(unpadded(x[:6], y[:6]), unpadded(x[6:], y[6:]), family)


CONFIG = Config(TwoKinds(), LEARNER, Training(steps=4, meta_batch=2, validation_tasks=2))


@pytest.fixture(scope="module")
def start():
    return started(CONFIG, CONFIG.source.schedule(4))


@pytest.fixture(scope="module")
def halves():
    """x = (a, s + b), x' = (c, s + d) with s = ±1, a, c = ±2, b, d = ±½, every combination once."""
    s, a, b, c, d = np.array(list(itertools.product([1, -1], [2, -2], [0.5, -0.5], [2, -2], [0.5, -0.5]))).T
    return np.stack([a, s + b], 1), np.stack([c, s + d], 1)


def test_map_by_hand(halves):
    """S = diag(0, 1), N = diag(4, ¼), λ = 0 and 4: A takes the first away and multiplies the second by 2 · 4/5."""
    np.testing.assert_allclose(np.abs(signal_map(*halves)), [[0, 0], [0, 1.6]], atol=1e-12)


def test_map_undoes_any_mixing_of_its_inputs(halves):
    mixing = np.array([[1.0, 2.0], [-0.5, 3.0]])
    mixed = mixing @ signal_map(*(x @ mixing for x in halves))
    np.testing.assert_allclose(np.abs(mixed), np.abs(signal_map(*halves)), atol=1e-12)


def test_clusters_are_the_kinds_of_tasks_before_anything_is_trained(start):
    def look(key):
        task = CONFIG.source.sample(key)
        _, info = LEARNER.adapt(start.meta, task.support, steps=0)
        place = start.meta.cluster.space(info.task_embedding)
        return info.assignments[0][0].argmax(), info.task_embedding, place, task.family

    nearest, embeddings, places, families = jax.jit(jax.vmap(look))(jax.random.split(jax.random.key(9), 400))
    assert normalized_mutual_info_score(families, nearest) > 0.9
    np.testing.assert_allclose(embeddings.mean(0), np.zeros(4), atol=0.02)
    assert float(jnp.square(embeddings).sum(1).mean()) == pytest.approx(0.1**2, rel=0.2)  # the scale that was asked for
    spread = np.exp(np.log(np.square(places).mean(1)).mean() / 2)
    assert spread == pytest.approx(1 / UNIT, rel=0.1)
    for k, center in enumerate(start.meta.cluster.levels[0].centers):
        np.testing.assert_allclose(center, places[nearest == k].mean(0), atol=0.1)


def test_training_leaves_what_was_found_and_moves_the_rest(start):
    after, _ = run_block(LEARNER, CONFIG.source.schedule(4), CONFIG.training, start, jnp.asarray(4, jnp.int32))

    def stay(meta):
        return jax.tree.leaves(LEARNER.cluster.frozen(meta))

    for before, now in zip(stay(start.meta), stay(after.meta), strict=True):
        np.testing.assert_array_equal(before, now)
    for part in (lambda m: m.net.weights[0], lambda m: m.gate.layer.weight, lambda m: m.cluster.levels[0].bias):
        assert not np.array_equal(part(start.meta), part(after.meta))


@contextlib.contextmanager
def stopped_at_once():
    yield lambda: True


def test_a_stopped_run_goes_on_from_what_was_found(tmp_path, monkeypatch):
    config = CONFIG.with_settings(steps=8, log_every=4, validate_every=4)
    assert train(config, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(loop, "interruptible", stopped_at_once)
        assert not train(config, tmp_path / "stopped")
    assert train(config, tmp_path / "stopped", resume=True)
    weights = [sorted(path.name for path in (tmp_path / run).glob("*.safetensors")) for run in ("whole", "stopped")]
    assert weights[0] == weights[1] != []  # a name has the checksum of what is in it


def test_same_seed_same_start(start):
    again = started(CONFIG, CONFIG.source.schedule(4))
    for one, other in zip(jax.tree.leaves(start), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_gate_reads_the_assignment_beside_g_and_h(start):
    support = CONFIG.source.sample(jax.random.key(1)).support
    _, info = LEARNER.adapt(start.meta, support, steps=0)
    assignment = info.assignments[0][0]
    root, _ = climb(start.meta.cluster.levels, info.task_embedding, assignment)
    weight = np.array(start.meta.gate.layer.weight)
    assert weight.shape[0] == 4 + 4 + 2
    flat, _ = jax.flatten_util.ravel_pytree(eqx.filter(start.meta.net, eqx.is_inexact_array))
    scale, shift = np.split(np.concatenate([info.task_embedding, root, assignment]) @ weight, 2)
    first_net = jax.tree.map(lambda leaf: leaf[0], eqx.filter(info.path, eqx.is_inexact_array))
    np.testing.assert_allclose(
        jax.flatten_util.ravel_pytree(first_net)[0], np.array(flat) * (1 + scale) + shift, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start_tasks": 4}, "start_tasks must be more than task_dim and the first clusters .4."),
        ({"clusters": (300, 1)}, "start_tasks must be more than task_dim and the first clusters .300."),
        ({"clusters": ()}, "clusters must be positive numbers ending in 1"),
        ({"clusters": (1,)}, "clusters must begin with two or more to be found"),
        ({"projection_scale": 0.0}, "projection_scale must be positive"),
        ({"growth_window": 100}, "growth_window must be 0 with found clusters"),
        ({"growth_window": 100, "cluster": "relative"}, "growth_window must be 0 where the gate reads the assignment"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        check_config(CONFIG.with_settings(log_every=100, **settings))


def test_a_task_of_one_example_has_no_halves(start):
    embeddings = SplitHalfEmbeddings(*jnp.ones((3, 5, 4)), both_halves=jnp.array([True, True, False, True, True]))
    with pytest.raises(InputError, match="two support examples or more in every task"):
        find_clusters(start.meta.cluster, embeddings, key=jax.random.key(0))


def test_tasks_that_are_all_alike_have_no_clusters(start):
    embeddings = SplitHalfEmbeddings(*jnp.ones((3, 5, 4)), both_halves=jnp.ones(5, bool))
    with pytest.raises(InputError, match="no signal that distinguishes tasks"):
        find_clusters(start.meta.cluster, embeddings, key=jax.random.key(0))


def test_normalizer_has_the_type_of_what_training_makes_of_it():
    """A weak type would be traced twice."""
    assert not EmbeddingNormalizer(4, std=0.3).log_std.weak_type

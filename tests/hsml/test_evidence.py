"""Evidence clusters in HSML: placement, gate per node, permuted assignments, settings, and a run that is resumed."""

import dataclasses
import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS, TINY_TRAINING

from metagrove import Functions, files, load
from metagrove.config.config import Config, check_config
from metagrove.config.encoding import from_json, to_json
from metagrove.config.presets import preset
from metagrove.errors import InputError, RunError
from metagrove.losses import cross_entropy
from metagrove.training import folders
from metagrove.training import loop as train_module
from metagrove.training.block import run_block
from metagrove.training.growth import as_grown
from metagrove.training.loop import train
from metagrove.training.phases import init_state

LEARNER = LEARNERS["hsml-evidence"]
CONFIG = Config(Functions(), LEARNER, dataclasses.replace(TINY_TRAINING, validation_tasks=10))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A fit of 30 steps and 40 meta-steps."""
    folder = tmp_path_factory.mktemp("runs") / "evidence"
    assert train(CONFIG, folder)
    return folder


@pytest.fixture(scope="module")
def run(finished):
    return load(finished)


@pytest.fixture(scope="module")
def place(run):
    compiled = eqx.filter_jit(run.config.learner.place)
    return lambda support, assignment=None: compiled(run.meta, support, assignment=assignment)[0]


def test_records_of_the_fit_have_steps_below_zero(finished, run):
    records = folders.read_metrics(finished)
    assert [r.step for r in records] == [-20, -10, 0, 10, 20, 30, 40]
    assert [r.step for r in records if "evidence_loss" in r.means] == [-20, -10, 0]
    assert [r.step for r in records if "loss" in r.means] == [10, 20, 30, 40]
    assert [r.step for r in records if r.validation] == [0, 20, 40]
    assert files.read_json(finished / "last.json")["clusters"] == list(run.config.learner.clusters)


@pytest.mark.parametrize("step", [-10, 0, 30])
def test_a_run_goes_on_bit_for_bit_from_its_fit_from_its_end_and_after_it(finished, tmp_path, monkeypatch, step):
    def block(*args, **how):
        result = run_block(*args, **how)
        if int(result[0].step) == step:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(train_module, "run_block", block)
    assert not train(CONFIG, tmp_path)
    assert files.read_json(tmp_path / "last.json")["step"] == step
    monkeypatch.undo()
    assert train(CONFIG, tmp_path, resume=True)
    last = [files.read_json(folder / "last.json") for folder in (tmp_path, finished)]
    assert last[0]["sha256"] == last[1]["sha256"]
    assert folders.read_metrics(tmp_path) == folders.read_metrics(finished)


def test_a_placement_is_a_posterior_on_a_tree(run, place):
    support = run.config.source.sample(jax.random.key(3)).support
    placement, cluster = place(support), run.meta.cluster
    num = run.config.learner.clusters[0]
    p = placement.assignments[0][0]
    evidence = eqx.filter_jit(cluster.leaves.log_evidence)(support)
    np.testing.assert_allclose(p, jax.nn.softmax(cluster.leaves.logits + evidence), rtol=1e-3, atol=1e-5)
    for assignment in placement.assignments:
        np.testing.assert_allclose(assignment.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(placement.masses[:num], p)
    np.testing.assert_allclose(placement.masses, p @ cluster.tree.ancestry(), rtol=1e-5)
    assert placement.masses[-1] == pytest.approx(1)
    assert placement.coordinates.shape == (num, 3)
    assert placement.inner_coordinates.shape[0] == num - 1


def test_a_gate_is_the_sum_of_what_its_nodes_add(run, place):
    support = run.config.source.sample(jax.random.key(3)).support
    placement, gate = place(support), run.meta.gate
    flat, _ = jax.flatten_util.ravel_pytree(eqx.filter(run.meta.net, eqx.is_inexact_array))
    scale, shift = jnp.split(gate.contributions(placement).sum(0) + gate.layer.bias, 2)
    want, _ = jax.flatten_util.ravel_pytree(eqx.filter(gate(run.meta.net, placement), eqx.is_inexact_array))
    np.testing.assert_allclose(flat * (1 + scale) + shift, want, rtol=1e-4, atol=1e-5)
    assert gate.contributions(placement).shape[0] == 2 * run.config.learner.clusters[0] - 1


def test_an_assignment_from_outside_replaces_the_posterior(run, place):
    support = run.config.source.sample(jax.random.key(3)).support
    p = jnp.zeros(run.config.learner.clusters[0]).at[0].set(1.0)
    placement = place(support, p)
    np.testing.assert_array_equal(placement.assignments[0][0], p)
    np.testing.assert_allclose(placement.coordinates, place(support).coordinates, rtol=1e-4, atol=1e-5)


def test_nothing_of_the_clusters_is_trained_by_meta_steps(finished, run):
    trainable = run.config.learner.trainable(run.meta)
    assert not any(jax.tree.leaves(trainable.cluster))
    assert all(jax.tree.leaves(trainable.gate.layer))


def test_a_config_survives_json():
    assert from_json(to_json(CONFIG)) == CONFIG


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster": "distance"}, "a gate per node needs.*--cluster evidence"),
        ({"cluster": "distance", "gate": "affine"}, "embed none.*--cluster evidence"),
        ({"loss": cross_entropy}, "for regression.*--cluster found"),
        ({"clusters": (2, 3, 1)}, "must not grow"),
        ({"fit_noise": (0.1, 0.2)}, "fit_noise"),
        ({"annealed": 2.0, "fit_lr": 0.0, "assumed_noise": -1.0}, "annealed.*fit_lr.*assumed_noise"),
        ({"growth_window": 10}, "evidence clusters"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        check_config(CONFIG.with_settings(**settings))


def test_shapes_of_the_fit_follow_from_the_settings():
    shapes = eqx.filter_eval_shape(lambda: init_state(CONFIG, -5))
    assert shapes.meta.cluster.leaves.mean.shape[0] == LEARNER.cluster.restarts
    assert shapes.meta.cluster.node_mean.shape[:2] == (LEARNER.cluster.restarts, 2 * LEARNER.clusters[0] - 1)


def test_levels_that_the_fit_dropped_are_no_error():
    config = preset("toy-5shot-evidence")
    assert as_grown(config, (4, 2, 1)).learner.clusters == (4, 2, 1)
    for name, clusters in (("toy-5shot-evidence", (9, 8, 4, 2, 1)), ("toy-5shot", (4, 1))):
        with pytest.raises(RunError, match="on another number"):
            as_grown(preset(name), clusters)


def test_a_single_cluster_is_not_trained_by_meta_steps():
    one = dataclasses.replace(LEARNER, cluster=dataclasses.replace(LEARNER.cluster, clusters=(1,)))
    meta = one.init(CONFIG.source.spec, key=jax.random.key(0))
    mask = one.trainable(meta)
    assert jax.tree.structure(mask) == jax.tree.structure(meta)  # also where the cluster has empty parts
    assert not any(jax.tree.leaves(mask.cluster))
    assert any(jax.tree.leaves(mask.net))

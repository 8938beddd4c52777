"""Supervised pretraining over all training classes: its loss, its phase, and that it serves every kind of learner."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove import BMAML, MAML, Functions, MLPNet, ProtoNet
from metagrove.config.config import Config, Training
from metagrove.errors import InputError
from metagrove.files import read_json
from metagrove.losses import cross_entropy
from metagrove.sources.source import Source
from metagrove.task import Spec, Task, unpadded
from metagrove.training.loop import train
from metagrove.training.phases import State, end_fit, init_state, part_at
from metagrove.training.pretraining import Pretrainer, begin_pretraining

NET = MLPNet(hidden=(8,), init_sd=0.5, classifies=True)
MEANS = 3 * np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Blobs(Source):
    """Two of six classes, each around a mean of its own."""

    @property
    def spec(self):
        return Spec(x_shape=(4,), y_dim=2)

    @property
    def num_classes(self):
        return 6

    def sample(self, key):
        class_key, noise_key = jax.random.split(key)
        classes = jax.random.permutation(class_key, 6)[:2]
        x = jnp.asarray(MEANS)[classes][:, None] + jax.random.normal(noise_key, (2, 4, 4))
        y = jnp.repeat(jnp.eye(2), 2, axis=0)
        parts = (unpadded(x[:, part].reshape(4, 4), y) for part in (slice(0, 2), slice(2, 4)))
        return Task(*parts, jnp.zeros((), int), classes)


SHORT = Training(
    steps=20, meta_batch=4, log_every=10, validate_every=10, validation_tasks=10, pretrain_steps=100, outer_lr=0.01
)
MAML_CONFIG = Config(Blobs(), MAML(loss=cross_entropy, net=NET, head="prototypes", inner_steps=1), SHORT)


def test_the_loss_is_that_of_a_linear_classifier_of_all_classes():
    learner = ProtoNet(net=NET)
    meta = learner.init(Blobs().spec, key=jax.random.key(0))
    meta = begin_pretraining(learner, meta, Blobs(), key=jax.random.key(1))
    task = Blobs().sample(jax.random.key(2))
    loss, metrics = Pretrainer(learner=learner).phase_loss("classes", meta, task, key=jax.random.key(3))
    x = np.concatenate([task.support.x, task.query.x])
    labels = np.asarray(task.classes)[np.concatenate([task.support.y, task.query.y]).argmax(1)]
    logits = np.maximum(x @ np.asarray(meta.meta.weights[0]), 0) @ np.asarray(meta.classifier.weight)
    log_probabilities = np.asarray(jax.nn.log_softmax(logits))
    np.testing.assert_allclose(loss, -log_probabilities[np.arange(8), labels].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], 100 * (logits.argmax(1) == labels).mean(), rtol=1e-5)


def test_it_is_a_phase_before_the_first_meta_step_that_keeps_the_net_alone(tmp_path):
    seen = []
    assert train(MAML_CONFIG, tmp_path / "run", callback=seen.append)
    steps = [record.step for record in seen]
    assert steps == [*range(-90, 1, 10), 10, 20]
    assert seen[0].means["classes_loss"] > 2 * seen[9].means["classes_loss"]  # it learns the six classes
    assert seen[9].means["classes_accuracy"] > 80
    state = init_state(MAML_CONFIG, -100)
    assert state.meta.classifier.weight.shape == (8, 6)
    _, after = end_fit(MAML_CONFIG, State(state.meta, state.opt_state, jnp.zeros((), jnp.int32)), Steady())
    assert jax.tree.structure(after.meta) == jax.tree.structure(init_state(MAML_CONFIG).meta)
    jax.tree.map(np.testing.assert_array_equal, *(eqx.filter(m, eqx.is_array) for m in (after.meta, state.meta.meta)))
    assert part_at(MAML_CONFIG.learner, SHORT, 0).learner is MAML_CONFIG.learner


class Steady:
    def at(self, step):
        return Blobs()


def test_a_pretraining_that_was_interrupted_ends_in_the_same_weights(tmp_path):
    assert train(MAML_CONFIG, tmp_path / "whole")

    def stop(record):
        if record.step == -50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(MAML_CONFIG, tmp_path / "parts", callback=stop)
    assert train(MAML_CONFIG, tmp_path / "parts", resume=True)
    whole, parts = (read_json(tmp_path / name / "last.json") for name in ("whole", "parts"))
    assert whole["sha256"] == parts["sha256"]


@pytest.mark.parametrize(
    ("learner", "source", "message"),
    [
        (BMAML(loss=cross_entropy, net=NET), Blobs(), "pretrain_steps must be 0 for BMAML: it has no base net"),
        (MAML(), Functions(), "pretrain_steps must be 0: the tasks of Functions share no classes"),
    ],
)
def test_what_cannot_be_pretrained_is_refused_in_words(learner, source, message, tmp_path):
    with pytest.raises(InputError, match=message):
        train(Config(source, learner, SHORT), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()

"""Supervised pretraining: first, the base net learns to classify all training classes.

L = mean over the images of a task of -log softmax(f(x) W + b)[class],   class among all training classes

It is a phase before the first meta-step, like a fit of clusters, and serves every learner with a base net whose last
layer can be left out. W and b belong to the phase and are removed with its end.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.learner import Info, Learner, Meta, Predictor
from metagrove.losses import accuracy, cross_entropy
from metagrove.nets.linear import Linear
from metagrove.sources.source import Source
from metagrove.task import Examples, Spec, Task, join

LOSS = "classes"
"""Name of the phase's loss."""


class PretrainMeta(eqx.Module):
    """Θ of the phase: the learner's own, and the classifier of all training classes."""

    meta: Meta
    classifier: Linear


@dataclasses.dataclass(frozen=True)
class Pretrainer(Learner):
    """A learner while its base net is pretrained. It is never adapted."""

    learner: Learner = dataclasses.field(kw_only=True)
    """The learner."""

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Meta:
        return self.learner.init(spec, key=key)

    def adapt(
        self, meta: PretrainMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        return self.learner.adapt(meta.meta, support, key=key, steps=steps)

    def phase_loss(
        self, name: str, meta: PretrainMeta, task: Task, *, key: PRNGKeyArray, progress: Float[Array, ""] | float = 1.0
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Compute the classification loss of the images of one task, support and query together.

        Args:
            name: Name of the loss, "classes".
            meta: The meta-parameters of the phase.
            task: The task, with the index of each of its classes among all training classes.
            key: Not used.
            progress: Not used.

        Returns:
            The loss, and the accuracy.
        """
        del name, key, progress
        assert task.classes is not None
        images = join(task.support, task.query)
        features = self.learner.base_net(meta.meta).features(images.x, images.mask)
        prediction = jax.nn.log_softmax(meta.classifier(features))
        y = images.y @ jax.nn.one_hot(task.classes, prediction.shape[1])
        metrics = {"accuracy": accuracy(prediction, y, images.mask)}
        return cross_entropy(prediction, y, images.mask), metrics

    def end_phase(self, name: str, meta: Any, tasks: Any, validation: Any, *, key: PRNGKeyArray) -> Any:
        """Remove the classifier.

        Args:
            name: Name of the loss.
            meta: The meta-parameters of the phase.
            tasks: Not used.
            validation: Not used.
            key: Not used.

        Returns:
            The learner and its meta-parameters.
        """
        del name, tasks, validation, key
        return self.learner, meta.meta


def begin_pretraining(learner: Learner, meta: Meta, source: Source, *, key: PRNGKeyArray) -> PretrainMeta:
    """The meta-parameters of the phase, with a fresh classifier of the source's training classes.

    Raises:
        InputError: If the learner has no net to pretrain, or the source no classes.
    """
    net = learner.base_net(meta)
    if net is None:
        raise InputError(f"pretrain_steps must be 0 for {type(learner).__name__}: it has no base net with features")
    if source.num_classes == 0:
        raise InputError(
            f"pretrain_steps must be 0: the tasks of {type(source).__name__} share no classes (images do, with --mix 0)"
        )
    size = jax.eval_shape(net.features, jnp.zeros((1, *source.spec.x_shape))).shape[1]
    return PretrainMeta(meta, Linear(size, source.num_classes, key=key))

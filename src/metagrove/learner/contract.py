"""The abstract base class of learners; the package's docstring states the contract."""

import abc
import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.learner.clusters import ClusterCapabilities
from metagrove.learner.info import Info, Meta, Phase, Predictor
from metagrove.losses import LossFn, metric_of, mse
from metagrove.task import Examples, Spec, Task

__all__ = ["Learner"]


@dataclasses.dataclass(frozen=True)
class Learner(ClusterCapabilities, abc.ABC):
    """Abstract base class of all methods: hyperparameters and a few pure functions of one task.

    A subclass is a frozen dataclass, so that it is hashable, and defines `init` and `adapt`; the other methods have
    defaults. No method but `data_dependent_init` has a task axis: the outer loop maps over tasks.
    """

    loss: LossFn = mse
    """Inner and query loss: (prediction, y, mask) to a scalar."""

    any_ways: ClassVar[bool] = False
    """Whether the meta-parameters serve tasks of any number of classes, so that training tasks may have more."""

    @property
    def name(self) -> str:
        """Name of the method in legends and tables."""
        return type(self).__name__

    @abc.abstractmethod
    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Meta:
        """Initialise the meta-parameters Θ: everything that the outer loop trains.

        Args:
            spec: Shapes of the inputs and targets.
            key: Random key.

        Returns:
            The meta-parameters, a pytree of arrays.
        """

    @abc.abstractmethod
    def adapt(
        self, meta: Meta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        """Adapt to one task.

        Args:
            meta: The meta-parameters.
            support: Support set of the task (D^tr).
            key: Random key; None for a deterministic result.
            steps: Number of inner steps; None for the number used in training.

        Returns:
            The adapted predictor, a pytree module called as `predictor(x, mask)`, and an `Info`.
        """

    def data_dependent_init(self, meta: Meta, tasks: Any, *, key: PRNGKeyArray) -> Meta:
        """Adjust the initial meta-parameters to training tasks, before the first meta-step; by default not at all.

        Args:
            meta: The meta-parameters from `init`.
            tasks: Draws training tasks by `tasks.sample(key)`.
            key: Random key.

        Returns:
            The adjusted meta-parameters.
        """
        del tasks, key
        return meta

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that come before the first meta-step, such as the fit of clusters; by default none.

        Each has an optimiser of its own, Adam with cosine decay over its steps. Their steps are not meta-steps of the
        query loss: `Training.steps` does not count them, and in records they have numbers below 0.

        Returns:
            The phases in order, each with a number of steps, the fields it trains and the name of its loss.
        """
        return ()

    def base_net(self, meta: Meta) -> Any:
        """Return the net whose features supervised pretraining trains (`Training.pretrain_steps`).

        Args:
            meta: The meta-parameters.

        Returns:
            The net, with `features(x, mask)`; None for a learner without one. By default `meta` itself or its `net`.
        """
        net = meta if hasattr(meta, "features") else getattr(meta, "net", None)
        return net if hasattr(net, "features") else None

    def begin_phase(self, name: str, meta: Meta, *, key: PRNGKeyArray) -> Meta:
        """Prepare the meta-parameters for one of `phases`, e.g. by stacking several random starts.

        It is traceable, and the shapes it returns depend on those of `meta` alone, so that a checkpoint can be read.

        Args:
            name: Name of the loss of the phase.
            meta: The meta-parameters, in the shapes of `init`.
            key: Random key.

        Returns:
            The meta-parameters as the phase trains them; by default the same.
        """
        del name, key
        return meta

    def end_phase(
        self, name: str, meta: Meta, tasks: Any, validation: Any, *, key: PRNGKeyArray
    ) -> "tuple[Learner, Meta]":
        """Finish one of `phases`, e.g. by choosing among several starts.

        Args:
            name: Name of the loss of the phase.
            meta: The meta-parameters as the phase trained them.
            tasks: Draws training tasks by `tasks.sample(key)`.
            validation: Draws validation tasks.
            key: Random key.

        Returns:
            The learner, whose number of clusters may have changed (see `with_clusters`), and the meta-parameters in
            the shapes of its `init`; by default both as they were.
        """
        del name, tasks, validation, key
        return self, meta

    def trainable(self, meta: Meta) -> Any:
        """Select the leaves of the meta-parameters that are trained.

        Args:
            meta: The meta-parameters.

        Returns:
            A pytree of booleans; by default True for every floating-point array.
        """
        return jax.tree.map(eqx.is_inexact_array, meta)

    def phase_loss(
        self, name: str, meta: Meta, task: Task, *, key: PRNGKeyArray, progress: Float[Array, ""] | float = 1.0
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Compute the loss of one task in a training phase.

        Args:
            name: Name of the loss; every learner has "query", which is `meta_loss`.
            meta: The meta-parameters.
            task: The task.
            key: Random key.
            progress: The part of the phase that is done, from 0 to 1, e.g. for a schedule of the loss.

        Returns:
            The loss, and metrics to log.

        Raises:
            InputError: If the learner has no loss of that name.
        """
        del progress
        if name != "query":
            raise InputError(f"{type(self).__name__} has no training loss {name!r}: use 'query'")
        loss, info = self.meta_loss(meta, task, key=key)
        return loss, info.metrics

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            A message for each setting that cannot be used.
        """
        return []

    def meta_loss(self, meta: Meta, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute the loss that training minimises for one task: query loss after adapting, plus `info.penalty`.

        Args:
            meta: The meta-parameters.
            task: The task: its support set is adapted to, its query set is evaluated.
            key: Random key.

        Returns:
            The loss, and the `Info` of the adaptation.
        """
        predictor, info = self.adapt(meta, task.support, key=key)
        prediction = predictor(task.query.x, task.query.mask)
        metric = metric_of(self.loss)
        if metric.score is not self.loss:
            seen = metric.score(prediction, task.query.y, task.query.mask)
            info = dataclasses.replace(info, metrics={**info.metrics, metric.name: seen})
        return self.loss(prediction, task.query.y, task.query.mask) + info.penalty, info

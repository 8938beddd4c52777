"""The one contract between a method and everything else: training, evaluation, command line, figures.

A learner is a frozen dataclass of hyperparameters with three pure functions. Always one task, no task axis: `outer`
maps over tasks; only `start`, before the first meta-step, may look at many. `meta` is everything the outer loop
trains (the paper's Θ).
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.losses import LossFn, metric_of, mse
from metagrove.task import Examples, Spec, Task

Meta = Any
"""A pytree of arrays: what the outer loop trains."""

Predictor = Callable[..., Array]
"""A pytree module with `predictor(x, mask=None)`: a set of inputs to values (or log-probabilities)."""

NetFn = Callable[..., Predictor]
"""`net_fn(spec, key=key)` draws a fresh base net, an equinox module called as `net(x, mask=None)` on a set of rows."""


class Info(eqx.Module):
    """What a person wants to see of one adaptation; nothing of it is needed to predict."""

    path: Predictor
    """The predictor after 0, 1, ..., steps inner steps: its floating-point arrays stacked along a new first axis."""
    penalty: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    """Added to the query loss in training, e.g. HSML's ξ·L_r."""
    metrics: dict[str, Float[Array, ""]] = eqx.field(default_factory=dict)
    task_embedding: Float[Array, " d"] | None = None
    assignments: tuple[Float[Array, "_ _"], ...] = ()
    """p^{k→k'} of each level, rows summing to 1; empty for a learner without clusters."""


@dataclasses.dataclass(frozen=True)
class Learner(abc.ABC):
    """See the module's docstring. Subclasses are final frozen dataclasses, so that a learner is hashable."""

    loss: LossFn = mse
    """Inner and query loss: (prediction, y, mask) to a scalar."""

    @abc.abstractmethod
    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Meta:
        """Draw everything that will be trained."""

    @abc.abstractmethod
    def adapt(
        self, meta: Meta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        """Fit one task. `key=None` is deterministic; `steps=None` is the number used in training."""

    def start(self, meta: Meta, tasks: Any, *, key: PRNGKeyArray) -> Meta:
        """What `init` drew after a look at training tasks, before the first meta-step; most leave it as it is."""
        return meta

    def validation_errors(self) -> list[str]:
        """What is wrong with the hyperparameters, a line each."""
        return []

    def meta_loss(self, meta: Meta, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """What training minimises for one task: the adapted predictor's query loss, and `info.penalty`."""
        predictor, info = self.adapt(meta, task.support, key=key)
        prediction = predictor(task.query.x, task.query.mask)
        metric = metric_of(self.loss)
        if metric.score is not self.loss:
            seen = metric.score(prediction, task.query.y, task.query.mask)
            info = dataclasses.replace(info, metrics={**info.metrics, metric.name: seen})
        return self.loss(prediction, task.query.y, task.query.mask) + info.penalty, info


def after_each_step(
    path: Predictor, examples: Examples, score_fn: LossFn, bind: Callable[[Predictor], Predictor] = lambda p: p
) -> Float[Array, " steps_plus_1"]:
    """`score_fn` of every predictor on the path, e.g. the query loss after 0, 1, ..., steps inner steps.

    `bind` is applied to each predictor before it is called, e.g. to give it the support set's statistics.
    """

    stacked, same_for_all = eqx.partition(path, eqx.is_inexact_array)

    def score(params: Any) -> Array:
        predictor = bind(eqx.combine(params, same_for_all))
        return score_fn(predictor(examples.x, examples.mask), examples.y, examples.mask)

    return jax.lax.map(score, stacked)


def num_parameters(meta: Meta) -> int:
    """How many numbers the outer loop trains."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(meta, eqx.is_inexact_array)))

"""The one contract between a method and everything else: training, evaluation, command line, figures.

A learner is a frozen dataclass of hyperparameters with a few pure functions:

    init(spec, *, key) -> meta                                everything the outer loop trains, the paper's Θ
    adapt(meta, support, *, key=None, steps=None) -> predictor, info
    meta_loss(meta, task, *, key) -> loss, info               by default adapt's query loss + info.penalty

Always one task, no task axis: `outer` maps over tasks; only `data_dependent_init`, before the first meta-step, sees
many. A learner with clusters also takes `adapt(..., assignment=p)`, the first level's assignment decided from outside
(an oracle's, or one permuted over tasks); `family` reaches `adapt` in no other way, and never by default.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.losses import LossFn, metric_of, mse
from metagrove.task import Examples, Spec, Task

Meta = Any
"""A pytree of arrays: what the outer loop trains."""

Predictor = Callable[..., Array]
"""A pytree module with `predictor(x, mask=None)`: a set of inputs to values (or log-probabilities)."""

NetFn = Callable[..., Predictor]
"""`net_fn(spec, key=key)` draws a fresh base net, an equinox module called as `net(x, mask=None)` on a set of rows."""

GrowthStart = Literal["random", "warm"]
"""How a new cluster starts."""


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

    def data_dependent_init(self, meta: Meta, tasks: Any, *, key: PRNGKeyArray) -> Meta:
        """What `init` drew, adjusted to training tasks before the first meta-step; most learners need none."""
        del tasks, key
        return meta

    def trainable(self, meta: Meta) -> Any:
        """Which leaves of `meta` training changes: a tree of booleans, by default True for every inexact array."""
        return jax.tree.map(eqx.is_inexact_array, meta)

    def phase_loss(
        self, name: str, meta: Meta, task: Task, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The loss of one task in a training phase, and metrics; `query` is `meta_loss`, which every learner has."""
        if name != "query":
            raise InputError(f"{type(self).__name__} has no training loss {name!r}: use 'query'")
        loss, info = self.meta_loss(meta, task, key=key)
        return loss, info.metrics

    def validation_errors(self) -> list[str]:
        """What is wrong with the hyperparameters, a line each."""
        return []

    @property
    def clusters(self) -> tuple[int, ...]:
        """The number of task clusters of each level, K^1 ... K^L; empty for a learner without clusters."""
        return ()

    def with_clusters(self, clusters: tuple[int, ...]) -> "Learner":
        """The same learner with so many clusters at each level, as a checkpoint records them."""
        if clusters != self.clusters:
            raise InputError(f"{type(self).__name__} has no clusters, got {clusters}")
        return self

    def growth_errors(self) -> list[str]:
        """What keeps the learner from being given clusters while it is trained, a line each."""
        return [f"growth_window must be 0 for {type(self).__name__}: it has no clusters"]

    def grow(
        self,
        meta: Meta,
        opt_state: Any,
        *,
        key: PRNGKeyArray,
        start: GrowthStart = "random",
        place: Float[Array, " d"] | None = None,
    ) -> "tuple[Learner, Meta, Any]":
        """One more cluster at the first level: the learner, its meta-parameters and the optimiser's state.

        Args:
            meta: The meta-parameters.
            opt_state: The optimiser's state, which holds copies of their tree.
            key: Randomness of the new cluster.
            start: `random` as in the paper; `warm`, at `place`.
            place: Where, among the centres, the tasks are that a `warm` cluster is meant for.

        Raises:
            InputError: if the learner cannot grow.
        """
        raise InputError(f"{type(self).__name__} has no clusters and cannot grow")

    def cluster_centers(self, meta: Meta) -> Float[Array, "k d"] | None:
        """Centres of the first level; None for a learner without them."""
        return None

    def cluster_space(self, meta: Meta, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """The place of a task embedding in the space where distances to the centres are taken."""
        return task_embedding

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

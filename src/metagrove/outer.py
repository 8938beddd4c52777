"""The outer loop's gradient: the mean meta-loss of a batch of tasks. The only place that maps over tasks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.learner import Learner, Meta
from metagrove.task import Task


def over_tasks(fn: Callable[..., Any], *batched: Any) -> Any:
    """`fn` of each task of a batch."""
    return eqx.filter_vmap(fn)(*batched)


def meta_gradient(
    learner: Learner, meta: Meta, tasks: Task, *, key: PRNGKeyArray
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]], Meta]:
    """Mean meta-loss over the batch, the means of the learner's own metrics, and the gradient of the loss."""

    @eqx.filter_value_and_grad(has_aux=True)
    def mean_loss(meta: Meta) -> tuple[Array, dict[str, Array]]:
        def one(task: Task, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
            loss, info = learner.meta_loss(meta, task, key=key)
            return loss, info.metrics

        losses, metrics = over_tasks(one, tasks, jax.random.split(key, tasks.family.shape[0]))
        return losses.mean(), jax.tree.map(jnp.mean, metrics)

    (loss, metrics), grads = mean_loss(meta)
    return loss, metrics, grads

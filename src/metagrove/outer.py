"""The outer loop's gradient: the mean meta-loss of a batch of tasks. The only place that maps over tasks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from metagrove.learner import Learner, Meta
from metagrove.task import Task

Gradient = tuple[Float[Array, ""], dict[str, Float[Array, ""]], Meta]
"""Mean meta-loss over tasks, the means of the learner's own metrics, and the gradient of the loss."""


def over_tasks(fn: Callable[..., Any], *batched: Any, task_chunk_size: int | None = None) -> Any:
    """`fn` of each task of a batch, at most `task_chunk_size` of them worked on at once."""
    num_tasks = jax.tree.leaves(batched)[0].shape[0]
    if num_tasks == 1:  # without a mapped axis: a convolution whose kernel has one is slow
        return jax.tree.map(lambda leaf: leaf[None], fn(*jax.tree.map(lambda leaf: leaf[0], batched)))
    if task_chunk_size is None or task_chunk_size >= num_tasks:
        return eqx.filter_vmap(fn)(*batched)
    return jax.lax.map(lambda args: fn(*args), batched, batch_size=task_chunk_size if task_chunk_size > 1 else None)


def meta_gradient(
    learner: Learner, meta: Meta, tasks: Task, *, key: PRNGKeyArray, task_chunk_size: int | None = None
) -> Gradient:
    """The gradient of the batch; at most `task_chunk_size` tasks are worked on at once, one group after another."""
    num_tasks = tasks.family.shape[0]
    batch = tasks, jax.random.split(key, num_tasks)
    groups = num_groups(num_tasks, task_chunk_size or num_tasks)
    if groups == 1:
        return group_gradient(learner, meta, *batch)
    grouped = jax.tree.map(lambda leaf: leaf.reshape(groups, num_tasks // groups, *leaf.shape[1:]), batch)

    def add(total: Gradient, group: tuple[Task, Array]) -> tuple[Gradient, None]:
        return jax.tree.map(jnp.add, total, group_gradient(learner, meta, *group)), None

    shapes = jax.eval_shape(lambda group: group_gradient(learner, meta, *group), jax.tree.map(lambda a: a[0], grouped))
    total, _ = jax.lax.scan(add, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), grouped)
    return jax.tree.map(lambda leaf: leaf / groups, total)


def group_gradient(learner: Learner, meta: Meta, tasks: Task, keys: Key[Array, " tasks"]) -> Gradient:
    """The gradient of tasks that are worked on together."""

    @eqx.filter_value_and_grad(has_aux=True)
    def mean_loss(meta: Meta) -> tuple[Array, dict[str, Array]]:
        def one(task: Task, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
            loss, info = learner.meta_loss(meta, task, key=key)
            return loss, info.metrics

        losses, metrics = over_tasks(one, tasks, keys)
        return losses.mean(), jax.tree.map(jnp.mean, metrics)

    (loss, metrics), grads = mean_loss(meta)
    return loss, metrics, grads


def num_groups(num_tasks: int, task_chunk_size: int) -> int:
    """The least number of equal groups that are small enough."""
    return next(n for n in range(1, num_tasks + 1) if num_tasks % n == 0 and num_tasks // n <= task_chunk_size)

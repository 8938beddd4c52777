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
    learner: Learner,
    meta: Meta,
    tasks: Task,
    *,
    key: PRNGKeyArray,
    trainable: Any = None,
    loss: str = "query",
    task_chunk_size: int | None = None,
) -> Gradient:
    """The gradient of the mean loss of a batch of tasks.

    Args:
        learner: The method.
        meta: Its meta-parameters.
        tasks: A batch of tasks.
        key: Randomness of the learner.
        trainable: A tree of booleans: the leaves of `meta` to differentiate by; by default those the learner trains.
        loss: The loss of the training phase, see `Learner.phase_loss`.
        task_chunk_size: The number of tasks computed at once; chunks follow each other.

    Returns:
        The loss, the learner's metrics, and the gradient, 0 for leaves that are not trained.
    """
    num_tasks = tasks.family.shape[0]
    batch = tasks, jax.random.split(key, num_tasks)
    groups = num_groups(num_tasks, task_chunk_size or num_tasks)
    trained, fixed = eqx.partition(meta, learner.trainable(meta) if trainable is None else trainable)

    def gradient(group: tuple[Task, Array]) -> Gradient:
        return group_gradient(learner, trained, fixed, *group, loss=loss)

    if groups == 1:
        return gradient(batch)
    grouped = jax.tree.map(lambda leaf: leaf.reshape(groups, num_tasks // groups, *leaf.shape[1:]), batch)

    def add(total: Gradient, group: tuple[Task, Array]) -> tuple[Gradient, None]:
        return jax.tree.map(jnp.add, total, gradient(group)), None

    shapes = jax.eval_shape(gradient, jax.tree.map(lambda a: a[0], grouped))
    total, _ = jax.lax.scan(add, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), grouped)
    return jax.tree.map(lambda leaf: leaf / groups, total)


def group_gradient(
    learner: Learner, trained: Meta, fixed: Meta, tasks: Task, keys: Key[Array, " tasks"], *, loss: str
) -> Gradient:
    """The gradient of tasks that are computed together."""

    @eqx.filter_value_and_grad(has_aux=True)
    def mean_loss(trained: Meta) -> tuple[Array, dict[str, Array]]:
        meta = eqx.combine(trained, fixed)

        def one(task: Task, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
            return learner.phase_loss(loss, meta, task, key=key)

        losses, metrics = over_tasks(one, tasks, keys)
        return losses.mean(), jax.tree.map(jnp.mean, metrics)

    (value, metrics), grads = mean_loss(trained)
    zeros = jax.tree.map(jnp.zeros_like, eqx.filter(fixed, eqx.is_inexact_array))
    return value, metrics, eqx.combine(grads, zeros)


def num_groups(num_tasks: int, task_chunk_size: int) -> int:
    """The least number of equal groups that are small enough."""
    return next(n for n in range(1, num_tasks + 1) if num_tasks % n == 0 and num_tasks // n <= task_chunk_size)

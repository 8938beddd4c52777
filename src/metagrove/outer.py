"""Everything that maps over tasks: the meta-gradient of a batch, and one probe for everything else.

∇ (1/n) Σᵢ L(Θ, Tᵢ)                          `meta_gradient`, of tasks that are given
keep(Tᵢ, adapt(Θ, support of Tᵢ))            `probe`, of tasks that are drawn: scores, embeddings, assignments
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from metagrove.learner import Info, Learner, Meta, Predictor
from metagrove.sources.source import TaskDraw
from metagrove.task import Task

Keep = Callable[[Task, Predictor, Info], Any]
"""What is kept of an adapted task, a tree of arrays. It is compiled: give a function of a module, or a frozen dataclass
that is called, and not a new closure each time."""

BATCH = 500
"""Most tasks in one compiled call."""

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


def sample_tasks(tasks: TaskDraw, keys: Key[Array, " n"]) -> Task:
    """A task for each key, as a batch; to be compiled by the caller."""
    return jax.vmap(tasks.sample)(keys)


def task_keys(key: PRNGKeyArray, num_tasks: int) -> Key[Array, " n"]:
    """The keys of tasks 0, 1, ...: each depends on `key` and the task's number alone, never on how many there are."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(num_tasks))


def probe(
    learner: Learner,
    meta: Meta,
    tasks: TaskDraw,
    keys: Key[Array, " n"],
    keep: Keep,
    *,
    steps: int | None = None,
    task_chunk_size: int = BATCH,
) -> Any:
    """Draw a task for each key, adapt to it without randomness, and keep something of each.

    Args:
        learner: The learner.
        meta: Its meta-parameters.
        tasks: What draws the tasks.
        keys: A key for each task; see `task_keys`.
        keep: What is kept of a task, its predictor and its info.
        steps: Inner steps; None is the number used in training.
        task_chunk_size: Most tasks that are worked on at once.

    Returns:
        What `keep` returns, as NumPy arrays with a row for each task.
    """
    return map_drawn(adapt_and_keep(learner, meta, keep, steps), tasks, keys, task_chunk_size=task_chunk_size)


def map_drawn(
    fn: Callable[[Task], Any], tasks: TaskDraw, keys: Key[Array, " n"], *, task_chunk_size: int = BATCH
) -> Any:
    """`fn` of a task drawn for each key, batch after batch of one size, so that few numbers of tasks compile anew.

    Arrays that `fn` needs belong into an `eqx.Partial`, where they are data and not part of the compiled program.
    """
    num_tasks = keys.shape[0]
    size = min(BATCH, num_tasks)
    batches = []
    for start in range(0, num_tasks, size):
        chosen = np.minimum(np.arange(start, start + size), num_tasks - 1)  # the last batch repeats its last task
        batches.append(jax.device_get(_compiled_batch(fn, tasks, keys[chosen], task_chunk_size)))
    return jax.tree.map(lambda *each: np.concatenate(each)[:num_tasks], *batches)


def map_batch(fn: Callable[[Task], Any], tasks: TaskDraw, keys: Key[Array, " n"], task_chunk_size: int) -> Any:
    """`fn` of a task drawn for each key, all at once: part of a larger function that the caller compiles."""
    return over_tasks(lambda key: fn(tasks.sample(key)), keys, task_chunk_size=task_chunk_size)


_compiled_batch = eqx.filter_jit(map_batch)


def adapt_and_keep(learner: Learner, meta: Meta, keep: Keep, steps: int | None = None) -> Callable[[Task], Any]:
    """The function of a task that `probe` maps."""
    return eqx.Partial(_adapt_and_keep, learner, meta, steps, keep)


def _adapt_and_keep(learner: Learner, meta: Meta, steps: int | None, keep: Keep, task: Task) -> Any:
    return keep(task, *learner.adapt(meta, task.support, steps=steps))


def whole_task(task: Task) -> Task:
    """For `map_drawn`: the task itself."""
    return task


def family_of(task: Task) -> Array:
    """For `map_drawn`: the task's family alone, for which nothing else of a task is computed."""
    return task.family

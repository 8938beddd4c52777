"""Everything that maps over tasks: the meta-gradient of a batch, and one probe for everything else.

∇ (1/n) Σᵢ L(Θ, Tᵢ)                          `meta_gradient`, of tasks that are given
keep(Tᵢ, adapt(Θ, support of Tᵢ))            `probe`, of tasks that are drawn: scores, embeddings, assignments
"""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    progress: Float[Array, ""] | float = 1.0,
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
        progress: The part of the phase that is done, from 0 to 1.
        task_chunk_size: Most tasks computed at once: a larger batch is cut into equal blocks that follow each other.

    Returns:
        The loss, the learner's metrics, and the gradient, 0 for leaves that are not trained.
    """
    cut = Cut.of(tasks.family.shape[0], task_chunk_size)
    how = {"trainable": trainable, "loss": loss, "progress": progress}
    gradient = block_gradient_fn(learner, meta, tasks, cut, keys=jax.random.split(key, cut.num_tasks), **how)
    if cut.blocks == 1:
        return gradient(0)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(gradient, 0))
    return jax.lax.fori_loop(0, cut.blocks, lambda i, total: jax.tree.map(jnp.add, total, gradient(i)), zeros)


class Cut(NamedTuple):
    """Division of a batch into blocks of one size, each of which is computed at once and on one device.

    Blocks decide how sums are rounded; which devices compute them, and how many there are, does not.
    """

    num_tasks: int
    blocks: int
    size: int

    @classmethod
    def of(cls, num_tasks: int, task_chunk_size: int | None = None, task_blocks: int = 1) -> "Cut":
        """At least `task_blocks` blocks of at most `task_chunk_size` tasks, as far as there are tasks."""
        wanted = min(num_tasks, max(task_blocks, -(-num_tasks // (task_chunk_size or num_tasks))))
        size = -(-num_tasks // wanted)
        return cls(num_tasks, -(-num_tasks // size), size)

    @property
    def fills_up(self) -> bool:
        """Whether the last block is filled up, by repeating the last task with weight 0."""
        return self.blocks * self.size > self.num_tasks

    def block(self, batch: Any, i: Any) -> Any:
        """Block i of a batch: a tree of arrays with an axis of tasks."""
        places = jnp.minimum(i * self.size + jnp.arange(self.size), self.num_tasks - 1)
        return batch if self.blocks == 1 else jax.tree.map(lambda leaf: leaf[places], batch)

    def mean(self, values: Float[Array, " size"], i: Any) -> Float[Array, ""]:
        """Return the contribution of block i to the mean over all tasks."""
        if self.fills_up:
            values = jnp.where(i * self.size + jnp.arange(self.size) < self.num_tasks, values, 0)
        return values.sum() / self.num_tasks


def block_gradient_fn(
    learner: Learner,
    meta: Meta,
    tasks: Any,
    cut: Cut,
    *,
    keys: Key[Array, " n"],
    sample: Callable[[Any], Task] | None = None,
    trainable: Any = None,
    loss: str = "query",
    progress: Float[Array, ""] | float = 1.0,
) -> Callable[[Any], Gradient]:
    """A function of a block's number: what its tasks add to the meta-gradient of a batch.

    `keys` are the randomness of the learner in each task. With `sample`, `tasks` are keys, too, from which each block
    draws its own tasks.
    """
    batch = tasks, keys
    trained, fixed = eqx.partition(meta, learner.trainable(meta) if trainable is None else trainable)
    zeros = jax.tree.map(jnp.zeros_like, eqx.filter(fixed, eqx.is_inexact_array))

    def gradient(i: Any) -> Gradient:
        tasks, keys = cut.block(batch, i)
        tasks = tasks if sample is None else jax.vmap(sample)(tasks)

        @eqx.filter_value_and_grad(has_aux=True)
        def mean_loss(trained: Meta) -> tuple[Array, dict[str, Array]]:
            losses, metrics = losses_of(learner, eqx.combine(trained, fixed), tasks, keys, loss, progress)
            return cut.mean(losses, i), {name: cut.mean(values, i) for name, values in metrics.items()}

        (value, metrics), grads = mean_loss(trained)
        return value, metrics, eqx.combine(grads, zeros)

    return gradient


def losses_of(
    learner: Learner, meta: Meta, tasks: Task, keys: Array, loss: str, progress: Array | float
) -> tuple[Array, dict[str, Array]]:
    """The loss of each task of a batch, and the learner's metrics."""

    def one(task: Task, key: PRNGKeyArray) -> tuple[Array, dict[str, Array]]:
        return learner.phase_loss(loss, meta, task, key=key, progress=progress)

    return over_tasks(one, tasks, keys)


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
    assignments: Float[np.ndarray, "n k"] | None = None,
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
        assignments: Each task's first-level assignment, in place of the learner's own.

    Returns:
        What `keep` returns, as NumPy arrays with a row for each task.
    """
    fn = adapt_and_keep(learner, meta, keep, steps)
    given = () if assignments is None else (assignments,)
    return map_drawn(fn, tasks, keys, *given, task_chunk_size=task_chunk_size)


def map_drawn(
    fn: Callable[..., Any], tasks: TaskDraw, keys: Key[Array, " n"], *beside: Any, task_chunk_size: int = BATCH
) -> Any:
    """`fn` of a task drawn for each key, batch after batch of one size, so that few numbers of tasks compile anew.

    Arrays that `fn` needs belong into an `eqx.Partial`, where they are data and not part of the compiled program; those
    with a row for each task come after the keys, and `fn` gets the task's row of each.
    """
    num_tasks = keys.shape[0]
    size = min(BATCH, num_tasks)
    batches = []
    for start in range(0, num_tasks, size):
        chosen = np.minimum(np.arange(start, start + size), num_tasks - 1)  # the last batch repeats its last task
        rows = [jnp.asarray(each)[chosen] for each in beside]
        batches.append(jax.device_get(_compiled_batch(fn, tasks, keys[chosen], task_chunk_size, *rows)))
    return jax.tree.map(lambda *each: np.concatenate(each)[:num_tasks], *batches)


def map_batch(
    fn: Callable[..., Any], tasks: TaskDraw, keys: Key[Array, " n"], task_chunk_size: int, *beside: Array
) -> Any:
    """`fn` of a task drawn for each key, all at once: part of a larger function that the caller compiles."""
    return over_tasks(lambda key, *rows: fn(tasks.sample(key), *rows), keys, *beside, task_chunk_size=task_chunk_size)


_compiled_batch = eqx.filter_jit(map_batch)


def adapt_and_keep(learner: Learner, meta: Meta, keep: Keep, steps: int | None = None) -> Callable[..., Any]:
    """The function of a task that `probe` maps."""
    return eqx.Partial(_adapt_and_keep, learner, meta, steps, keep)


def _adapt_and_keep(learner: Learner, meta: Meta, steps: int | None, keep: Keep, task: Task, *assignment: Array) -> Any:
    given = {"assignment": assignment[0]} if assignment else {}
    return keep(task, *learner.adapt(meta, task.support, steps=steps, **given))


def whole_task(task: Task) -> Task:
    """For `map_drawn`: the task itself."""
    return task


def family_of(task: Task) -> Array:
    """For `map_drawn`: the task's family alone, for which nothing else of a task is computed."""
    return task.family

"""The tasks of one meta-split of a table, with their encoded rows on the device."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from metagrove.sources.episodes import draw
from metagrove.task import Examples, Task

__all__ = ["TableTasks", "whole_task", "whole_tasks"]


class TableTasks(eqx.Module):
    """The tasks of one meta-split; the rows of task t are `starts[t]` to `starts[t] + counts[t]`."""

    x: Float[Array, "n x"]
    y: Float[Array, "n y"]
    starts: Int[Array, " t"]
    counts: Int[Array, " t"]
    families: Int[Array, " t"]
    which: Int[Array, " w"]
    """Indices of the tasks to draw from, uniformly at random."""
    most: int = eqx.field(static=True)
    """Largest number of rows of a task."""
    shots: int = eqx.field(static=True)
    min_shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray) -> Task:
        """Draw one task and its support and query rows."""
        task_key, row_key, size_key = jax.random.split(key, 3)
        task = self.which[jax.random.randint(task_key, (), 0, len(self.which))]
        largest = jnp.minimum(self.shots, self.counts[task] - 1)
        size = jax.random.randint(size_key, (), jnp.minimum(self.min_shots, largest), largest + 1)
        return self._task(row_key, task, size, self.queries)

    def whole(self, task: Int[Array, ""]) -> Task:
        """Return all rows of one task, with a fixed choice of support rows."""
        size = jnp.minimum(self.shots, self.counts[task] - 1)
        return self._task(jax.random.fold_in(jax.random.key(0), task), task, size, max(1, self.most - self.shots))

    def each(self) -> "tuple[TableTasks, ...]":
        """Return a module for each task separately."""
        return tuple(eqx.tree_at(lambda one: one.which, self, self.which[i : i + 1]) for i in range(len(self.which)))

    def _task(self, key: PRNGKeyArray, task: Array, size: Array, num_queries: int) -> Task:
        """Draw `size` support rows of a task and up to `num_queries` of its other rows as query."""
        wanted = min(self.shots + num_queries, self.most)
        count = jnp.minimum(self.counts[task], wanted)
        rows = self.starts[task] + draw(key, jnp.arange(self.most) < self.counts[task], wanted)

        def examples(places: Array, last: Array) -> Examples:
            chosen = rows[jnp.minimum(places, wanted - 1)]
            return Examples(self.x[chosen], self.y[chosen], places < last)

        support = examples(jnp.arange(min(self.shots, self.most)), size)
        query = examples(size + jnp.arange(min(num_queries, self.most)), jnp.minimum(count, size + num_queries))
        return Task(support, query, self.families[task])


@eqx.filter_jit
def whole_task(tasks: TableTasks, task: Int[Array, ""]) -> Task:
    """Return all rows of one task; see `TableTasks.whole`."""
    return tasks.whole(task)


@eqx.filter_jit
def whole_tasks(tasks: TableTasks, which: Int[Array, " n"]) -> Task:
    """Return all rows of several tasks, stacked."""
    return jax.lax.map(tasks.whole, which)

"""The tasks of one meta-split of a table, drawn from their encoded rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from metagrove.sources.episodes import draw
from metagrove.sources.table_rows import RowsInMemory, RowsOnDisk
from metagrove.task import Examples, Task

__all__ = ["TableTasks", "whole_task", "whole_tasks"]


class TableTasks(eqx.Module):
    """Some tasks of one meta-split, `first` to `first + count`, drawn uniformly at random."""

    rows: RowsInMemory | RowsOnDisk
    first: Int[Array, ""]
    count: Int[Array, ""]
    most: int = eqx.field(static=True)
    """Largest number of rows of a task."""
    shots: int = eqx.field(static=True)
    min_shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray) -> Task:
        """Draw one task and its support and query rows."""
        task_key, row_key, size_key = jax.random.split(key, 3)
        task = self.first + jax.random.randint(task_key, (), 0, self.count)
        num_rows, family = self.rows.about(task)
        largest = jnp.minimum(self.shots, num_rows - 1)
        size = jax.random.randint(size_key, (), jnp.minimum(self.min_shots, largest), largest + 1)
        support, query = self._examples(row_key, task, num_rows, size, self.queries)
        return Task(support, query, family)

    def whole(self, task: Int[Array, ""]) -> Task:
        """Return all rows of one task, with a fixed choice of support rows."""
        num_rows, family = self.rows.about(task)
        key, size = jax.random.fold_in(jax.random.key(0), task), jnp.minimum(self.shots, num_rows - 1)
        return Task(*self._examples(key, task, num_rows, size, max(1, self.most - self.shots)), family)

    def one(self, task: int) -> "TableTasks":
        """Return a module for one of the tasks alone."""
        alone = jnp.asarray(task, jnp.int32), jnp.asarray(1, jnp.int32)
        return eqx.tree_at(lambda tasks: (tasks.first, tasks.count), self, alone)

    def _examples(
        self, key: PRNGKeyArray, task: Array, num_rows: Array, size: Array, num_queries: int
    ) -> tuple[Examples, Examples]:
        """Draw `size` support rows of a task and up to `num_queries` of its other rows as query."""
        wanted = min(self.shots + num_queries, self.most)
        drawn = draw(key, jnp.arange(self.most) < num_rows, wanted)
        support = jnp.arange(min(self.shots, self.most))
        query = size + jnp.arange(min(num_queries, self.most))
        places = jnp.concatenate([support, query])
        x, y = self.rows.take(task, drawn[jnp.minimum(places, wanted - 1)])
        last = jnp.minimum(jnp.minimum(num_rows, wanted), size + num_queries)
        n = len(support)
        return Examples(x[:n], y[:n], support < size), Examples(x[n:], y[n:], query < last)


@eqx.filter_jit
def whole_task(tasks: TableTasks, task: Int[Array, ""]) -> Task:
    """Return all rows of one task; see `TableTasks.whole`."""
    return tasks.whole(task)


@eqx.filter_jit
def whole_tasks(tasks: TableTasks, which: Int[Array, " n"]) -> Task:
    """Return all rows of several tasks, stacked."""
    return jax.lax.map(tasks.whole, which)

"""The encoded rows of the tasks of a split, in memory on the device or in files on disk."""

import functools
import mmap
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from metagrove.tables.store import TASK, Store
from metagrove.task import Split

TASKS_AT_ONCE = 512
"""Tasks whose rows are read before their pages are given back."""


class RowsInMemory(eqx.Module):
    """Rows on the device; those of task t are `starts[t]` to `starts[t] + counts[t]`."""

    x: Float[Array, "n x"]
    y: Float[Array, "n y"]
    starts: Int[Array, " t"]
    counts: Int[Array, " t"]
    families: Int[Array, " t"]

    def about(self, task: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The number of rows of a task, and its family."""
        return self.counts[task], self.families[task]

    def take(self, task: Int[Array, ""], places: Int[Array, " p"]) -> tuple[Float[Array, "p x"], Float[Array, "p y"]]:
        """The inputs and targets of some rows of a task."""
        rows = self.starts[task] + places
        return self.x[rows], self.y[rows]

    def all(self) -> tuple[Float[Array, "n x"], Float[Array, "n y"]]:
        """All inputs and targets."""
        return self.x, self.y


class RowsOnDisk(eqx.Module):
    """Rows in the files of a `tables.store`, read while compiled functions run; memory does not grow with the files."""

    folder: str = eqx.field(static=True)
    split: Split = eqx.field(static=True)
    x_dim: int = eqx.field(static=True)
    y_dim: int = eqx.field(static=True)

    def about(self, task: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The number of rows of a task, and its family."""
        scalar = jax.ShapeDtypeStruct((), jnp.int32)
        read = functools.partial(read_about, self)
        return jax.pure_callback(read, (scalar, scalar), task, vmap_method="broadcast_all")

    def take(self, task: Int[Array, ""], places: Int[Array, " p"]) -> tuple[Float[Array, "p x"], Float[Array, "p y"]]:
        """The inputs and targets of some rows of a task."""
        shape = jax.ShapeDtypeStruct((*places.shape, self.x_dim + self.y_dim), jnp.float32)
        read = functools.partial(read_rows, self)
        rows = jax.pure_callback(read, shape, task, places, vmap_method="broadcast_all")
        return rows[..., : self.x_dim], rows[..., self.x_dim :]

    def all(self) -> tuple[Float[Array, "n x"], Float[Array, "n y"]]:
        """All inputs and targets, in memory."""
        rows = jnp.asarray(mapped(self)[1].entries)
        return rows[:, : self.x_dim], rows[:, self.x_dim :]


class MappedFile:
    """A file of entries, mapped into memory.

    Pages that were read count as memory of the process, and are given back: the system keeps them while it has room.
    """

    def __init__(self, path: Path, dtype: np.dtype):
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.entries = np.frombuffer(self.map, dtype)

    def take(self, index: np.ndarray) -> np.ndarray:
        """Entries by index, with the axes of `index` first."""
        found = np.empty((*index.shape, *self.entries.shape[1:]), self.entries.dtype)
        for start in range(0, len(index), TASKS_AT_ONCE):
            found[start : start + TASKS_AT_ONCE] = self.entries[index[start : start + TASKS_AT_ONCE]]
            if hasattr(mmap, "MADV_DONTNEED"):
                self.map.madvise(mmap.MADV_DONTNEED)
        return found


@functools.lru_cache(maxsize=16)
def mapped(rows: RowsOnDisk) -> tuple[MappedFile, MappedFile]:
    """The tasks and the rows of a split."""
    path, width = Path(rows.folder) / rows.split, rows.x_dim + rows.y_dim
    tasks = MappedFile(path.with_suffix(".tasks"), TASK)
    return tasks, MappedFile(path.with_suffix(".rows"), np.dtype(("<f4", (width,))))


def read_about(rows: RowsOnDisk, task: Array) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of rows and the families of tasks."""
    which = np.asarray(task)
    found = mapped(rows)[0].take(which.reshape(-1)).reshape(which.shape)
    return found["count"], found["family"]


def read_rows(rows: RowsOnDisk, task: Array, places: Array) -> np.ndarray:
    """Some rows of tasks: the axes of `task`, then places, then values."""
    which, where = np.asarray(task), np.asarray(places)
    tasks, values = mapped(rows)
    index = tasks.take(which.reshape(-1))["start"][:, None] + where.reshape(which.size, -1)
    index = np.minimum(index, len(values.entries) - 1)  # padding may lie beyond the end, as for an array of JAX
    return values.take(index).reshape(*where.shape, -1)


def read_names(store: Store, split: Split, which: np.ndarray) -> tuple[str, ...]:
    """The names of some tasks."""
    entries = MappedFile(store.file(split, "tasks"), TASK).take(which)
    found = []
    with store.file(split, "names").open("rb") as file:
        for entry in entries:
            file.seek(int(entry["name"]))
            found.append(file.read(int(entry["name_size"])).decode())
    return tuple(found)

"""What draws tasks: a source itself or a module with its data, and a schedule of them over the meta-steps."""

from typing import Protocol, runtime_checkable

import equinox as eqx
from jaxtyping import Array, Int, PRNGKeyArray

from metagrove.task import Task

__all__ = ["Steady", "TaskDraw", "TaskSchedule"]


@runtime_checkable
class TaskDraw(Protocol):
    """Anything with `sample`: a source itself, or a pytree module with the data that it draws from."""

    def sample(self, key: PRNGKeyArray) -> Task:
        """One task, all of it decided by `key`."""
        ...


@runtime_checkable
class TaskSchedule(Protocol):
    """A pytree module that says what draws the training tasks of each meta-step; compiled into the training step."""

    def at(self, step: Int[Array, ""]) -> TaskDraw:
        """Return an object that draws the tasks of a meta-step."""
        ...


class Steady(eqx.Module):
    """The schedule of a source whose training tasks are drawn in the same way at every meta-step."""

    tasks: TaskDraw

    def at(self, step: Int[Array, ""]) -> TaskDraw:
        """The same tasks, whatever the meta-step."""
        del step
        return self.tasks

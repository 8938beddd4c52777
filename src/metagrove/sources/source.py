"""Where tasks come from."""

import abc
import dataclasses
from typing import Protocol, runtime_checkable

from jaxtyping import PRNGKeyArray

from metagrove.tables.schema import Schema
from metagrove.task import Spec, Split, Task


@runtime_checkable
class TaskDraw(Protocol):
    """Anything with `sample`: a source itself, or a pytree module with the data that it draws from."""

    def sample(self, key: PRNGKeyArray) -> Task:
        """One task, all of it decided by `key`."""
        ...


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
    """Settings, and a pure `sample` that is compiled into the training step. Subclasses are frozen dataclasses."""

    @property
    @abc.abstractmethod
    def spec(self) -> Spec:
        """What every task has in common."""

    @property
    def family_names(self) -> tuple[str, ...]:
        """Names of the kinds of task; `Task.family` is an index into them."""
        return ("task",)

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Task:
        """One task, all of it decided by `key`; every task has arrays of the same shapes (pad and mask)."""

    def split(self, name: Split) -> "TaskDraw":
        """What draws training, validation or test tasks; by default the same for all, each with its own keys.

        A source of stored data gives a module that holds the data of that split, so that it is on the device once.
        """
        del name
        return self

    def test_parts(self) -> "tuple[TaskDraw, ...]":
        """What draws test tasks; a source that can draw each family apart has a part for each."""
        return (self.split("test"),)

    @property
    def repeats_tasks(self) -> bool:
        """Are there so few tasks that the same ones are drawn again? Then a score is a task's mean over its draws."""
        return False

    @property
    def schema(self) -> Schema | None:
        """What the columns of the tasks' tables mean; None for tasks that are not tables."""
        return None

    @property
    def ignored_columns(self) -> tuple[str, ...] | None:
        """Columns that may stand in a table beside the schema's and are not read; None if that is any."""
        return ()

    def validation_errors(self) -> list[str]:
        """What is wrong with the settings, a line each."""
        return []

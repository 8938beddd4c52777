"""Where tasks come from."""

import abc
import dataclasses
from typing import Protocol, runtime_checkable

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.tables.schema import Schema
from metagrove.task import Spec, Split, Task


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
        """What draws the tasks of a meta-step."""
        ...


class Steady(eqx.Module):
    """The schedule of a source whose training tasks are drawn in the same way at every meta-step."""

    tasks: TaskDraw

    def at(self, step: Int[Array, ""]) -> TaskDraw:
        """The same tasks, whatever the meta-step."""
        del step
        return self.tasks


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
    """Settings, and a pure `sample` that is compiled into the training step. Subclasses are frozen dataclasses.

    A new source needs `spec` and `sample`. Everything else is a capability with a default: a source overrides what it
    can do beyond that, and training, evaluation and figures ask for it instead of looking at the source's class.
    """

    @property
    @abc.abstractmethod
    def spec(self) -> Spec:
        """What every task has in common."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Task:
        """One task, all of it decided by `key`; every task has arrays of the same shapes (pad and mask)."""

    def validation_errors(self) -> list[str]:
        """What is wrong with the settings, a line each."""
        return []

    @property
    def family_names(self) -> tuple[str, ...]:
        """Names of the kinds of task; `Task.family` is an index into them."""
        return ("task",)

    def split(self, name: Split) -> TaskDraw:
        """What draws training, validation or test tasks; by default the same for all, each with its own keys.

        A source of stored data gives a module that holds the data of that split, so that it is on the device once.
        """
        del name
        return self

    def parts(self, split: Split) -> tuple[TaskDraw, ...]:
        """What draws the tasks of a split; a source that can draw each family or task apart has a part for each."""
        return (self.split(split),)

    @property
    def repeats_tasks(self) -> bool:
        """Are there so few tasks that the same ones are drawn again? Then a score is a task's mean over its draws."""
        return False

    # A stream of tasks: training in phases, each with its own mix of families.

    @property
    def has_phases(self) -> bool:
        """Does the mix of training tasks change by a timetable? Then training, figures and results follow phases."""
        return False

    def schedule(self, steps: int) -> TaskSchedule:
        """What draws the training tasks at each of `steps` meta-steps."""
        del steps
        return Steady(self.split("train"))

    def begins(self, steps: int) -> list[int]:
        """The meta-step at which each phase begins, of so many meta-steps in all.

        Raises:
            InputError: if the phases do not fit into that number of meta-steps.
        """
        del steps
        return [0]

    def families_in(self, phase: int) -> tuple[str, ...]:
        """Names of the families that are drawn in a phase."""
        del phase
        return self.family_names

    def phase_at(self, step: int, steps: int) -> int:
        """The phase that a meta-step belongs to."""
        return sum(begin <= step for begin in self.begins(steps)) - 1

    def arrivals(self) -> dict[str, int]:
        """The phase in which each family is first drawn; a family that never is, is not among them."""
        return dict.fromkeys(self.family_names, 0)

    def arrived(self, step: int, steps: int) -> list[int]:
        """Families drawn up to a meta-step, by number."""
        now = self.phase_at(step, steps)
        return [self.family_names.index(name) for name, phase in self.arrivals().items() if phase <= now]

    # What is known of the tasks and of the data behind them.

    @property
    def schema(self) -> Schema | None:
        """What the columns of the tasks' tables mean; None for tasks that are not tables."""
        return None

    def rows(self, split: Split) -> tuple[Float[Array, "n x"], Float[Array, "n y"]] | None:
        """All rows of a split's tables, as nets see them; None for tasks that are not tables."""
        del split
        return None

    def task_names(self, split: Split) -> tuple[str, ...]:
        """The names of a split's tasks, in their order; empty where tasks are drawn and have no names."""
        del split
        return ()

    def task(self, split: Split, index: int) -> Task:
        """One of the tasks that have names.

        Raises:
            InputError: if the source's tasks have no names.
        """
        raise InputError(f"the tasks of {type(self).__name__} have no names: draw one of the {split} split with a key")

    def curve(self, key: PRNGKeyArray, x: Float[Array, "n 1"]) -> Float[Array, "n 1"] | None:
        """The function behind the task of that key, at any inputs; None where nobody knows it."""
        del key, x
        return None

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of the stored data that tasks are drawn from, by name; empty where there is none."""
        return {}

    @property
    def ignored_columns(self) -> tuple[str, ...] | None:
        """Columns that may stand in a table beside the schema's and are not read; None if that is any."""
        return ()

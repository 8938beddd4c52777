"""The interface of task sources."""

import abc
import dataclasses

from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.sources.draw import Steady, TaskDraw, TaskSchedule
from metagrove.tables.schema import Schema
from metagrove.task import Spec, Split, Task

__all__ = ["Source", "Steady", "TaskDraw", "TaskSchedule"]


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
    """Abstract base class of sources of tasks: settings, and a pure `sample` that is compiled into the training step.

    A subclass is a frozen dataclass and defines `spec` and `sample`. All other methods have defaults; a source
    overrides those for what it can do beyond drawing tasks.
    """

    @property
    @abc.abstractmethod
    def spec(self) -> Spec:
        """Shapes of the inputs and targets, which all tasks share."""

    @property
    def train_spec(self) -> Spec:
        """Shapes of training tasks, if they differ from `spec`, e.g. in the number of classes."""
        return self.spec

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Task:
        """Draw one task.

        Args:
            key: Random key; it determines the task completely.

        Returns:
            The task. All tasks have arrays of the same shapes; smaller ones are padded and masked.
        """

    def with_test_ways(self) -> "Source":
        """Return the source whose training tasks have as many classes as its test tasks.

        Returns:
            The source; by default the same.
        """
        return self

    def as_at_test(self) -> "Source":
        """Return the source without the settings that change training tasks alone.

        Returns:
            The source; it is equal for two sources that draw the same test tasks. By default the same.
        """
        return self

    @property
    def num_classes(self) -> int:
        """Number of training classes that `Task.classes` counts; 0 for a source whose tasks do not tell."""
        return 0

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            A message for each setting that cannot be used.
        """
        return []

    @property
    def family_names(self) -> tuple[str, ...]:
        """Names of the families of tasks; `Task.family` is an index into them."""
        return ("task",)

    def split(self, name: Split) -> TaskDraw:
        """Return the tasks of a meta-split; by default the same for every split, drawn with different keys.

        A source of stored data returns a module that holds the data of the split, so that it is on the device once.

        Args:
            name: "train", "validation" or "test".

        Returns:
            An object with `sample(key)`.
        """
        del name
        return self

    def parts(self, split: Split) -> tuple[TaskDraw, ...]:
        """Return the tasks of a split, separately for each family or task if the source can draw them separately.

        Args:
            split: "train", "validation" or "test".

        Returns:
            Objects with `sample(key)`; by default one for the whole split.
        """
        return (self.split(split),)

    @property
    def repeats_tasks(self) -> bool:
        """Whether the same few tasks are drawn repeatedly, so that a score is a task's mean over its draws."""
        return False

    @property
    def has_phases(self) -> bool:
        """Whether the mix of training tasks changes by a timetable."""
        return False

    def schedule(self, steps: int) -> TaskSchedule:
        """Return what draws the training tasks of each meta-step.

        Args:
            steps: Total number of meta-steps.

        Returns:
            A pytree module with `at(step)`, which returns an object with `sample(key)`.
        """
        del steps
        return Steady(self.split("train"))

    def begins(self, steps: int) -> list[int]:
        """Return the meta-step at which each phase begins.

        Args:
            steps: Total number of meta-steps.

        Returns:
            A meta-step for each phase; by default a single phase that begins at 0.

        Raises:
            InputError: If the phases do not fit into that number of meta-steps.
        """
        del steps
        return [0]

    def families_in(self, phase: int) -> tuple[str, ...]:
        """Return the families that are drawn in a phase.

        Args:
            phase: Index of the phase.

        Returns:
            Names of the families.
        """
        del phase
        return self.family_names

    def phase_at(self, step: int, steps: int) -> int:
        """Return the phase that a meta-step belongs to.

        Args:
            step: The meta-step, from 0.
            steps: Total number of meta-steps.

        Returns:
            Index of the phase.
        """
        return sum(begin <= step for begin in self.begins(steps)) - 1

    def arrivals(self) -> dict[str, int]:
        """Return the phase in which each family is first drawn.

        Returns:
            Index of the phase by name of the family, without families that are never drawn.
        """
        return dict.fromkeys(self.family_names, 0)

    def arrived(self, step: int, steps: int) -> list[int]:
        """Return the families that have been drawn up to a meta-step.

        Args:
            step: The meta-step, from 0.
            steps: Total number of meta-steps.

        Returns:
            Indices of the families.
        """
        now = self.phase_at(step, steps)
        return [self.family_names.index(name) for name, phase in self.arrivals().items() if phase <= now]

    @property
    def schema(self) -> Schema | None:
        """Columns of the tasks' tables and their encoding; None for tasks that are not tables."""
        return None

    def rows(self, split: Split) -> tuple[Float[Array, "n x"], Float[Array, "n y"]] | None:
        """Return all encoded rows of a split.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The inputs and the targets; None for tasks that are not tables.
        """
        del split
        return None

    def num_tasks(self, split: Split) -> int:
        """Return the number of tasks of a split.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The number of all tasks, also of those without a listed name; 0 if tasks are drawn without end.
        """
        return len(self.task_names(split))

    def task_names(self, split: Split) -> tuple[str, ...]:
        """Return the names of the tasks of a split, in their order; of very many tasks those of some.

        Args:
            split: "train", "validation" or "test".

        Returns:
            The names; empty if tasks are drawn and have no names.
        """
        del split
        return ()

    def task(self, split: Split, index: int) -> Task:
        """Return one of the named tasks.

        Args:
            split: "train", "validation" or "test".
            index: Index of the task in that split.

        Returns:
            The task.

        Raises:
            InputError: If the tasks of the source have no names.
        """
        raise InputError(f"the tasks of {type(self).__name__} have no names: draw one of the {split} split with a key")

    def whole_tasks(self, split: Split, num_tasks: int) -> Task | None:
        """Return all rows of up to so many tasks of a split.

        Args:
            split: "train", "validation" or "test".
            num_tasks: Largest number of tasks.

        Returns:
            The tasks, with a leading axis; None if tasks are drawn without end.
        """
        del split, num_tasks
        return None

    def curve(self, key: PRNGKeyArray, x: Float[Array, "n 1"]) -> Float[Array, "n 1"] | None:
        """Evaluate the function of a task at any points.

        Args:
            key: The key that the task was drawn with.
            x: Points at which to evaluate the function.

        Returns:
            Values of the function; None if it is not known.
        """
        del key, x
        return None

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 checksums of the stored data that tasks are drawn from, by name; empty if there is none."""
        return {}

    @property
    def ignored_columns(self) -> tuple[str, ...] | None:
        """Columns of a table beside the schema's that are allowed and not read; None if all are."""
        return ()

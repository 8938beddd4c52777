"""Where tasks come from."""

from typing import Protocol

from jaxtyping import PRNGKeyArray

from metagrove.task import Spec, Task


class Source(Protocol):
    """A frozen dataclass of settings whose `sample` is a pure function: compiled into the training step."""

    @property
    def spec(self) -> Spec:
        """What every task has in common."""
        ...

    @property
    def family_names(self) -> tuple[str, ...]:
        """Names of the kinds of task; `Task.family` is an index into them."""
        ...

    def sample(self, key: PRNGKeyArray) -> Task:
        """One task, all of it decided by `key`."""
        ...

    def problems(self) -> list[str]:
        """What is wrong with the settings, a line each."""
        ...

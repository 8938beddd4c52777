"""A stream of tasks whose mix changes as training goes on: families arrive, leave and return (paper, section 6).

The timetable is plain data and never depends on the model. A line of it says from when on which families are drawn:

    0: sinusoid line                      from the start
    15000: sinusoid line quadratic        from a meta-step on
    3/7: sinusoid line*2 quadratic        from a fraction of the budget on; lines twice as often as the source has them
"""

import dataclasses
import fractions
import itertools
import re
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from metagrove.errors import InputError, quoted
from metagrove.sources.functions import Functions
from metagrove.sources.images import Images
from metagrove.sources.source import Source, TaskDraw
from metagrove.task import Spec, Split, Task

__all__ = ["Mix", "Stream", "read_phase"]


@dataclasses.dataclass(frozen=True)
class Phase:
    """From `start` on (meta-steps, or a fraction of the budget below 1) families are drawn by these weights."""

    start: fractions.Fraction
    weights: dict[str, float]

    def begins(self, steps: int) -> int:
        """The meta-step at which it begins, of so many."""
        in_steps = self.start if self.start.denominator == 1 else self.start * steps
        return round(in_steps)


@dataclasses.dataclass(frozen=True)
class Stream(Source):
    """A source whose families arrive, leave and return by a timetable during training (paper, section 6).

    Validation and test tasks are those of the underlying source.

    Example:
        >>> import metagrove as mg
        >>> stream = mg.Stream(mg.Functions(), ("0: sinusoid line", "1/2: *"))
        >>> stream.begins(steps=1000)
        [0, 500]
    """

    source: Functions | Images | Source = Functions()
    """Where tasks come from."""
    timetable: tuple[str, ...] = ("0: sinusoid line", "3/14: sinusoid line quadratic", "3/7: *")
    """Lines `START: FAMILY FAMILY*WEIGHT ...`, START a meta-step or a fraction of the budget; `*` is every family."""

    @property
    def spec(self) -> Spec:
        return self.source.spec

    @property
    def train_spec(self) -> Spec:
        return self.source.train_spec

    @property
    def family_names(self) -> tuple[str, ...]:
        return self.source.family_names

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the timetable."""
        return tuple(read_phase(line, self.family_names) for line in self.timetable)

    def validation_errors(self) -> list[str]:
        problems = self.source.validation_errors()
        if problems:
            return problems
        try:
            phases = self.phases
        except InputError as error:
            return [str(error)]
        if not phases or phases[0].start != 0:
            return ["timetable must have lines, the first of them starting at 0"]
        if any(set(one.weights) - set(self.family_names) for one in phases):
            unknown = sorted({name for one in phases for name in one.weights} - set(self.family_names))
            return [f"timetable names {', '.join(unknown)}; the source has {', '.join(self.family_names)}"]
        return []

    def begins(self, steps: int) -> list[int]:
        begins = [phase.begins(steps) for phase in self.phases]
        if any(later <= earlier for earlier, later in itertools.pairwise(begins)) or begins[-1] >= steps:
            raise InputError(f"timetable must have increasing starts below --steps {steps}, got {begins}")
        return begins

    @property
    def has_phases(self) -> bool:
        return True

    def families_in(self, phase: int) -> tuple[str, ...]:
        return tuple(name for name in self.family_names if name in self.phases[phase].weights)

    def arrivals(self) -> dict[str, int]:
        first: dict[str, int] = {}
        for number, phase in enumerate(self.phases):
            for name in phase.weights:
                first.setdefault(name, number)
        return first

    def sample(self, key: PRNGKeyArray) -> Task:
        """Draw one task of the underlying source, regardless of the timetable.

        Args:
            key: Random key; it determines the task completely.

        Returns:
            The task.
        """
        return self.source.sample(key)

    def split(self, name: Split) -> TaskDraw:
        """Return the tasks of a meta-split.

        Args:
            name: "train" for tasks of the last phase; "validation" or "test" for tasks of every family.

        Returns:
            An object with `sample(key)`.
        """
        if name != "train":
            return self.source.split(name)
        tasks, keep = self._mixes()
        return Mix(tasks, keep[-1])

    def schedule(self, steps: int) -> "Flow":
        tasks, keep = self._mixes()
        return Flow(tasks, keep, jnp.array(self.begins(steps)))

    def _mixes(self) -> tuple[TaskDraw, Float[Array, "phases families"]]:
        """The source's training tasks, and with what probability a task of each family is kept in each phase."""
        tasks = self.source.split("train")
        weights = jnp.array([[phase.weights.get(name, 0.0) for name in self.family_names] for phase in self.phases])
        refuse_empty(tasks, weights, self.timetable)
        return tasks, weights / weights.max(1, keepdims=True)

    def parts(self, split: Split) -> tuple[TaskDraw, ...]:
        return super().parts(split) if split == "train" else self.source.parts(split)

    def curve(self, key: PRNGKeyArray, x: Float[Array, "n 1"]) -> Float[Array, "n 1"] | None:
        return self.source.curve(key, x)

    @property
    def checksums(self) -> dict[str, str]:
        return self.source.checksums


class Mix(eqx.Module):
    """Tasks of a source, kept with a probability by family and drawn anew otherwise."""

    tasks: TaskDraw
    keep: Float[Array, " families"]

    def sample(self, key: PRNGKeyArray) -> Task:
        """One task, all of it decided by `key`."""

        def refused(key: PRNGKeyArray) -> Bool[Array, ""]:
            draw_key, luck_key = jax.random.split(key)
            return jax.random.uniform(luck_key) >= self.keep[self.tasks.sample(draw_key).family]

        key = jax.lax.while_loop(refused, lambda key: jax.random.fold_in(key, 1), key)
        return self.tasks.sample(jax.random.split(key)[0])


class Flow(eqx.Module):
    """The training tasks of a stream at each meta-step. The starts of its phases are data: a run of another number of
    meta-steps compiles nothing anew."""

    tasks: TaskDraw
    keep: Float[Array, "phases families"]
    begins: Int[Array, " phases"]

    def at(self, step: Int[Array, ""]) -> Mix:
        """Return an object that draws the tasks of a meta-step."""
        return Mix(self.tasks, self.keep[(step >= self.begins).sum() - 1])


def read_phase(line: str, family_names: Sequence[str]) -> Phase:
    """One line of a timetable."""
    start, colon, names = line.partition(":")
    weights: dict[str, float] = {}
    try:
        for word in names.split():
            name, _, weight = word.rpartition("*") if re.search(r".\*[\d.]+$", word) else (word, "", "1")
            for one in family_names if name == "*" else [name]:
                weights.setdefault(one, float(weight))
        begin = fractions.Fraction(start.strip())
    except (ValueError, ZeroDivisionError):
        begin = fractions.Fraction(-1)
    whole_or_part = begin.denominator == 1 or begin < 1
    if not colon or not weights or begin < 0 or not whole_or_part or not min(weights.values()) > 0:
        raise InputError(
            f"timetable has a line {quoted(line)}: write it like '0: {family_names[0]}', a meta-step or a fraction "
            "of the budget such as 3/14 before the colon, families after it, a positive weight like *2 behind one"
        )
    return Phase(begin, weights)


LOOKED_AT = 5000
"""Number of tasks drawn to check that every family occurs."""


def refuse_empty(tasks: TaskDraw, weights: Float[Array, "phases families"], timetable: Sequence[str]) -> None:
    """Raise an InputError for a phase with a family of which the source has no tasks, since drawing would never end."""
    families = jax.jit(jax.vmap(lambda key: tasks.sample(key).family))(jax.random.split(jax.random.key(0), LOOKED_AT))
    counts = jnp.zeros(weights.shape[1]).at[families].add(1)
    missing = ((weights > 0) & (counts == 0)[None]).any(1)
    empty = [line for line, lacks in zip(timetable, missing, strict=True) if lacks]
    if empty:
        raise InputError(
            f"the source has no training task of a family in timetable line {quoted(empty[0])}: none in {LOOKED_AT}"
        )

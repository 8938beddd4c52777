"""A run fitted to many tasks at once, in few compiled calls."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from metagrove.config.config import Config
from metagrove.config.encoding import to_json
from metagrove.errors import InputError
from metagrove.learner import Info, Meta, Predictor
from metagrove.nets.predictors import HasStd, Statistics
from metagrove.serve.calibration import FILE as CALIBRATION
from metagrove.serve.calibration import Calibration, TaskCalibration, read_calibration
from metagrove.serve.compiled import adapt_batch, adapt_one, answer_batch
from metagrove.serve.conformal import tempered
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.rows import input_rows, padded_examples, padded_size
from metagrove.serve.standing import standing
from metagrove.serve.support import SupportRows
from metagrove.task import Examples
from metagrove.typed_json import raise_type_errors

__all__ = ["Fit", "FittedTasks"]

BATCH = 128
"""Maximum number of tasks in one compiled call."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """A run, and the settings with which it is fitted to tasks."""

    folder: Path
    config: Config
    meta: Meta
    steps: int
    statistics: Statistics

    def one(self, support: SupportRows) -> FittedTask:
        """Fit one task."""
        examples = padded_examples(support.x, support.y)
        fitted = adapt_one(self.config.learner, self.meta, examples, self.steps, self.statistics)
        refuse_not_finite(fitted[0])
        return self.task(*fitted, support)

    def task(self, predictor: Predictor, info: Info, support: SupportRows) -> FittedTask:
        """Return one fitted task, compared with the known tasks."""
        embedding = None if info.task_embedding is None else np.asarray(info.task_embedding)
        assignments = tuple(np.asarray(level) for level in info.assignments)
        about = {"run": self.folder.name, "rows": len(support.x), "inner_steps": self.steps}
        facts = standing(
            self.folder,
            self.config.learner,
            self.meta,
            embedding=embedding,
            assignments=assignments,
            novelty={name: float(value) for name, value in info.novelty.items()},
            rows=(support.x, support.y),
            schema=support.schema,
        )
        return FittedTask(
            learner=to_json(self.config)["learner"],
            spec=self.config.source.spec,
            schema=support.schema,
            predictor=predictor,
            support_size=padded_size(len(support.x)),
            about={**about, **facts},
            calibration=self.task_calibration(predictor, support),
            ignored=self.config.source.ignored_columns,
            statistics=self.statistics,
            task_embedding=embedding,
            assignments=assignments,
        )

    def task_calibration(self, predictor: Predictor, support: SupportRows) -> TaskCalibration | None:
        """The run's calibration for a task, if it applies; one that does not fit the run raises an error."""
        if (calibration := self.calibration) is None:
            return None
        found, spec = calibration.for_task(support.x), self.config.source.spec
        x_dim = spec.x_shape[0] if len(spec.x_shape) == 1 else 0
        errors = found.misfits(spec.y_dim, x_dim, has_std=isinstance(predictor, HasStd))
        raise_type_errors(errors, self.folder / CALIBRATION)
        return found

    @property
    def calibration(self) -> Calibration | None:
        """The run's calibration, if it applies to this number of inner steps and these statistics."""
        found = read_calibration(self.folder)
        holds = found is not None and found.inner_steps == self.steps and self.statistics == "support"
        return found if holds else None

    def many(self, supports: Sequence[SupportRows]) -> "FittedTasks":
        """Fit every task; tasks of the same padded size are fitted together."""
        groups, positions = [], [(0, 0)] * len(supports)
        for size, members in by_size(range(len(supports)), [support.x for support in supports]):
            width = min(BATCH, padded_size(len(members)))
            for start in range(0, len(members), width):
                batch = members[start : start + width]
                for at, i in enumerate(batch):
                    positions[i] = len(groups), at
                filled = batch + batch[-1:] * (width - len(batch))  # so that few batch sizes are compiled
                groups.append(self._batch([supports[i] for i in filled], size))
        return FittedTasks(self, tuple(supports), tuple(groups), tuple(positions))

    def _batch(self, supports: Sequence[SupportRows], size: int) -> tuple[Predictor, Info]:
        x, y = [support.x for support in supports], [support.y for support in supports]
        examples = Examples(*map(jnp.asarray, (stack(x, size), stack(y, size), real_rows(x, size))))
        return jax.device_get(adapt_batch(self.config.learner, self.meta, examples, self.steps, self.statistics))


@dataclasses.dataclass(frozen=True)
class FittedTasks(Sequence[FittedTask]):
    """A run fitted to many tasks, a sequence of `FittedTask`; `Run.adapt_many` creates it.

    Args:
        fit: The run, and how it is fitted.
        supports: Support set of each task.
        groups: Predictors and infos of a batch of tasks with the same padded size, stacked along a new first axis.
        positions: Group of each task, and its index in that group.
    """

    fit: Fit
    supports: tuple[SupportRows, ...]
    groups: tuple[tuple[Predictor, Info], ...]
    """Batches of tasks whose supports were padded to one size, stacked along a new first axis, in NumPy."""
    positions: tuple[tuple[int, int], ...]
    """Group of each task, and its index in that group."""

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, index: int) -> FittedTask: ...
    @overload
    def __getitem__(self, index: slice) -> list[FittedTask]: ...
    def __getitem__(self, index: int | slice) -> FittedTask | list[FittedTask]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        group, at = self.positions[index]
        predictor, info = map_arrays(lambda leaf: leaf[at], self.groups[group])
        support = self.supports[index]
        return self.fit.task(predictor, info, support)

    @property
    def task_embeddings(self) -> np.ndarray | None:
        """Each task's embedding, (tasks, d); None for a learner that does not embed tasks."""
        found = [self.groups[group][1].task_embedding for group, _ in self.positions]
        each = [stacked[at] for stacked, (_, at) in zip(found, self.positions, strict=True) if stacked is not None]
        return np.stack(each) if each else None

    @property
    def assignments(self) -> list[tuple[np.ndarray, ...]]:
        """Each task's soft assignment at every level; empty tuples for a learner without clusters."""
        return [
            tuple(np.asarray(level[at]) for level in self.groups[group][1].assignments) for group, at in self.positions
        ]

    @property
    def novelty(self) -> dict[str, np.ndarray]:
        """Each task's measures of novelty by name, (tasks,)."""
        each = [map_arrays(lambda leaf, at=at: leaf[at], self.groups[group][1].novelty) for group, at in self.positions]
        return {name: np.array([one[name] for one in each], np.float64) for name in each[0]}

    def std(self, inputs: Sequence[ArrayLike]) -> list[np.ndarray] | None:
        """Predict the standard deviation of each prediction, in few compiled calls.

        Args:
            inputs: An array of inputs for each task.

        Returns:
            An array for each task, in the net's units; None if the learner does not provide them.
        """
        return self._answers(inputs, std=True) if isinstance(self.groups[0][0], HasStd) else None

    def predict(self, inputs: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Predict the targets of new inputs of every task, in few compiled calls.

        Args:
            inputs: An array of inputs for each task.

        Returns:
            An array for each task, as from `FittedTask.predict`.

        Raises:
            InputError: If the number of arrays is not the number of tasks, or an array does not fit the run.
        """
        found, calibration = self._answers(inputs, std=False), self.fit.calibration
        cooled = calibration is not None and calibration.temperature != 1.0
        return [tempered(one, calibration.temperature) for one in found] if calibration and cooled else found

    def _answers(self, inputs: Sequence[ArrayLike], *, std: bool) -> list[np.ndarray]:
        if len(inputs) != len(self):
            raise InputError(f"one array of inputs for each of {len(self)} tasks, got {len(inputs)}")
        spec = self.fit.config.source.spec
        rows = [input_rows(x, spec) for x in inputs]
        outputs: list[Any] = [None] * len(self)
        for (predictors, _), of_group in zip(self.groups, self._members(), strict=True):
            width = jax.tree.leaves(predictors)[0].shape[0]
            for size, members in by_size(of_group, rows):
                filled = [rows[members[0]]] * width
                for i in members:
                    filled[self.positions[i][1]] = rows[i]
                queries = stack(filled, size), real_rows(filled, size)
                found = np.asarray(answer_batch(*queries, predictors, self.fit.statistics, std))
                for i in members:
                    outputs[i] = found[self.positions[i][1], : len(rows[i])]
        return outputs

    def _members(self) -> list[list[int]]:
        """The tasks of each group."""
        members: list[list[int]] = [[] for _ in self.groups]
        for i, (group, _) in enumerate(self.positions):
            members[group].append(i)
        return members


def refuse_not_finite(predictor: Predictor) -> None:
    """Raise an InputError if adapting to a support set diverged."""
    numbers = jax.tree.leaves(eqx.filter(predictor, eqx.is_inexact_array))
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in numbers):
        raise InputError(
            "adapting to these rows diverged: they lie too far from the training tasks, or the inner learning rate is "
            "too high; check the rows for errors, or use --inner-steps 0"
        )


def by_size(members: Sequence[int], rows: Sequence[np.ndarray]) -> list[tuple[int, list[int]]]:
    """The members by the size that their rows are padded to, in order of first appearance."""
    sizes: dict[int, list[int]] = {}
    for i in members:
        sizes.setdefault(padded_size(len(rows[i])), []).append(i)
    return list(sizes.items())


def stack(rows: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Sets of rows, each padded with zeros to `size`, along a new first axis."""
    stacked = np.zeros((len(rows), size, *rows[0].shape[1:]), rows[0].dtype)
    for at, one in enumerate(rows):
        stacked[at, : len(one)] = one
    return stacked


def real_rows(rows: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Masks of the same sets."""
    return np.arange(size)[None] < np.array([len(one) for one in rows])[:, None]


def map_arrays(fn: Callable[..., Any], *trees: Any) -> Any:
    """`fn` of the trees' arrays; other leaves of a user's own net are kept."""
    return jax.tree.map(lambda *leaves: fn(*leaves) if hasattr(leaves[0], "shape") else leaves[0], *trees)

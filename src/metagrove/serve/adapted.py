"""A learner fitted to a task, or to many tasks at once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from metagrove.errors import InputError
from metagrove.inner import repeat
from metagrove.learner import Info, Learner, Meta, Predictor
from metagrove.outer import over_tasks
from metagrove.serve.rows import input_rows, pad, padded_size
from metagrove.task import Examples, Spec

BATCH = 128
"""Most tasks in one compiled call."""
Rows = tuple[np.ndarray, np.ndarray]
"""Checked inputs and targets of one task."""


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A learner fitted to one task."""

    spec: Spec
    predictor: Predictor
    info: Info

    def predict(self, x: ArrayLike) -> np.ndarray:
        """Predictions for new inputs, a row each: values, or a classifier's log-probabilities."""
        return self._on_rows(_predict, x)

    def classify(self, x: ArrayLike) -> np.ndarray:
        """The most likely class of each row, as a number."""
        return self.predict(x).argmax(1)

    def spread(self, x: ArrayLike) -> np.ndarray | None:
        """Standard deviation of each prediction, from a learner that knows it (BMAML); None from any other."""
        return self._on_rows(_spread, x) if hasattr(self.predictor, "spread") else None

    def _on_rows(self, fn: Callable[..., jax.Array], x: ArrayLike) -> np.ndarray:
        rows = input_rows(x, self.spec)
        size = padded_size(len(rows))
        out = fn(self.predictor, jnp.asarray(pad(rows, size)), jnp.asarray(np.arange(size) < len(rows)))
        return np.asarray(out)[: len(rows)]

    @property
    def assignments(self) -> tuple[np.ndarray, ...]:
        """Each level's soft assignment, (K, K') with rows that sum to 1; empty for a learner without clusters."""
        return tuple(np.asarray(level) for level in self.info.assignments)

    @property
    def task_embedding(self) -> np.ndarray | None:
        """Where the task stands, g; None for a learner that does not embed tasks."""
        return None if self.info.task_embedding is None else np.asarray(self.info.task_embedding)


@dataclasses.dataclass(frozen=True)
class AdaptedTasks(Sequence[Adapted]):
    """A learner fitted to many tasks; each is an `Adapted`, whose `info` has no penalty and no path but its end."""

    spec: Spec
    groups: tuple[tuple[Predictor, Info], ...]
    """Tasks whose supports were padded to one size, their arrays stacked along a new first axis, in NumPy."""
    places: tuple[tuple[int, int], ...]
    """Each task's group, and where it is in it."""

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Adapted: ...
    @overload
    def __getitem__(self, index: slice) -> list[Adapted]: ...
    def __getitem__(self, index: int | slice) -> Adapted | list[Adapted]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        group, at = self.places[index]
        predictor, info = map_arrays(lambda leaf: leaf[at], self.groups[group])
        return Adapted(self.spec, predictor, info)

    def predict(self, inputs: Sequence[ArrayLike]) -> list[np.ndarray]:
        """Predictions for new inputs of each task, all in few calls."""
        if len(inputs) != len(self):
            raise InputError(f"one array of inputs for each of {len(self)} tasks, got {len(inputs)}")
        rows = [input_rows(x, self.spec) for x in inputs]
        outputs: list[Any] = [None] * len(self)
        for number, (predictors, _) in enumerate(self.groups):
            for size, members in by_size([i for i, (group, _) in enumerate(self.places) if group == number], rows):
                at = np.array([self.places[i][1] for i in members])
                stacked = stack([rows[i] for i in members], size), real_rows([rows[i] for i in members], size)
                chosen = map_arrays(lambda leaf, at=at: leaf[at], predictors)
                found = in_batches(_predict_batch, (*stacked, chosen), len(members))
                for i, values in zip(members, found, strict=True):
                    outputs[i] = values[: len(rows[i])]
        return outputs


def adapt_tasks(learner: Learner, meta: Meta, spec: Spec, supports: Sequence[Rows], steps: int) -> AdaptedTasks:
    """Fit every task, those of one padded size together."""
    inputs = [x for x, _ in supports]
    groups, places = [], [(0, 0)] * len(supports)
    for size, members in by_size(range(len(supports)), inputs):
        x, y = (stack([supports[i][part] for i in members], size) for part in (0, 1))
        examples = x, y, real_rows([inputs[i] for i in members], size)

        def fit(*examples: np.ndarray) -> Any:
            return _adapt_batch(learner, meta, Examples(*map(jnp.asarray, examples)), steps)

        for at, i in enumerate(members):
            places[i] = len(groups), at
        groups.append(in_batches(fit, examples, len(members)))
    return AdaptedTasks(spec, tuple(groups), tuple(places))


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


def in_batches(fn: Callable[..., Any], batched: tuple[Any, ...], count: int) -> Any:
    """`fn` of trees with a first axis of tasks, so many of them at a time that few numbers compile anew."""
    size = min(BATCH, padded_size(count))
    found = []
    for start in range(0, count, size):
        chosen = np.minimum(np.arange(start, start + size), count - 1)  # the last batch is filled up with its last task
        found.append(jax.device_get(fn(*map_arrays(lambda leaf, chosen=chosen: leaf[chosen], batched))))
    return map_arrays(lambda *each: np.concatenate(each)[:count], *found)


def map_arrays(fn: Callable[..., Any], *trees: Any) -> Any:
    """`fn` of the trees' arrays; what else a person's own net holds stays as it is."""
    return jax.tree.map(lambda *leaves: fn(*leaves) if hasattr(leaves[0], "shape") else leaves[0], *trees)


def _adapt(learner: Learner, meta: Meta, support: Examples, steps: int) -> tuple[Predictor, Info]:
    predictor, info = learner.adapt(meta, support, steps=steps)
    seen = dataclasses.replace(info, path=repeat(predictor, 1), penalty=jnp.zeros(()), metrics={})
    return predictor, seen  # what only training looks at is not computed


QUICK: Any = {"compiler_options": {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}}
adapt_once = eqx.filter_jit(_adapt, **QUICK)
"""`adapt` without randomness for a process that does it once: compiled in half the time, to slower code."""


@eqx.filter_jit
def adapt_one(learner: Learner, meta: Meta, support: Examples, steps: int) -> tuple[Predictor, Info]:
    """`adapt` without randomness, compiled."""
    return learner.adapt(meta, support, steps=steps)


@eqx.filter_jit
def _adapt_batch(learner: Learner, meta: Meta, supports: Examples, steps: int) -> tuple[Predictor, Info]:
    return over_tasks(lambda support: _adapt(learner, meta, support, steps), supports)


@eqx.filter_jit
def _predict(predictor: Predictor, x: jax.Array, mask: jax.Array) -> jax.Array:
    return predictor(x, mask)


@eqx.filter_jit
def _predict_batch(x: Any, mask: Any, predictors: Predictor) -> jax.Array:
    return over_tasks(lambda x, mask, predictor: predictor(x, mask), x, mask, predictors)


@eqx.filter_jit
def _spread(predictor: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
    return predictor.spread(x, mask)

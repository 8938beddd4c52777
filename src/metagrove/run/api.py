"""Runs from Python: train or load one, adapt it to a few rows, predict."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from metagrove import files
from metagrove.errors import InputError
from metagrove.learner import Info, Learner, Meta, Predictor
from metagrove.losses import metric_of
from metagrove.run import checkpoint, folders
from metagrove.run.config import Config, check_config, from_json
from metagrove.run.evaluate import Scores, join_scores, score_tasks
from metagrove.run.growth import as_grown
from metagrove.run.presets import default_learner, preset
from metagrove.run.randomness import stream
from metagrove.run.train import train as train_into
from metagrove.sources import Source
from metagrove.task import Examples, Spec, all_real, pad_rows


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
        padded = pad_rows(all_real(rows, rows), padded_size(len(rows)))
        return np.asarray(fn(self.predictor, padded.x, padded.mask))[: len(rows)]

    @property
    def assignments(self) -> tuple[np.ndarray, ...]:
        """Each level's soft assignment, (K, K') with rows that sum to 1; empty for a learner without clusters."""
        return tuple(np.asarray(level) for level in self.info.assignments)

    @property
    def task_embedding(self) -> np.ndarray | None:
        """Where the task stands, g; None for a learner that does not embed tasks."""
        return None if self.info.task_embedding is None else np.asarray(self.info.task_embedding)


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained learner. `about` says which checkpoint it is and what it scored on validation tasks."""

    folder: Path
    config: Config
    meta: Meta
    about: dict[str, Any]

    @property
    def metric(self) -> str:
        """What scores are, e.g. mse or accuracy."""
        return metric_of(self.config.learner.loss).name

    @property
    def inner_steps(self) -> int:
        """Inner steps at test, chosen on validation tasks."""
        return self.about["validation"]["steps"]

    def adapt(self, x: ArrayLike, y: ArrayLike, *, steps: int | None = None) -> Adapted:
        """Fit a new task from its few rows; a classifier's `y` may be the classes' numbers, 0 to ways - 1.

        Pictures have values from 0 to 1, or are uint8.
        """
        spec = self.config.source.spec
        y = one_hot(y, spec.y_dim) if self.metric == "accuracy" and np.ndim(np.asarray(y)) == 1 else y
        support = support_rows(x, y, spec)
        padded = pad_rows(support, padded_size(len(support.mask)))
        steps = self.inner_steps if steps is None else steps
        predictor, info = _adapt(self.config.learner, self.meta, padded, steps)
        return Adapted(spec, predictor, info)

    def scores(self, *, num_tasks: int, seed: int, steps: int | None = None, every_step: bool = True) -> Scores:
        """Every test task's score after 0, 1, ... inner steps; by default up to as many as validation looked at.

        Of a source whose families can be drawn apart, each has its equal part of the tasks, one family after another.
        """
        source = self.config.source
        parts = source.test_parts()
        sizes = [num_tasks // len(parts) + (i < num_tasks % len(parts)) for i in range(len(parts))]
        key = stream("test", seed)
        keys = [key] if len(parts) == 1 else [jax.random.fold_in(key, i) for i in range(len(parts))]
        how = {
            "steps": self.config.training.test_steps if steps is None else steps,
            "every_step": every_step,
            "tasks_in_flight": self.config.training.tasks_in_flight,
        }
        scored = [
            score_tasks(self.config.learner, self.meta, part, key=part_key, num_tasks=size, **how)
            for part, part_key, size in zip(parts, keys, sizes, strict=True)
        ]
        return join_scores(scored)


def load(folder: str | Path, *, learner: Learner | None = None, source: Source | None = None) -> Run:
    """A run from its folder, or a released model by name. A run with your own learner or source needs it passed."""
    path = folders.resolve(folder)
    config = from_json(files.read_json(path / "run.json")["config"], learner=learner, source=source)
    check_config(config)
    config = as_grown(config, files.read_json(path / "best.json"))
    like = eqx.filter_eval_shape(functools.partial(config.learner.init, config.source.spec), key=stream("init", 0))
    meta, about = checkpoint.load(path, "best", like)
    return Run(path, config, meta, about)


def train(
    name: str | Config,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    learner: Learner | str | None = None,
    source: Source | None = None,
    **settings: Any,
) -> Run:
    """Train a preset (or a config), with settings changed as on the command line, e.g. `steps=500, shots=10`."""
    config = name if isinstance(name, Config) else preset(name)
    if isinstance(learner, str):
        learner = default_learner(learner, config)
    own = {"learner": learner, "source": source}
    config = dataclasses.replace(config, **{key: value for key, value in own.items() if value is not None})
    config = config.with_settings(**settings)
    folder = Path(out) if out is not None else default_folder(name if isinstance(name, str) else "own", config)
    called = repr(name) if isinstance(name, str) else "Config(...)"
    if not train_into(config, folder, resume=resume, command=f"metagrove.train({called}, ...)"):
        raise KeyboardInterrupt
    return load(folder, learner=config.learner, source=config.source)


def default_folder(name: str, config: Config) -> Path:
    """Where a run goes when nobody says: runs/PRESET-LEARNER-sSEED."""
    return Path("runs") / f"{name}-{type(config.learner).__name__.lower()}-s{config.training.seed}"


@eqx.filter_jit
def _adapt(learner: Learner, meta: Meta, support: Examples, steps: int) -> tuple[Predictor, Info]:
    return learner.adapt(meta, support, steps=steps)


@eqx.filter_jit
def _predict(predictor: Predictor, x: jax.Array, mask: jax.Array) -> jax.Array:
    return predictor(x, mask)


@eqx.filter_jit
def _spread(predictor: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
    return predictor.spread(x, mask)


def padded_size(num_rows: int) -> int:
    """Row counts are rounded up to a power of two, so that few of them compile anew."""
    return max(4, 1 << (num_rows - 1).bit_length())


def one_hot(labels: ArrayLike, num_classes: int) -> np.ndarray:
    """Classes by number as rows of 0 and a 1."""
    numbers = np.asarray(labels)
    if not np.isin(numbers, range(num_classes)).all():
        raise InputError(f"y must be numbers of classes from 0 to {num_classes - 1}, got {numbers.tolist()}")
    return np.eye(num_classes, dtype=np.float32)[numbers.astype(int)]


def support_rows(x: ArrayLike, y: ArrayLike, spec: Spec) -> Examples:
    """Checked support examples."""
    inputs = input_rows(x, spec)
    targets = numeric_rows("y", y, (spec.y_dim,))
    if len(inputs) != len(targets):
        raise InputError(f"x and y must have the same number of rows, got {len(inputs)} and {len(targets)}")
    return all_real(inputs, targets)


def shortened(row: np.ndarray) -> str:
    """A row for a message, not longer than one can read."""
    text = str(row.tolist())
    return text if len(text) < 200 else text[:200] + " ..."


def input_rows(x: ArrayLike, spec: Spec) -> jax.Array:
    """Checked inputs."""
    if isinstance(x, np.ndarray) and x.dtype == np.uint8 and len(spec.x_shape) == 3:
        x = x.astype(np.float32) / 255
    return numeric_rows("x", x, spec.x_shape)


def numeric_rows(name: str, values: ArrayLike, row_shape: tuple[int, ...]) -> jax.Array:
    """An (n, *row_shape) array of finite numbers; a plain list of numbers will do where a row is one number."""
    expected = f"({', '.join(['n', *map(str, row_shape)])})"
    try:
        array = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers of shape {expected}: {error}") from error
    if row_shape == (1,) and array.ndim == 1:
        array = array[:, None]
    if array.ndim != 1 + len(row_shape) or array.shape[1:] != row_shape:
        raise InputError(f"{name} must have shape {expected}, got {array.shape}: one row an example")
    if len(array) == 0:
        raise InputError(f"{name} is empty: give at least one row")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0])
        raise InputError(f"{name} must be finite, row {row} is {shortened(array[row])}: drop or mend that row")
    return jnp.asarray(array)

"""Loading of saved fitted tasks."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from metagrove import files
from metagrove.config.encoding import learner_from_json
from metagrove.config.validate import MOST, setting_errors
from metagrove.errors import RunError
from metagrove.learner import Learner, Predictor
from metagrove.nets.predictors import HasStd, Statistics
from metagrove.serve.calibration import TaskCalibration
from metagrove.serve.compiled import fit_support
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.standing import AboutRecord
from metagrove.tables.schema import Schema, migrate_schema
from metagrove.task import Examples, Spec
from metagrove.training import checkpoint
from metagrove.typed_json import raise_type_errors, type_errors

__all__ = ["load_fitted"]

NEEDS = (
    *("spec", "spec.x_shape", "spec.y_dim", "schema", "support_size", "learner", "about"),
    *(f"about.{name}" for name in ("run", "rows", "inner_steps", "clusters", "most_like")),
)
"""Required keys of a fitted task."""


@dataclasses.dataclass(frozen=True)
class SpecRecord:
    """Shapes of inputs and targets."""

    x_shape: tuple[int, ...]
    y_dim: int


@dataclasses.dataclass(frozen=True)
class FittedRecord:
    """adapted.json; version 0.1 has the first of these only."""

    format: int
    spec: SpecRecord
    schema: dict[str, Any]
    support_size: int
    learner: dict[str, Any]
    about: AboutRecord
    ignored: tuple[str, ...] | None = None
    statistics: Statistics = "support"
    task_embedding: list[float] | None = None
    assignments: list[list[list[float]]] = dataclasses.field(default_factory=list)
    calibration: TaskCalibration | None = None


def load_fitted(folder: str | Path, *, learner: Learner | None = None) -> FittedTask:
    """Load a fitted task that `FittedTask.save` wrote.

    Args:
        folder: The folder that it was saved to.
        learner: The learner, if the task was fitted with a user's own learner or base net.

    Returns:
        The fitted task.

    Raises:
        RunError: If the folder has no fitted task, or it is damaged or of a newer version.

    Example:
        >>> import metagrove as mg
        >>> mg.load_fitted("my-task").predict("rows.csv")  # doctest: +SKIP
    """
    path = Path(folder)
    if not (path / "adapted.json").exists():
        raise RunError(
            f"{path} holds no adapted task (it has no adapted.json): make one with `metagrove adapt RUN --support "
            f"FILE --out {path}`, or give --support as well"
        )
    file = path / "adapted.json"
    record = files.read_record(FittedRecord, file, needs=NEEDS)
    record = dataclasses.replace(record, schema=migrate_schema(record.schema))
    raise_type_errors(fitted_errors(record), file)
    spec, schema = Spec(record.spec.x_shape, record.spec.y_dim), Schema.from_json(record.schema)
    learner = learner or checked_learner(record, file)
    predictor, stored = checkpoint.load(path, "adapted", blank(learner, spec, record.support_size, record.statistics))
    errors = type_errors(AboutRecord, stored["about"], "about")
    raise_type_errors(errors or misfits(record, schema, has_std=isinstance(predictor, HasStd)), file)
    return FittedTask(
        record.learner,
        spec,
        schema,
        predictor,
        record.support_size,
        stored["about"],
        record.ignored,
        record.statistics,
        None if record.task_embedding is None else np.asarray(record.task_embedding, np.float32),
        tuple(np.asarray(level, np.float32) for level in record.assignments),
        record.calibration,
    )


def fitted_errors(record: FittedRecord) -> list[str]:
    """List errors in the sizes and the schema of a fitted task."""
    sizes = (*record.spec.x_shape, record.spec.y_dim, record.support_size)
    fits = all(1 <= size <= MOST["shots"] for size in sizes) and 1 <= len(record.spec.x_shape) <= 3
    problems = [] if fits else [f"spec must have sizes from 1 to {MOST['shots']:,}"]
    return problems + setting_errors(Schema, record.schema, "schema")


def checked_learner(record: FittedRecord, file: Path) -> Learner:
    """The learner of a fitted task, after a check of its settings."""
    learner = learner_from_json(record.learner, file_format=record.format)
    net: Any = getattr(learner, "net", None)
    problems = learner.validation_errors() + (net.validation_errors() if hasattr(net, "validation_errors") else [])
    raise_type_errors([f"learner: {line}" for line in problems], file)
    return learner


def misfits(record: FittedRecord, schema: Schema, *, has_std: bool) -> list[str]:
    """List inconsistencies between the parts of a fitted task."""
    problems, x_shape, y_dim = record.about.misfits(), record.spec.x_shape, record.spec.y_dim
    if not schema.targets or (schema.inputs and (schema.x_dim,) != x_shape):
        problems += [f"schema must have targets, and inputs of {x_shape[0]} values"]
    elif schema.y_dim > y_dim or (schema.y_dim < y_dim and (schema.inputs or not schema.classifies)):
        problems += [f"schema.targets must have {y_dim} values"]
    if any(len({len(row) for row in level}) > 1 for level in record.assignments):
        problems += ["assignments must be matrices"]
    if record.calibration is not None:
        problems += record.calibration.misfits(y_dim, x_shape[0] if len(x_shape) == 1 else 0, has_std=has_std)
    return problems


def blank(learner: Learner, spec: Spec, support_size: int, statistics: Statistics) -> Predictor:
    """A predictor's arrays as shapes."""

    def adapted(key: jax.Array) -> Predictor:
        x, y = jnp.zeros((support_size, *spec.x_shape)), jnp.zeros((support_size, spec.y_dim))
        support = Examples(x, y, jnp.ones(support_size, bool))
        return fit_support(learner, learner.init(spec, key=key), support, 0, statistics)[0]

    return eqx.filter_eval_shape(adapted, jax.random.key(0))

"""Loading of saved fitted tasks."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from metagrove import files
from metagrove.config.encoding import learner_from_json
from metagrove.errors import RunError
from metagrove.learner import Learner, Predictor
from metagrove.nets.predictors import Statistics
from metagrove.serve.calibration import TaskCalibration
from metagrove.serve.compiled import fit_support
from metagrove.serve.fitted_task import FittedTask
from metagrove.tables.schema import Schema
from metagrove.task import Examples, Spec
from metagrove.training import checkpoint


def read_kept(path: Path) -> files.Json:
    """Read the record of a fitted task in a folder."""
    if not (path / "adapted.json").exists():
        raise RunError(
            f"{path} holds no adapted task (it has no adapted.json): make one with `metagrove adapt RUN --support "
            f"FILE --out {path}`, or give --support as well"
        )
    return files.read_json(path / "adapted.json")


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
    kept = read_kept(path)
    try:
        spec = Spec(tuple(kept["spec"]["x_shape"]), kept["spec"]["y_dim"])
        schema, size, made_with = Schema.from_json(kept["schema"]), int(kept["support_size"]), kept["learner"]
        ignored, about = None if kept["ignored"] is None else tuple(kept["ignored"]), kept["about"]
    except (KeyError, TypeError) as error:
        raise RunError(f"{path / 'adapted.json'} lacks {error}: adapt again") from error
    statistics: Statistics = kept.get("statistics", "support")  # version 0.1 knew no other, nor those below
    embedding, assignments = kept.get("task_embedding"), kept.get("assignments", ())
    calibration = kept.get("calibration")
    learner = learner or learner_from_json(made_with, file_format=kept["format"])
    predictor, _ = checkpoint.load(path, "adapted", blank(learner, spec, size, statistics))
    return FittedTask(
        made_with,
        spec,
        schema,
        predictor,
        size,
        about,
        ignored,
        statistics,
        None if embedding is None else np.asarray(embedding, np.float32),
        tuple(np.asarray(level, np.float32) for level in assignments),
        None if calibration is None else files.from_json(TaskCalibration, calibration),
    )


def blank(learner: Learner, spec: Spec, support_size: int, statistics: Statistics) -> Predictor:
    """The shapes of a predictor."""

    def adapted(key: jax.Array) -> Predictor:
        x, y = jnp.zeros((support_size, *spec.x_shape)), jnp.zeros((support_size, spec.y_dim))
        support = Examples(x, y, jnp.ones(support_size, bool))
        return fit_support(learner, learner.init(spec, key=key), support, 0, statistics)[0]

    return eqx.filter_eval_shape(adapted, jax.random.key(0))

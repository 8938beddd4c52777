"""A trained run: load it, adapt it to the support set of a new task, score it on test tasks."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
from numpy.typing import ArrayLike

from metagrove.config.config import Config, check_config
from metagrove.config.encoding import from_json
from metagrove.config.registry import name_of
from metagrove.errors import InputError
from metagrove.files import Json
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta
from metagrove.losses import metric_of
from metagrove.nets.predictors import STATISTICS, Statistics
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.fitted_tasks import Fit, FittedTasks
from metagrove.serve.rows import support_sets
from metagrove.serve.served import baseline_folder, read_served, refuse_unknown
from metagrove.serve.support import SupportRows, array_schema, read_support, table_schema
from metagrove.sources.source import Source
from metagrove.tables.schema import Schema
from metagrove.training import checkpoint, folders
from metagrove.training.growth import as_grown
from metagrove.training.scores import Scores, join_scores, score_tasks, test_parts

__all__ = ["Run", "draws_of", "load"]


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained run: a learner with its meta-parameters; `train` and `load` return it.

    Args:
        folder: The run folder.
        config: Source, learner and settings of training.
        meta: The meta-parameters at the best checkpoint by validation.
        about: Record of that checkpoint, with its validation.
        serves: Whether `adapt` uses the winner on validation tasks, if that is not the run's own learner.

    Example:
        >>> import metagrove as mg
        >>> run = mg.load("toy-5shot-best")
        >>> run.metric
        'mse'
    """

    folder: Path
    config: Config
    meta: Meta
    about: Json
    serves: bool = True
    """Whether `adapt` uses the winner on validation tasks (`served`), if that is not the run's own learner."""

    def __repr__(self) -> str:
        return f"<{type(self.config.learner).__name__} run {self.folder.name}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Run":
        return self  # it is immutable; scikit-learn copies an estimator's settings for every fold

    @property
    def metric(self) -> str:
        """Name of the metric of scores: accuracy for a classifier, otherwise that of the loss, e.g. mse."""
        return metric_of(self.config.learner.loss).name

    @property
    def inner_steps(self) -> int:
        """Number of inner steps at test, selected on validation tasks."""
        return self.about["validation"]["steps"]

    @property
    def classifies(self) -> bool:
        """Whether the targets are classes."""
        return self.metric == "accuracy"

    @property
    def schema(self) -> Schema | None:
        """Columns of its tables; x (or x1, ...) and y if they have no names; None for images and unnamed classes."""
        return table_schema(self.config.source, classifies=self.classifies)

    @property
    def learner_name(self) -> str:
        """Registered name of its learner, or the name of a user's own class."""
        return name_of("learner", self.config.learner) or type(self.config.learner).__name__

    def alone(self) -> "Run":
        """The same run, adapting with its own learner.

        Returns:
            The run.
        """
        return dataclasses.replace(self, serves=False)

    def using(self, learner: str | None = None) -> "Run":
        """The run that adapts: the winner on validation tasks if baselines were measured, or the learner of that name.

        Args:
            learner: The name of the run's own learner, e.g. "hsml", or the name of one of its baselines, e.g.
                "mixed-model"; by default the served one.

        Returns:
            A run.

        Raises:
            InputError: If the run has no such learner.
        """
        served = read_served(self.folder) if self.serves and learner is None else None
        name = learner or (served.name if served else self.learner_name)
        if name == self.learner_name:
            return self.alone()
        folder = baseline_folder(self.folder, name)
        if not (folder / "run.json").exists():
            raise refuse_unknown(self.folder, name, self.learner_name)
        return load(folder, source=self.config.source).alone()

    def adapt(
        self,
        support: Any,
        y: ArrayLike | None = None,
        *,
        steps: int | None = None,
        statistics: Statistics = "support",
        learner: str | None = None,
    ) -> FittedTask:
        """Adapt to a new task from its support set.

        Args:
            support: Inputs as an array, with `y`; or a table with inputs and targets (path, DataFrame or mapping of
                columns); for images also a folder class/*.jpg. Arrays are in the net's units: images in [0, 1] or
                uint8; for a run on a user's own tables, standardised values (a table has the user's units).
            y: Targets as an array; for a classifier, indices of classes from 0 to ways - 1, or their names.
            steps: Number of inner steps; by default the number selected on validation tasks.
            statistics: Whose statistics normalise images. With "support", a prediction does not depend on other rows;
                with "query", the rows of one call are normalised together (transductive).
            learner: Name of the learner or baseline to use; by default the winner on validation tasks (`using`).

        Returns:
            The fitted task.

        Raises:
            InputError: If the rows do not fit the run; the message names row and column.

        Example:
            >>> import metagrove as mg
            >>> run = mg.load("toy-5shot-best")
            >>> run.adapt("support.csv").predict("rows.csv")  # doctest: +SKIP
        """
        rows = read_support(self.config.source, support, y, classifies=self.classifies)
        run = self.using(learner)
        fitted = run._fit(steps, statistics).one(rows)
        return fitted if run.folder == self.folder else self._placed(fitted, rows, run)

    def _placed(self, fitted: FittedTask, rows: SupportRows, run: "Run") -> FittedTask:
        """A task fitted by a baseline, compared with the known tasks by the run's own learner."""
        own = self._fit(None, fitted.statistics).one(rows)  # by which the known tasks of the index were adapted
        about = {**own.about, "inner_steps": run.inner_steps, "learner": run.folder.name}
        return dataclasses.replace(fitted, about=about, task_embedding=own.task_embedding, assignments=own.assignments)

    def adapt_many(
        self,
        supports: Sequence[tuple[ArrayLike, ArrayLike]],
        *,
        steps: int | None = None,
        statistics: Statistics = "support",
        learner: str | None = None,
    ) -> FittedTasks:
        """Adapt to many tasks at once, in few compiled calls, which is much faster than one by one.

        Args:
            supports: The support set of each task, (x, y) as arrays.
            steps: Inner steps; by default the number selected on validation tasks.
            statistics: As for `adapt`.
            learner: As for `adapt`.

        Returns:
            The fitted tasks, a sequence.

        Raises:
            InputError: The rows of a task do not fit the run; the message names task and row.
        """
        spec = self.config.source.spec
        schema = array_schema(self.config.source, classifies=self.classifies)
        checked = support_sets(supports, spec, classifies=self.classifies)
        fit = self.using(learner)._fit(steps, statistics)
        return fit.many([SupportRows(x, y, schema) for x, y in checked])

    def _fit(self, steps: int | None, statistics: Statistics) -> Fit:
        if statistics not in STATISTICS:
            raise InputError(f"statistics must be one of {', '.join(STATISTICS)}, got {statistics!r}")
        steps = self.inner_steps if steps is None else steps
        return Fit(self.folder, self.config, self.meta, steps, statistics)

    def scores(
        self,
        *,
        num_tasks: int,
        seed: int,
        steps: int | None = None,
        every_step: bool = True,
        statistics: Statistics | None = None,
    ) -> Scores:
        """Score every test task after 0, 1, ... inner steps.

        If families can be drawn separately, each has the same number of tasks. If tasks are drawn repeatedly, a score
        is the mean over a task's draws.

        Args:
            num_tasks: Number of test tasks.
            seed: Random seed of the test tasks.
            steps: Maximum number of inner steps; by default that of validation.
            every_step: Score after every number of inner steps, not only after the last.
            statistics: Whose statistics normalise a query set of images: its own ("query", transductive) or the support
                set's; by default as in training.

        Returns:
            The scores, with each task's family and assignment.
        """
        source = self.config.source
        parts = test_parts(source, seed)
        sizes = draws_of(num_tasks, len(parts), again=source.repeats_tasks)
        how = {
            "steps": self.config.training.max_eval_inner_steps if steps is None else steps,
            "every_step": every_step,
            "task_chunk_size": self.config.training.task_chunk_size,
            "statistics": statistics,
        }
        scored = [
            score_tasks(self.config.learner, self.meta, part, key=part_key, num_tasks=size, **how)
            for (part, part_key), size in zip(parts, sizes, strict=True)
        ]
        return join_scores([one.mean() for one in scored] if source.repeats_tasks else scored)


def draws_of(num_tasks: int, num_parts: int, *, again: bool) -> list[int]:
    """Return the number of tasks of each part of a source; with `again`, the same of each and enough for a mean."""
    if again:
        return [max(2, -(-num_tasks // num_parts))] * num_parts
    return [num_tasks // num_parts + (i < num_tasks % num_parts) for i in range(num_parts)]


def load(folder: str | Path, *, learner: Learner | None = None, source: Source | None = None) -> Run:
    """Load a trained run.

    Args:
        folder: A run folder, or the name of a released model (`metagrove list` shows them).
        learner: The learner, of a run that was trained with a user's own learner, base net or loss.
        source: The source, of a run that was trained on a user's own.

    Returns:
        The run, at its best checkpoint by validation.

    Raises:
        RunError: The folder is missing, damaged or of a newer version.
        InputError: Its settings cannot be read, or a user's own part was not passed.

    Example:
        >>> import metagrove as mg
        >>> mg.load("toy-5shot-best")
        <HSML run toy-5shot-best>
    """
    path = folders.resolve(folder)
    stored, best = folders.read_run(path / "run.json"), folders.read_best(path)
    config = from_json(stored.config, file_format=stored.format, learner=learner, source=source)
    check_config(config)
    config = as_grown(config, best.clusters)
    like = eqx.filter_eval_shape(functools.partial(config.learner.init, config.source.spec), key=key_for("init", 0))
    meta, about = checkpoint.load(path, "best", like)
    return Run(path, config, meta, about)

"""Runs from Python: train or load one, adapt it to a few rows, predict."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
from numpy.typing import ArrayLike

from metagrove import files
from metagrove.config.config import Config, check_config
from metagrove.config.encoding import from_json
from metagrove.config.presets import default_learner, preset
from metagrove.errors import InputError
from metagrove.files import Json
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta
from metagrove.losses import metric_of
from metagrove.nets.predictors import STATISTICS, Statistics
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.fitted_tasks import Fit, FittedTasks
from metagrove.serve.rows import support_sets
from metagrove.serve.support import SupportRows, array_schema, read_support, table_schema
from metagrove.sources.source import Source
from metagrove.tables.schema import Schema
from metagrove.training import checkpoint, folders
from metagrove.training.growth import as_grown
from metagrove.training.loop import train as train_into
from metagrove.training.scores import Scores, join_scores, score_tasks, test_parts


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained learner. `about` says which checkpoint it is and what it scored on validation tasks."""

    folder: Path
    config: Config
    meta: Meta
    about: Json

    def __repr__(self) -> str:
        return f"<{type(self.config.learner).__name__} run {self.folder.name}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Run":
        return self  # nothing in it changes; scikit-learn copies an estimator's settings for every fold

    @property
    def metric(self) -> str:
        """What scores are, e.g. mse or accuracy."""
        return metric_of(self.config.learner.loss).name

    @property
    def inner_steps(self) -> int:
        """Inner steps at test, chosen on validation tasks."""
        return self.about["validation"]["steps"]

    @property
    def classifies(self) -> bool:
        """Are the targets classes?"""
        return self.metric == "accuracy"

    @property
    def schema(self) -> Schema | None:
        """The columns of its tables; without names x (or x1, ...) and y; None for images and unnamed classifiers."""
        return table_schema(self.config.source, classifies=self.classifies)

    def adapt(
        self,
        support: Any,
        y: ArrayLike | None = None,
        *,
        steps: int | None = None,
        statistics: Statistics = "support",
    ) -> FittedTask:
        """Fit a new task from its few rows.

        Args:
            support: Inputs as an array, with `y`; or a table with inputs and targets (a path, a DataFrame, a mapping of
                columns), for images a folder class/*.jpg. Arrays are as the net sees them: images have values from 0
                to 1 or are uint8, and a run on people's own tables takes their units from a table.
            y: Targets as an array; a classifier's may be the classes' numbers, 0 to ways - 1, or their names.
            steps: Inner steps; by default as many as were best on validation tasks.
            statistics: Whose statistics a net that normalises by a set uses. With "support" a prediction depends on no
                other row; with "query" it normalises by the rows that are asked for in one call (transductive).

        Returns:
            The task, which predicts, is saved and exported.

        Raises:
            InputError: if the rows do not fit the run, naming row and column.

        Example:
            >>> run.adapt(x, y).predict(new_x)
            >>> run.adapt("support.csv").predict("rows.csv")
        """
        rows = read_support(self.config.source, support, y, classifies=self.classifies)
        return self._fit(steps, statistics).one(rows)

    def adapt_many(
        self,
        supports: Sequence[tuple[ArrayLike, ArrayLike]],
        *,
        steps: int | None = None,
        statistics: Statistics = "support",
    ) -> FittedTasks:
        """`adapt` for many tasks, each an (x, y) of arrays, in few compiled calls: far faster than one by one."""
        spec = self.config.source.spec
        schema = array_schema(self.config.source, classifies=self.classifies)
        checked = support_sets(supports, spec, classifies=self.classifies)
        return self._fit(steps, statistics).many([SupportRows(x, y, schema) for x, y in checked])

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
        """Every test task's score after 0, 1, ... inner steps; by default up to as many as validation looked at.

        Of a source whose families can be drawn apart, each has its equal part of the tasks, one family after another.
        Of a source that draws the same tasks again, a score is the mean over a task's draws. `statistics` says whose
        normalise the query set: its own (transductive), the support set's, or by default those of training.
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
    """How many tasks each part of a source draws; `again`: the same from each, and enough for a mean."""
    if again:
        return [max(2, -(-num_tasks // num_parts))] * num_parts
    return [num_tasks // num_parts + (i < num_tasks % num_parts) for i in range(num_parts)]


def load(folder: str | Path, *, learner: Learner | None = None, source: Source | None = None) -> Run:
    """A run from its folder, or a released model by name. A run with your own learner or source needs it passed."""
    path = folders.resolve(folder)
    stored = files.read_json(path / "run.json")
    config = from_json(stored["config"], file_format=stored["format"], learner=learner, source=source)
    check_config(config)
    config = as_grown(config, files.read_json(path / "best.json"))
    like = eqx.filter_eval_shape(functools.partial(config.learner.init, config.source.spec), key=key_for("init", 0))
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

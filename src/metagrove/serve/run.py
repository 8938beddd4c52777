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
from metagrove.files import Json
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta
from metagrove.losses import metric_of
from metagrove.serve.adapted import Adapted, AdaptedTasks, adapt_one, adapt_tasks
from metagrove.serve.rows import padded_examples, support_rows, support_sets
from metagrove.sources.source import Source
from metagrove.train import checkpoint, folders
from metagrove.train.growth import as_grown
from metagrove.train.loop import train as train_into
from metagrove.train.scores import Scores, join_scores, score_tasks, test_parts


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

    def adapt(self, x: ArrayLike, y: ArrayLike, *, steps: int | None = None) -> Adapted:
        """Fit a new task from its few rows; a classifier's `y` may be the classes' numbers, 0 to ways - 1.

        Images have values from 0 to 1, or are uint8. Rows are as the net sees them: of a run on people's own tables
        `metagrove.adapt` takes them in their own units.
        """
        spec = self.config.source.spec
        support = padded_examples(*support_rows(x, y, spec, classifies=self.metric == "accuracy"))
        steps = self.inner_steps if steps is None else steps
        predictor, info = adapt_one(self.config.learner, self.meta, support, steps)
        return Adapted(spec, predictor, info)

    def adapt_many(self, supports: Sequence[tuple[ArrayLike, ArrayLike]], *, steps: int | None = None) -> AdaptedTasks:
        """`adapt` for many tasks, each an (x, y), in few compiled calls: far faster than one after another."""
        spec = self.config.source.spec
        checked = support_sets(supports, spec, classifies=self.metric == "accuracy")
        steps = self.inner_steps if steps is None else steps
        return adapt_tasks(self.config.learner, self.meta, spec, checked, steps)

    def scores(self, *, num_tasks: int, seed: int, steps: int | None = None, every_step: bool = True) -> Scores:
        """Every test task's score after 0, 1, ... inner steps; by default up to as many as validation looked at.

        Of a source whose families can be drawn apart, each has its equal part of the tasks, one family after another.
        Of a source that draws the same tasks again, a score is the mean over a task's draws.
        """
        source = self.config.source
        parts = test_parts(source, seed)
        sizes = draws_of(num_tasks, len(parts), again=source.repeats_tasks)
        how = {
            "steps": self.config.training.max_eval_inner_steps if steps is None else steps,
            "every_step": every_step,
            "task_chunk_size": self.config.training.task_chunk_size,
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

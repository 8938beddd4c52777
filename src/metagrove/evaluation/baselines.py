"""Comparison of a run with its baselines on the same test tasks: the best, the served and the recommended method.

baselines.json in the run folder holds `Baselines`; the first row is the run itself. Baselines are fitted to training
tasks, their settings and what is served are selected on validation tasks, and all are scored on test tasks.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metagrove import files
from metagrove.baselines.data import Draws, baseline_data, draw_tasks, mean_loss
from metagrove.config.config import Config
from metagrove.evaluation.advice import advise, in_prose, recommend
from metagrove.evaluation.candidates import (
    STOPPED,
    Candidate,
    Note,
    TaskScores,
    blended,
    fitted,
    label_of,
    predict_draws,
    score_draws,
    seconds_of,
    trained,
)
from metagrove.files import OMIT_NONE
from metagrove.losses import best_of
from metagrove.serve.run import Run
from metagrove.serve.served import Served, write_served
from metagrove.training.scores import PairedComparison, ci95, paired_difference
from metagrove.typed_json import raise_type_errors

FILE = "baselines.json"
NEEDED = ("metric", "num_tasks", "rows", "best", "advice", "num_draws", "seed")
NEEDED_IN_ROWS = ("name", "label", "variant", "by_family")
"""Required keys of the file and its rows."""
MOST_TASKS, MOST_DRAWS = 10**7, 10**4


@dataclasses.dataclass(frozen=True)
class MeanScore:
    """Mean over tasks and its 95 % confidence interval."""

    value: float
    value_ci95: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """The run, or one of its baselines."""

    name: str
    label: str
    """Display name."""
    variant: str
    """Settings selected on validation tasks."""
    seconds: float
    """Time of training or fitting."""
    folder: str | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Folder, relative to the run folder."""
    value: float
    value_ci95: float
    by_family: dict[str, MeanScore]
    minus_run: PairedComparison | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Paired difference to the run; None for the run itself, and for a baseline that failed."""
    validation_loss: float | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Squared error or log loss on validation tasks, which selects what is served."""
    log_loss: float | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Log loss of a classifier on test tasks."""
    error: str | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """The reason if there is no score."""


@dataclasses.dataclass(frozen=True)
class Baselines:
    """A run and its baselines on the same test tasks."""

    metric: str
    num_tasks: int
    rows: list[BaselineRow]
    best: str
    """Name of the best row."""
    advice: str
    """Which method to use, in one or two sentences."""
    num_draws: int
    """Draws of each test task."""
    seed: int
    recommended: str = ""
    """Name of the recommended row."""
    served: str = ""
    """Name of the row that `adapt` and `predict` serve."""
    serving: str = ""
    """The served method and the reason, in one sentence."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Score of each test task by one learner or model, and the time of training or fitting it."""

    values: np.ndarray
    seconds: float
    variant: str = ""
    folder: str | None = None
    losses: np.ndarray | None = None
    """Loss of each test task, if it is not the score."""
    validation_loss: float | None = None
    error: str | None = None

    @property
    def task_losses(self) -> np.ndarray:
        """Loss of each test task."""
        return self.values if self.losses is None else self.losses


def measure(
    run: Run, also: Mapping[str, Config], *, num_draws: int, seed: int, note: Note, serve: bool = True
) -> Baselines | None:
    """Train other learners, fit the baselines, score all on the test tasks, and select the served method.

    Args:
        run: The run.
        also: Configs of other learners to train on the same tasks, by name.
        num_draws: Draws of each test task.
        seed: Random seed of the test draws.
        note: Called with a line about each step.
        serve: Serve the winner on validation tasks; otherwise the run's own learner.

    Returns:
        The content of baselines.json, or None if training was interrupted.
    """
    run, source = run.alone(), run.config.source
    data = baseline_data(source, classifies=run.classifies)
    own = Candidate(run.learner_name, label_of(run.learner_name), run, seconds=seconds_of(run.folder))
    found = [own, *trained(run, also, note)]
    if any(one.error == STOPPED for one in found):
        return None
    found += fitted(run, data, note)
    runs = {one.name: one.run for one in found if one.run is not None}
    note("scoring all on validation and test tasks")
    predictions = {name: predict_draws(one, data.validation) for name, one in runs.items()}
    _, query = data.validation.joined()
    blend = blended(run, runs, predictions, data.validation)
    if blend is not None and blend.run is not None:
        found.append(blend)
        predictions["blend"] = predict_draws(blend.run, data.validation)
    losses = {name: mean_loss(one, query, classifies=run.classifies) for name, one in predictions.items()}
    test = draw_tasks(source, "test", num_draws=num_draws, seed=seed)
    measured = {one.name: measured_of(one, run, test, losses.get(one.name)) for one in found}
    num_train = len(data.train.x)
    result = make_result(
        measured, test.family, source.family_names, metric=run.metric, num_draws=num_draws, seed=seed, tasks=num_train
    )
    result = with_served(result, losses, run, serve=serve)
    files.write_json(run.folder / FILE, {"format": files.FORMAT, **nan_to_none(files.as_json(result))})
    return result


def measured_of(one: Candidate, run: Run, test: Draws, validation_loss: float | None) -> Measured:
    """Score a candidate on the test tasks; one that failed has no score."""
    folder = None if one.run is run or one.run is None else f"baselines/{one.name}"
    if one.run is None:
        nothing = np.full(len(test.family), np.nan)
        return Measured(nothing, one.seconds, error=one.error)
    scores: TaskScores = score_draws(predict_draws(one.run, test), test, classifies=run.classifies)
    return Measured(scores.by_metric(), one.seconds, one.variant, folder, scores.loss, validation_loss)


def with_served(result: Baselines, losses: Mapping[str, float], run: Run, *, serve: bool) -> Baselines:
    """Select the served method, store it with the run, and report it."""
    label = {row.name: row.label for row in result.rows}
    words = {name: in_prose(name, classifies=run.classifies) for name in label}
    variant = {row.name: row.variant for row in result.rows}
    finite = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    winner = min(finite, key=lambda name: finite[name])
    if not serve:
        why = f"adapt and predict serve {words[run.learner_name]}, as asked for"
        served = Served(run.learner_name, label[run.learner_name], why)
    else:
        described = f"{words[winner]} ({variant[winner]})" if variant[winner] else words[winner]
        why = f"adapt and predict serve {described}, which has the least loss on validation tasks"
        served = Served(winner, label[winner], why)
    write_served(run.folder, served)
    others = "" if not serve else f"; --learner {run.learner_name} (or another name) fixes one"
    return dataclasses.replace(result, served=served.name, serving=f"{why}{others}.")


def read_baselines(folder: Path) -> Baselines | None:
    """Read the baselines of a run, or return None if it has none.

    Raises:
        RunError: The file is damaged, of a newer version, incomplete, or has impossible values.
    """
    if not (path := folder / FILE).exists():
        return None
    found = files.read_record(Baselines, path, needs=NEEDED)
    problems = [
        f"rows[{at}].{name} is missing"
        for at, row in enumerate(found.rows)
        for name in NEEDED_IN_ROWS
        if getattr(row, name) is None
    ]
    if not (1 <= found.num_tasks <= MOST_TASKS and 1 <= found.num_draws <= MOST_DRAWS and abs(found.seed) < 2**63):
        problems += [f"num_tasks must be from 1 to {MOST_TASKS:,}, num_draws to {MOST_DRAWS:,}, and seed of 64 bits"]
    raise_type_errors(problems, path)
    return found


def own_scores(run: Run, num_draws: int, seed: int) -> np.ndarray:
    """Compute the mean score of each test task."""
    source = run.config.source
    num_tasks = num_draws * len(source.parts("test"))
    return run.scores(num_tasks=num_tasks, seed=seed, steps=run.inner_steps, every_step=False).by_step[:, -1]


def nan_to_none(data: Any) -> Any:
    """Replace NaN by None in JSON data, e.g. the confidence interval of a single task."""
    if isinstance(data, dict):
        return {key: nan_to_none(value) for key, value in data.items()}
    if isinstance(data, list):
        return [nan_to_none(value) for value in data]
    return None if isinstance(data, float) and math.isnan(data) else data


def make_result(
    measured: Mapping[str, Measured],
    family: np.ndarray,
    families: tuple[str, ...],
    *,
    metric: str,
    num_draws: int,
    seed: int,
    tasks: int = 0,
) -> Baselines:
    """Make the content of baselines.json; the first row is the run itself."""
    first, *_ = measured.values()
    parts = {name: family == i for i, name in enumerate(families) if (family == i).any()}
    classifies = metric == "accuracy"
    rows = [row_of(name, one, first, parts, classifies=classifies) for name, one in measured.items()]
    best = best_of([row for row in rows if math.isfinite(row.value)], lambda row: row.value, metric)
    losses = {name: one.task_losses for name, one in measured.items() if np.isfinite(one.task_losses).all()}
    words = advise(losses, next(iter(measured)), num_tasks=tasks, classifies=classifies)
    return Baselines(metric, len(family), rows, best.name, words, num_draws, seed, recommend(losses).name)


def row_of(
    name: str, one: Measured, run: Measured, parts: Mapping[str, np.ndarray], *, classifies: bool
) -> BaselineRow:
    """Make a row, with its paired difference to the run unless it is the run itself or failed."""
    paired = None
    if one is not run and one.error is None:
        over_all = paired_difference(one.values, run.values)
        each = {part: paired_difference(one.values[chosen], run.values[chosen]) for part, chosen in parts.items()}
        paired = PairedComparison(over_all.difference, over_all.ci95, each)
    return BaselineRow(
        name=name,
        label=label_of(name, classifies=classifies),
        variant=one.variant,
        seconds=one.seconds,
        folder=one.folder,
        **dataclasses.asdict(mean_score(one.values)),
        by_family={part: mean_score(one.values[chosen]) for part, chosen in parts.items()},
        minus_run=paired,
        validation_loss=one.validation_loss,
        log_loss=float(one.task_losses.mean()) if classifies and one.losses is not None else None,
        error=one.error,
    )


def mean_score(values: np.ndarray) -> MeanScore:
    """Compute the mean over tasks and its 95 % confidence interval."""
    return MeanScore(float(values.mean()), float(ci95(values)))

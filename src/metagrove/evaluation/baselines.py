"""Baselines of a run: MAML and scikit-learn models on the same test tasks, with paired differences.

baselines.json in the run folder holds `Baselines`; the first row is the run itself.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metagrove import files
from metagrove.config.config import Config
from metagrove.evaluation.sklearn_models import BASELINES, Draws, best_model, draw_tasks, score
from metagrove.evaluation.summaries import learner_name
from metagrove.files import OMIT_NONE
from metagrove.losses import best_of
from metagrove.serve.run import Run, load
from metagrove.training.loop import train
from metagrove.training.scores import PairedComparison, PairedDifference, ci95, paired_difference

FILE = "baselines.json"
CHOICE_DRAWS = 2
"""Draws of each validation task on which the settings of a baseline are selected; few, since each needs a fit."""
LABELS = {"hsml": "HSML", "maml": "MAML"}
Note = Callable[[str], None]


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
    """Folder of a trained rival, relative to the run folder."""
    value: float
    value_ci95: float
    by_family: dict[str, MeanScore]
    minus_run: PairedComparison | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Paired difference to the run; None for the run itself."""


@dataclasses.dataclass(frozen=True)
class Baselines:
    """A run and its baselines on the same test tasks."""

    metric: str
    num_tasks: int
    rows: list[BaselineRow]
    best: str
    """Name of the best row."""
    advice: str
    """Recommendation in one sentence which model to use."""
    num_draws: int
    """Draws of each test task."""
    seed: int


@dataclasses.dataclass(frozen=True)
class Measured:
    """Score of each test task by one learner or model, and the time of training or fitting it."""

    values: np.ndarray
    seconds: float
    variant: str = ""
    folder: str | None = None


def measure(run: Run, rivals: Mapping[str, Config], *, num_draws: int, seed: int, note: Note) -> Baselines | None:
    """Train the rivals, fit the baselines, score all on the test tasks and write baselines.json.

    Returns:
        The content of baselines.json, or None if training was interrupted.
    """
    source = run.config.source
    measured = {learner_name(run): Measured(own_scores(run, num_draws, seed), seconds_of(run))}
    for name, config in rivals.items():
        note(f"training {label_of(name)} for comparison")
        rival = train_or_resume(config, run.folder / "baselines" / name)
        if rival is None:
            return None
        values = own_scores(rival, num_draws, seed)
        measured[name] = Measured(values, seconds_of(rival), folder=f"baselines/{name}")
    tasks = draw_tasks(source, "test", num_draws=num_draws, seed=seed)
    validation = draw_tasks(source, "validation", num_draws=min(num_draws, CHOICE_DRAWS), seed=seed)
    measured |= dict(fit_models(run, tasks, validation, note))
    result = make_result(measured, tasks.family, source.family_names, metric=run.metric, num_draws=num_draws, seed=seed)
    files.write_json(run.folder / FILE, {"format": files.FORMAT, **nan_to_none(files.as_json(result))})
    return result


def fit_models(run: Run, tasks: Draws, validation: Draws, note: Note) -> Iterator[tuple[str, Measured]]:
    """Score each scikit-learn model on the test tasks, with settings selected on validation tasks."""
    source, classifies = run.config.source, run.metric == "accuracy"
    for name, baseline in BASELINES.items():
        note(f"fitting {baseline.label}")
        began = time.monotonic()
        variant, predict = best_model(source, baseline, validation, classifies=classifies)
        values = score(tasks, predict, classifies=classifies)
        yield name, Measured(values, time.monotonic() - began, variant)


def read_baselines(folder: Path) -> Baselines | None:
    """Read the baselines of a run, or return None if it has none."""
    return files.from_json(Baselines, files.read_json(folder / FILE)) if (folder / FILE).exists() else None


def own_scores(run: Run, num_draws: int, seed: int) -> np.ndarray:
    """Compute the mean score of each test task."""
    source = run.config.source
    num_tasks = num_draws * len(source.parts("test"))
    return run.scores(num_tasks=num_tasks, seed=seed, steps=run.inner_steps, every_step=False).by_step[:, -1]


def seconds_of(run: Run) -> float:
    """Return the training time of a run in seconds."""
    return float(files.read_json(run.folder / "last.json")["seconds"])


def train_or_resume(config: Config, folder: Path) -> Run | None:
    """Train the run of a rival, resuming it if it exists; return None if training was interrupted."""
    there = (folder / "run.json").exists()
    return load(folder) if train(config, folder, resume=there, command="metagrove train own --baselines") else None


def nan_to_none(data: Any) -> Any:
    """Replace NaN by None in JSON data, e.g. the confidence interval of a single task."""
    if isinstance(data, dict):
        return {key: nan_to_none(value) for key, value in data.items()}
    if isinstance(data, list):
        return [nan_to_none(value) for value in data]
    return None if isinstance(data, float) and math.isnan(data) else data


def label_of(name: str) -> str:
    """Return the display name of a row."""
    return BASELINES[name].label if name in BASELINES else LABELS.get(name, name)


def make_result(
    measured: Mapping[str, Measured],
    family: np.ndarray,
    families: tuple[str, ...],
    *,
    metric: str,
    num_draws: int,
    seed: int,
) -> Baselines:
    """Make the content of baselines.json; the first row is the run itself."""
    first, *_ = measured.values()
    parts = {name: family == i for i, name in enumerate(families) if (family == i).any()}
    rows = [row_of(name, one, None if one is first else first, parts) for name, one in measured.items()]
    best = best_of(rows, lambda row: row.value, metric)
    to_best = paired_difference(first.values, measured[best.name].values)
    recommendation = advice(rows, best, to_best, metric)
    return Baselines(metric, len(family), rows, best.name, recommendation, num_draws, seed)


def row_of(name: str, one: Measured, run: Measured | None, parts: Mapping[str, np.ndarray]) -> BaselineRow:
    """Make a row, with its paired difference to the run unless it is the run itself."""
    paired = None
    if run is not None:
        over_all = paired_difference(one.values, run.values)
        each = {part: paired_difference(one.values[chosen], run.values[chosen]) for part, chosen in parts.items()}
        paired = PairedComparison(over_all.difference, over_all.ci95, each)
    return BaselineRow(
        name=name,
        label=label_of(name),
        variant=one.variant,
        seconds=one.seconds,
        folder=one.folder,
        **dataclasses.asdict(mean_score(one.values)),
        by_family={part: mean_score(one.values[chosen]) for part, chosen in parts.items()},
        minus_run=paired,
    )


def mean_score(values: np.ndarray) -> MeanScore:
    """Compute the mean over tasks and its 95 % confidence interval."""
    return MeanScore(float(values.mean()), float(ci95(values)))


def advice(rows: list[BaselineRow], best: BaselineRow, to_best: PairedDifference, metric: str) -> str:
    """Recommend in one sentence which model to use."""
    run = rows[0]
    scores = f"{metric} {best.value:.3g}"
    if best is run:
        next_best = best_of(rows[1:], lambda row: row.value, metric)
        gap = next_best.minus_run
        assert gap is not None
        lead = f"Use {run.label}: it is best ({scores})"
        if abs(gap.difference) > gap.ci95:
            return f"{lead}; next is {next_best.label}, {gap.difference:+.3g} ± {gap.ci95:.2g}."
        return f"{lead}, though {next_best.label} may be as good ({gap.difference:+.3g} ± {gap.ci95:.2g})."
    gap = f"{to_best.difference:+.3g} ± {to_best.ci95:.2g}"
    if abs(to_best.difference) > to_best.ci95:
        return f"Use {best.label}: it is best ({scores}), and {run.label} is behind by {gap}."
    return f"{best.label} is best ({scores}), and {run.label} may be as good ({gap}): use the simpler one."

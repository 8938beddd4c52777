"""Parts of an experiment: rows, hyperparameter searches and budgets."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from metagrove.errors import InputError

Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Search:
    """Hyperparameter search on validation tasks, by short trainings with one seed; rows may share a search."""

    name: str
    preset: str
    learner: str
    candidates: tuple[Settings, ...]
    base: Settings = dataclasses.field(default_factory=dict)
    """Settings that all candidates share."""
    known: int = 0
    """Index of the candidate selected in results/, which budgets without a search use."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a result table: a preset, a learner and the seeds of its trainings."""

    label: str
    preset: str
    seeds: tuple[int, ...] = (0,)
    learner: str | None = None
    paper: str | None = None
    """Value in the paper, if there is one."""
    release: str | None = None
    """Name of the released model that the seed with the best validation score becomes; the image size is appended."""
    search: Search | None = None
    """Search that selects the settings of the row; without it they are those of the preset and the learner."""
    settings: Settings = dataclasses.field(default_factory=dict)
    """Changes to the preset; they override those of the budget and are overridden by the search."""
    max_eval_inner_steps: int | None = None
    """Maximum number of inner steps at test time, if not that of the experiment."""
    shares: tuple[str, str] | None = None
    """Experiment and label of a row with the same settings, whose runs this row shares."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """Compute budget: changes to every training and to every trial of a search, and the maximum of test tasks."""

    training: Settings
    trial: Settings | None
    """Changes to every trial; None to use the known selection instead of a search."""
    tasks: int
    overrides: Settings = dataclasses.field(default_factory=dict)
    """Changes to every training that override those of rows and searches."""
    max_seeds: int | None = None
    """Maximum number of seeds of a row; None for all of them."""


BudgetName = Literal["paper", "studies", "trials", "small", "quick", "smoke"]
BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, {"steps": 5000}, 40_000),
    "studies": Budget({"steps": 20_000}, None, 10_000),
    "small": Budget({"steps": 10_000}, None, 10_000),
    "quick": Budget({"steps": 2000, "validate_every": 500}, None, 4_000),
}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment; rows with the same source are evaluated on the same tasks and compared with the first of them."""

    about: str
    rows: tuple[Row, ...]
    test_seed: int = 0
    """Random seed of the test tasks."""
    max_eval_inner_steps: int | None = None
    """Maximum number of inner steps at test time, selected on validation tasks; by default as selected in training."""
    tasks: int = 40_000
    """Number of test tasks."""
    every_step: bool = True
    """Score test tasks after every number of inner steps, not only after the selected number."""
    keep_scores: bool = False
    """Write the score of every test task to the result."""
    budgets: Mapping[str, Budget] = dataclasses.field(default_factory=lambda: BUDGETS)
    remark: str = ""
    """Remark for readers of the result."""


SMOKE: Settings = {
    "steps": 20,
    "warmup_steps": 0,
    "validate_every": 20,
    "log_every": 10,
    "validation_tasks": 20,
    "max_eval_inner_steps": 5,
}
"""The budget "smoke" of every experiment: end to end, with few meta-steps and tasks."""
SMOKE_TASKS = 40


def budget_of(experiment: Experiment, name: str) -> Budget:
    """Return a budget of an experiment, or raise an InputError if it has none of that name."""
    if name == "smoke":
        return Budget(experiment.budgets["quick"].training, None, SMOKE_TASKS, overrides=SMOKE, max_seeds=1)
    if name not in experiment.budgets:
        raise InputError(f"this experiment has no budget {name!r}, only {', '.join((*experiment.budgets, 'smoke'))}")
    return experiment.budgets[name]

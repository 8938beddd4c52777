"""What an experiment is made of: rows, the settings each may choose from, and budgets."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Search:
    """Settings to choose from on validation tasks, by short trainings of one seed. Rows may share a search."""

    name: str
    preset: str
    learner: str
    candidates: tuple[Settings, ...]
    base: Settings = dataclasses.field(default_factory=dict)
    """What all candidates have in common."""
    known: int = 0
    """The candidate that the search chose in results/; a budget without searches takes it."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a result table: a preset, a learner, and the seeds it is trained with."""

    label: str
    preset: str
    seeds: tuple[int, ...] = (0,)
    learner: str | None = None
    paper: str | None = None
    release: str | None = None
    """The released model that the seed with the best validation becomes; the size of images, if given, is added."""
    search: Search | None = None
    """Where the row's settings are chosen; without it they are the preset's and the learner's own."""
    settings: Settings = dataclasses.field(default_factory=dict)
    """Changes to the preset: they win over the budget's, and what a search chose wins over them."""
    max_eval_inner_steps: int | None = None
    """Most inner steps at test, if not the experiment's."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much is spent: changes to every training and to every trial of a search, and the most test tasks."""

    training: Settings
    trial: Settings | None
    """None: no search, take what is known."""
    tasks: int


BudgetName = Literal["paper", "small", "quick"]
BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, {"steps": 5000}, 40_000),
    "small": Budget({"steps": 10_000}, None, 10_000),
    "quick": Budget({"steps": 2000, "validate_every": 500}, None, 4_000),
}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Rows whose sources agree are evaluated on the same tasks; the first of a source is their yardstick."""

    about: str
    rows: tuple[Row, ...]
    minutes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How long a budget took on two cores, one training after another, where it was measured."""
    test_seed: int = 0
    """Decides the test tasks."""
    max_eval_inner_steps: int | None = None
    """Most inner steps at test, their number chosen anew on validation tasks; without it, as training chose it."""
    tasks: int = 40_000
    """Test tasks."""
    every_step: bool = True
    """Score test tasks after every number of inner steps; without it after the chosen number alone."""
    keep_scores: bool = False
    """Write every test task's score into the result."""
    budgets: Mapping[str, Budget] = dataclasses.field(default_factory=lambda: BUDGETS)
    remark: str = ""
    """What the result must be read with."""

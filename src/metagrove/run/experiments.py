"""The experiments that `metagrove reproduce` knows, as data: what is trained, and what each method may choose from."""

import dataclasses
import itertools
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
    """The released model that the seed with the best validation becomes."""
    search: Search | None = None
    """Where the row's settings are chosen; without it they are the preset's and the learner's own."""
    settings: Settings = dataclasses.field(default_factory=dict)
    """Changes to the preset; the budget's and the search's go before them."""
    test_steps: int | None = None
    """Most inner steps at test, if not the experiment's."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Rows whose sources agree are evaluated on the same tasks; the first of a source is their yardstick."""

    about: str
    minutes: Mapping[str, int]
    """Expected time of each budget on two cores, one training after another."""
    rows: tuple[Row, ...]
    test_seed: int = 0
    """Decides the test tasks."""
    test_steps: int | None = None
    """Most inner steps at test, their number chosen anew on validation tasks; without it, as training chose it."""
    tasks: int = 40_000
    """Test tasks."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much is spent: changes to every training and to every trial of a search, and the most test tasks."""

    training: Settings
    trial: Settings | None
    """None: no search, take what is known."""
    tasks: int


BudgetName = Literal["paper", "quick"]
BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, {"steps": 5000}, 40_000),
    "quick": Budget({"steps": 2000, "validate_every": 500}, None, 4_000),
}


def choices(**lists: tuple[Any, ...]) -> tuple[Settings, ...]:
    """Every combination."""
    return tuple(dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))


STEEP: Settings = {"inner_clip": 10.0, "clip_norm": 2.0}
INNER_LOOPS: tuple[Settings, ...] = (
    {},  # the paper's: α = .001, 5 steps, nothing clipped
    {"inner_lr": 0.001, **STEEP},
    {"inner_lr": 0.003, **STEEP},
    {"inner_lr": 0.01, **STEEP},
    {"inner_lr": 0.003},
    {"inner_steps": 10},
)
"""Step size, number of steps and clipping: the same six for every method with MAML's inner loop."""

FINAL: Settings = {"schedule": "cosine", "warmup_steps": 500, "clip_norm": 1.0}

SEARCHES: dict[str, Search] = {
    search.name: search
    for search in (
        Search("hsml", "toy-5shot", "hsml", INNER_LOOPS, known=2),
        Search("maml", "toy-5shot", "maml", INNER_LOOPS),
        Search("anil", "toy-5shot", "maml", INNER_LOOPS, {"adapts": "head"}, known=3),
        Search("meta-sgd", "toy-5shot", "meta-sgd", INNER_LOOPS, known=1),
        Search("mt-net", "toy-5shot", "mt-net", INNER_LOOPS, known=3),
        Search("mumomaml", "toy-5shot", "mumomaml", INNER_LOOPS, known=3),
        Search("arml", "toy-5shot", "arml", INNER_LOOPS, known=1),
        Search(
            "reptile",
            "toy-5shot",
            "reptile",
            choices(inner_lr=(0.0003, 0.001, 0.003), inner_steps=(2, 5)),
            {"schedule": "cosine"},  # its paper lets the outer step size fall to 0
            known=5,
        ),
        Search(
            "neural-process",
            "toy-5shot",
            "neural-process",
            choices(encoder=("mean", "attention"), outer_lr=(0.0003, 0.001, 0.003)),
            FINAL,
            known=5,
        ),
        Search(
            "scratch",
            "toy-5shot",
            "scratch",
            choices(inner_lr=(0.001, 0.003, 0.01), init_sd=(0.1, 0.3)),
            {"steps": 1, "validate_every": 1},  # nothing is meta-learned
            known=4,
        ),
    )
}


def table1() -> tuple[Row, ...]:
    """The rows of the paper's table 1 and ours, 5-shot first, the slowest last."""
    paper = {
        "hsml": ("0.856 ± 0.073", "0.161 ± 0.021"),
        "maml": ("2.205 ± 0.121", "0.761 ± 0.068"),
        "meta-sgd": ("2.053 ± 0.117", "0.836 ± 0.065"),
        "mt-net": ("2.435 ± 0.130", "0.967 ± 0.056"),
        "bmaml": ("2.016 ± 0.109", "0.698 ± 0.054"),
        "mumomaml": ("1.096 ± 0.085", "0.256 ± 0.028"),
    }
    labels = {
        "hsml": "HSML",
        "scratch": "From scratch",
        "reptile": "Reptile",
        "anil": "ANIL",
        "maml": "MAML",
        "meta-sgd": "Meta-SGD",
        "mt-net": "MT-Net",
        "mumomaml": "MUMOMAML",
        "arml": "ARML",
        "neural-process": "Neural process",
        "bmaml": "BMAML (6,000 meta-steps)",
    }
    by_hand = {"bmaml": {"steps": 6_000, "init_sd": 0.3, "inner_steps": 3}}  # each step costs some twenty of MAML's
    rows = []
    for shots in (5, 10):
        for name, label in labels.items():
            figure = paper[name][shots == 10] if name in paper else None
            search = SEARCHES.get(name)
            rows.append(
                Row(
                    f"{label}, {shots}-shot",
                    f"toy-{shots}shot",
                    learner=search.learner if search else name,
                    paper=figure,
                    search=search,
                    settings=by_hand.get(name, {}),
                    test_steps=10 if name == "scratch" else None,  # of 100 updates each
                )
            )
        rows.append(Row(f"HSML (ours), {shots}-shot", f"toy-{shots}shot-best"))
    return tuple(rows)


EXPERIMENTS: dict[str, Experiment] = {
    "toy": Experiment(
        "HSML and MAML on four families of functions, 5 and 10 points (paper, section 6.1)",
        minutes={"paper": 130, "quick": 10},
        rows=(
            Row("MAML, 5-shot", "toy-5shot", (0,), "maml", "2.205 ± 0.121"),
            Row("HSML, 5-shot, the paper's protocol", "toy-5shot", (0, 1, 2), None, "0.856 ± 0.073", "toy-5shot"),
            Row("HSML, 5-shot, rows sorted in training", "toy-5shot-sorted", (0,)),
            Row("HSML, 5-shot, ours", "toy-5shot-best", (0, 1, 2), release="toy-5shot-best"),
            Row("MAML, 10-shot", "toy-10shot", (0,), "maml", "0.761 ± 0.068"),
            Row("HSML, 10-shot, the paper's protocol", "toy-10shot", (0,), None, "0.161 ± 0.021", "toy-10shot"),
            Row("HSML, 10-shot, ours", "toy-10shot-best", (0,), release="toy-10shot-best"),
        ),
    ),
    "table1": Experiment(
        "every method on the same tasks, each with settings chosen by an equal search (paper, table 1)",
        minutes={"paper": 240, "quick": 30},
        rows=table1(),
        test_seed=1,
        test_steps=50,
        tasks=10_000,
    ),
}

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
    """The released model that the seed with the best validation becomes; the size of pictures, if given, is added."""
    search: Search | None = None
    """Where the row's settings are chosen; without it they are the preset's and the learner's own."""
    settings: Settings = dataclasses.field(default_factory=dict)
    """Changes to the preset; the budget's and the search's go before them."""
    test_steps: int | None = None
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
IMAGE_BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, None, 4_000),
    "small": Budget({"steps": 10_000, "queries": 5, "augment": True}, None, 4_000),
    "quick": Budget({"steps": 500, "queries": 5, "augment": True, "validate_every": 250}, None, 400),
}
"""For pictures: the paper's protocol; what an afternoon without a GPU allows (with --size 32); a look at it."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Rows whose sources agree are evaluated on the same tasks; the first of a source is their yardstick."""

    about: str
    rows: tuple[Row, ...]
    minutes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How long a budget took on two cores, one training after another, where it was measured."""
    test_seed: int = 0
    """Decides the test tasks."""
    test_steps: int | None = None
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


IMAGE_METHODS = {
    "HSML (ours)": "hsml-ours",
    "HSML (clusters first)": "hsml-clusters-first",
    "MAML": "maml",
    "MUMOMAML": "mumomaml",
    "ProtoNet": "protonet",
    "HSML": "hsml",
    "Matching networks": "matching-net",
    "ANIL": "anil",
    "Reptile": "reptile",
    "Meta-SGD": "meta-sgd",
    "MT-Net": "mt-net",
    "ARML": "arml",
    "BMAML": "bmaml",
}
"""Of the image experiments, those that matter most first."""

OUR_HSML: Settings = {
    "aggregator": "attention",
    "attention_layers": 2,
    "picture_look": "moments",
    "embedding_scale": 0.3,
    "scales": (0.7, 1.0),
    "relative_scales": True,
    "gate": "affine",
    "gate_rank": 16,
    "reconstruction_weight": 0.0,
}
IMAGE_SETTINGS: dict[str, Settings] = {
    "hsml-ours": OUR_HSML,
    "hsml-clusters-first": {**OUR_HSML, "embedding_scale": 0.03, "start_tasks": 2000, "gate_sees_shares": True},
    "anil": {"adapts": "head"},
    "mumomaml": {"hidden_dim": 64, "clip_norm": 2.0},
    "arml": {"example_dim": 64, "task_dim": 128},
    "bmaml": {"inner_lr": 0.05, "inner_steps": 5, "inner_clip": 0.0},
}
"""What a method changes in the image presets, beside the step size that all share."""


def image_row(label: str, name: str, preset: str, paper: str | None = None, **settings: Any) -> Row:
    """A method on pictures."""
    learner = {"hsml": None, "hsml-ours": None, "hsml-clusters-first": None, "anil": "maml"}.get(name, name)
    return Row(label, preset, learner=learner, paper=paper, settings={**IMAGE_SETTINGS.get(name, {}), **settings})


def table2() -> tuple[Row, ...]:
    """Every method on the four datasets, 1 shot first; the paper's figures are averages over the datasets."""
    paper = {
        "HSML": ("49.35", "62.39"),
        "MAML": ("44.77", "57.78"),
        "Meta-SGD": ("45.67", "58.18"),
        "MT-Net": ("45.59", "58.08"),
        "BMAML": ("45.89", "58.31"),
        "MUMOMAML": ("46.50", "59.41"),
        "ARML": ("50.34", "63.86"),  # its own paper: the mean of four published accuracies
    }
    rows = tuple(
        image_row(f"{label}, {shots}-shot", name, f"images-{shots}shot", paper.get(label, (None, None))[shots == 5])
        for shots in (1, 5)
        for label, name in IMAGE_METHODS.items()
    )
    return tuple(
        dataclasses.replace(row, release=row.preset) if row.label.startswith("HSML (ours)") else row for row in rows
    )


def leave_one_out() -> tuple[Row, ...]:
    """Trained and chosen on three datasets, tested on all classes of the fourth."""
    paper = {
        "MAML": ("40.76 ± 0.68", "29.50 ± 0.65", "29.54 ± 0.63", "29.94 ± 0.64"),
        "MUMOMAML": ("41.58 ± 0.68", "30.24 ± 0.68", "30.69 ± 0.66", "30.63 ± 0.66"),
        "HSML": ("42.54 ± 0.67", "30.90 ± 0.67", "31.23 ± 0.64", "32.98 ± 0.68"),
        "HSML (ours)": (None,) * 4,
    }
    return tuple(
        image_row(f"{label}, {dataset}", IMAGE_METHODS[label], "images-1shot", figure, held_out=dataset)
        for label, figures in paper.items()
        for dataset, figure in zip(("bird", "texture", "aircraft", "fungi"), figures, strict=True)
    )


def mini_imagenet() -> tuple[Row, ...]:
    """One dataset, where tasks are all alike."""
    paper = {
        "HSML": "50.38 ± 1.85",
        "HSML (ours)": None,
        "ProtoNet": "46.61 ± 0.78",
        "MAML": "48.70 ± 1.84",
        "MUMOMAML": "49.86 ± 1.85",
        "Matching networks": "43.56 ± 0.34",
        "Reptile": "49.97 ± 0.32",
        "Meta-SGD": "50.47 ± 1.87",
        "MT-Net": "49.75 ± 1.83",
        "BMAML": "50.01 ± 1.86",
    }
    plain = {"mt-net": {"transform": False}}  # as in the paper: T would add capacity
    return tuple(
        image_row(label, IMAGE_METHODS[label], "mini-imagenet-1shot", figure, **plain.get(IMAGE_METHODS[label], {}))
        for label, figure in paper.items()
    )


CONTINUAL_BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, None, 40_000),
    "small": Budget({"steps": 14_000, "growth_cooldown": 1_600, "growth_window": 200, "log_every": 20}, None, 10_000),
    "quick": Budget(
        {"steps": 2_800, "growth_cooldown": 320, "growth_window": 40, "log_every": 10, "validate_every": 200},
        None,
        4_000,
    ),
}
"""Of a stream of functions; its timetable is in fractions of the budget, and windows shrink with it."""
CONTINUAL_IMAGE_BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, None, 4_000),
    "small": Budget({"steps": 2_000, "queries": 5, "augment": True, "growth_cooldown": 400}, None, 2_000),
    "quick": Budget({"steps": 400, "queries": 5, "augment": True, "growth_cooldown": 80}, None, 400),
}


STATIC: Settings = {"growth_window": 0}


def continual_toy() -> tuple[Row, ...]:
    """The growing hierarchy, two that stay as they are, and one whose clusters start among the tasks that fit worst, on
    the same stream; then with the authors' quadratic."""
    paper = {"HSML-S (2C)": "0.933 ± 0.074", "HSML-S (10C)": "0.889 ± 0.071", "HSML-D": "0.869 ± 0.072"}
    own: dict[str, Settings] = {
        "HSML-D": {},
        "HSML-S (2C)": STATIC,
        "HSML-S (10C)": {**STATIC, "clusters": (10, 2, 1)},
    }
    easier: Settings = {
        "families": ("sinusoid", "line", "parabola", "cubic"),
        "timetable": ("0: sinusoid line", "3/14: sinusoid line parabola", "3/7: *"),
    }
    rows = [Row(label, "continual-toy", (0, 1, 2), None, paper[label], settings=own[label]) for label in own]
    rows += [Row("HSML-D, warm start", "continual-toy", (0, 1, 2), settings={"growth_start": "warm"})]
    rows += [
        Row(f"{label}, easier quadratic", "continual-toy", (0,), None, paper[label], settings={**own[label], **easier})
        for label in own
    ]
    return tuple(rows)


def continual_images() -> tuple[Row, ...]:
    """The same on pictures, and MUMOMAML; and a hierarchy that grows by what the embeddings tell."""
    ours = IMAGE_SETTINGS["hsml-ours"]
    mumomaml = {**IMAGE_SETTINGS["mumomaml"], **STATIC}
    return (
        Row("HSML-D", "continual-images", paper="47.96", settings=ours),
        Row("HSML-D by novelty", "continual-images", settings={**ours, "growth_detector": "novelty"}),
        Row("HSML-S (2C)", "continual-images", paper="46.56", settings={**ours, **STATIC}),
        Row("HSML-S (10C)", "continual-images", paper="46.63", settings={**ours, **STATIC, "clusters": (10, 2, 1)}),
        Row("MUMOMAML", "continual-images", learner="mumomaml", paper="44.11", settings=mumomaml),
    )


IMAGE_EXPERIMENT: Settings = {
    "tasks": 4_000,
    "every_step": False,
    "keep_scores": True,
    "budgets": IMAGE_BUDGETS,
    "remark": (
        "The paper's figures stand beside ours for orientation, unless the pools are its own pictures at 84 px and the "
        "budget is its own: `data` names the pools that were used by their checksums. Normalisation takes the "
        "statistics of the set that is classified, the queries included."
    ),
}

EXPERIMENTS: dict[str, Experiment] = {
    "toy": Experiment(
        "HSML and MAML on four families of functions, 5 and 10 points (paper, section 6.1)",
        minutes={"paper": 130},
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
        minutes={"paper": 240},
        rows=table1(),
        test_seed=1,
        test_steps=50,
        tasks=10_000,
    ),
    "table2": Experiment(
        "every method on pictures of four datasets, 5 ways, 1 and 5 shots (paper, table 2)",
        rows=table2(),
        **IMAGE_EXPERIMENT,
    ),
    "leave-one-out": Experiment(
        "trained on three datasets, tested on the fourth (paper, appendix E)",
        rows=leave_one_out(),
        **IMAGE_EXPERIMENT,
    ),
    "mini-imagenet": Experiment(
        "MiniImagenet, 5 ways, 1 shot (paper, appendix D)",
        rows=mini_imagenet(),
        **IMAGE_EXPERIMENT,
    ),
    "continual-toy": Experiment(
        "a stream of functions: a hierarchy that grows against two that do not (paper, figure 4)",
        rows=continual_toy(),
        budgets=CONTINUAL_BUDGETS,
    ),
    "continual-images": Experiment(
        "a stream of pictures: a hierarchy that grows against two that do not, and MUMOMAML (paper, figure 7)",
        rows=continual_images(),
        **{**IMAGE_EXPERIMENT, "budgets": CONTINUAL_IMAGE_BUDGETS},
    ),
}

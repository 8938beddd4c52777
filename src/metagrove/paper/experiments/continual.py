"""Experiments on streams in which new families arrive (paper, figures 4 and 7)."""

from metagrove.paper.experiments.images import IMAGE_EXPERIMENT, IMAGE_SETTINGS
from metagrove.paper.experiments.kinds import Budget, Experiment, Row, Settings

CONTINUAL_BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, None, 40_000),
    "studies": Budget({"steps": 20_000, "growth_cooldown": 2_280, "growth_window": 280, "log_every": 20}, None, 10_000),
    "small": Budget({"steps": 14_000, "growth_cooldown": 1_600, "growth_window": 200, "log_every": 20}, None, 10_000),
    "quick": Budget(
        {"steps": 2_800, "growth_cooldown": 320, "growth_window": 40, "log_every": 10, "validate_every": 200},
        None,
        4_000,
    ),
}
"""Budgets for a stream of functions; its timetable is in fractions of the meta-steps, and the windows are scaled."""
CONTINUAL_IMAGE_BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, None, 4_000),
    "studies": Budget({"steps": 3_000, "queries": 5, "augment": True, "growth_cooldown": 600}, None, 4_000),
    "small": Budget({"steps": 2_000, "queries": 5, "augment": True, "growth_cooldown": 400}, None, 2_000),
    "quick": Budget({"steps": 400, "queries": 5, "augment": True, "growth_cooldown": 80}, None, 400),
}


STATIC: Settings = {"growth_window": 0}


def continual_toy() -> tuple[Row, ...]:
    """Rows on a stream of functions: HSML-D, two static hierarchies, and HSML-D with warm starts.

    Then the first three with the quadratic of the authors' code, and HSML-D and HSML-S (2C) without a gate (A4c).
    """
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
        Row(
            f"{label}, easier quadratic",
            "continual-toy",
            (0, 1, 2),
            None,
            paper[label],
            settings={**own[label], **easier},
        )
        for label in own
    ]
    rows += [
        Row(f"{label}, A4c, generated directly", "continual-toy", (0, 1, 2), settings={**own[label], "gate": "direct"})
        for label in ("HSML-D", "HSML-S (2C)")
    ]
    return tuple(rows)


def continual_toy_return() -> tuple[Row, ...]:
    """Rows on a stream whose families leave and return: a growing hierarchy and two static ones, three seeds."""
    own: dict[str, Settings] = {
        "HSML-D": {},
        "HSML-D, warm start": {"growth_start": "warm"},
        "HSML-S (2C)": STATIC,
        "HSML-S (10C)": {**STATIC, "clusters": (10, 2, 1)},
    }
    return tuple(Row(label, "continual-toy-return", (0, 1, 2), settings=settings) for label, settings in own.items())


def continual_images() -> tuple[Row, ...]:
    """Rows on a stream of images: HSML-D, HSML-D with the novelty detector, static hierarchies, MUMOMAML."""
    ours = IMAGE_SETTINGS["hsml-a"]
    mumomaml = {**IMAGE_SETTINGS["mumomaml"], **STATIC}
    return (
        Row("HSML-D", "continual-images", paper="47.96", settings=ours),
        Row("HSML-D by novelty", "continual-images", settings={**ours, "growth_detector": "novelty"}),
        Row("HSML-S (2C)", "continual-images", paper="46.56", settings={**ours, **STATIC}),
        Row("HSML-S (10C)", "continual-images", paper="46.63", settings={**ours, **STATIC, "clusters": (10, 2, 1)}),
        Row("MUMOMAML", "continual-images", learner="mumomaml", paper="44.11", settings=mumomaml),
    )


CONTINUAL_TOY = Experiment(
    "a stream of functions: a hierarchy that grows against two that do not (paper, figure 4)",
    rows=continual_toy(),
    budgets=CONTINUAL_BUDGETS,
)

CONTINUAL_TOY_RETURN = Experiment(
    "a stream of functions whose families leave and return, to measure forgetting",
    rows=continual_toy_return(),
    budgets=CONTINUAL_BUDGETS,
)


def detectors() -> tuple[Row, ...]:
    """Rows of each detector of growth on two streams of functions; in the second one families leave and return."""
    grove: Settings = {"clusters": (4, 2, 1), "fit_steps": 1000}
    own: dict[str, tuple[str | None, Settings]] = {
        "Grove by evidence": ("grove", {**grove, "growth_detector": "evidence", "growth_cooldown": 0}),
        "Grove, no growth": ("grove", {**grove, **STATIC}),
        "HSML-D by ratio": (None, {}),
        "HSML-D by novelty": (None, {"growth_detector": "novelty"}),
    }
    streams = {"": "continual-toy", ", families return": "continual-toy-return"}
    return tuple(
        Row(label + ending, preset, learner=learner, settings=settings)
        for ending, preset in streams.items()
        for label, (learner, settings) in own.items()
    )


CONTINUAL_DETECTORS = Experiment(
    "streams of functions: growth by evidence, by the paper's ratio and by novelty",
    rows=detectors(),
    budgets=CONTINUAL_BUDGETS,
)

CONTINUAL_IMAGES = Experiment(
    "a stream of images: a hierarchy that grows against two that do not, and MUMOMAML (paper, figure 7)",
    rows=continual_images(),
    **{**IMAGE_EXPERIMENT, "budgets": CONTINUAL_IMAGE_BUDGETS},
)

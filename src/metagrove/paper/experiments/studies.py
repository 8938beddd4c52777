"""Studies of HSML's parts, on functions and on images.

Ablations (appendix H), numbers of clusters (table 3, appendix F) and aggregators (appendix G).
"""

from metagrove.paper.experiments.images import HSML_A, IMAGE_EXPERIMENT
from metagrove.paper.experiments.kinds import Budget, Experiment, Row, Settings
from metagrove.sources.functions import Functions

SEEDS = (0, 1, 2)
PAPER_CLUSTERS = (4, 2, 1)
WHOLE, WHOLE_IMAGES = ("ablations", "HSML"), ("table2", "HSML, 1-shot")
"""The rows whose runs all studies share: HSML as in the paper."""

PRETRAINED = "1/4: embed by reconstruction; net cluster gate"
ABLATIONS: dict[str, tuple[Settings, str | None]] = {
    # variant: its settings, and the mean of the paper's four accuracies on images
    "HSML": ({}, "49.35"),
    "A2a, embedding pretrained and frozen": ({"phases": PRETRAINED}, "43.18"),
    "A2b, last state of the encoder": ({"summary": "last"}, "48.03"),
    "A3a, no clustering": ({"cluster": "none"}, "47.39"),
    "A3b, flat clustering": ({"clusters": (4, 1)}, "47.96"),
    "A4a, gate on the cluster representation alone": ({"gate_inputs": ("root",)}, "48.07"),
    "A4b, FiLM instead of the gate": ({"gate": "film"}, "49.25"),
    "A4c, initialisation generated directly": ({"gate": "direct"}, "45.19"),
}
"""The variants of appendix H except A1, which has a row for each family."""

CLUSTERS: dict[tuple[int, ...], str | None] = {
    # K^1 ... K^L, and the paper's average accuracy on images
    (4, 2, 1): "49.35",
    (1,): None,
    (2, 2, 1): "47.65",
    (6, 3, 1): "48.45",
    (8, 4, 2, 1): "49.08",
    (8, 4, 4, 1): "49.08",
}
"""Table 3 has (8, 4, 2, 1), appendix F (8, 4, 4, 1), both with the same accuracies; (1,) is the control."""

AGGREGATORS: dict[str, str] = {
    "GRU": "gru",
    "mean pooling": "mean",
    "LSTM": "lstm",
    "max pooling": "max",
    "attention": "attention",
}
PAPER_AGGREGATORS: dict[tuple[str, int], str] = {
    # (aggregator, shots): the paper's average accuracy
    ("GRU", 1): "49.35",
    ("mean pooling", 1): "46.14",
    ("GRU", 3): "58.80",
    ("mean pooling", 3): "58.07",
    ("GRU", 5): "62.39",
    ("mean pooling", 5): "61.40",
    ("GRU", 8): "65.01",
    ("mean pooling", 8): "64.97",
}


def ablations() -> tuple[Row, ...]:
    """Rows on functions: HSML, one MAML for each family, and the other variants."""
    whole, *variants = (Row(label, "toy-5shot", SEEDS, settings=settings) for label, (settings, _) in ABLATIONS.items())
    alone = (
        Row(f"A1, MAML, {family} alone", "toy-5shot", SEEDS, "maml", settings={"families": (family,)})
        for family in Functions().families
    )
    return (whole, *alone, *variants)


def image_ablations() -> tuple[Row, ...]:
    """Rows on images, 1 shot; A1 is the experiment each-alone."""
    return tuple(
        Row(label, "images-1shot", paper=paper, settings=settings, shares=None if settings else WHOLE_IMAGES)
        for label, (settings, paper) in ABLATIONS.items()
    )


def cluster_numbers() -> tuple[Row, ...]:
    """Rows on functions with other numbers of clusters, and the number selected by evidence, with its control."""
    own = ("HSML-E, the evidence's own choice", "toy-5shot-evidence"), ("HSML-E (1,)", "toy-5shot-one-cluster")
    by_distance = tuple(
        Row(
            str(clusters),
            "toy-5shot",
            SEEDS,
            settings={"clusters": clusters},
            shares=WHOLE if clusters == PAPER_CLUSTERS else None,
        )
        for clusters in CLUSTERS
    )
    return (*by_distance, *(Row(label, preset, SEEDS) for label, preset in own))


def image_cluster_numbers() -> tuple[Row, ...]:
    """Rows on images: HSML, and HSML-A, whose clusters are used."""
    rows = [
        Row(
            f"HSML {clusters}",
            "images-1shot",
            paper=paper,
            settings={"clusters": clusters},
            shares=WHOLE_IMAGES if clusters == PAPER_CLUSTERS else None,
        )
        for clusters, paper in CLUSTERS.items()
    ]
    rows += [
        Row(
            f"HSML (ours) {clusters}",
            "images-1shot",
            settings={**HSML_A, "clusters": clusters},
            shares=("table2", "HSML (ours), 1-shot") if clusters == PAPER_CLUSTERS else None,
        )
        for clusters in ((4, 2, 1), (1,), (2, 2, 1), (8, 4, 4, 1))
    ]
    return tuple(rows)


def aggregators() -> tuple[Row, ...]:
    """Rows on functions: every aggregator at 5 and 10 points."""
    return tuple(
        Row(
            f"{label}, {shots}-shot",
            f"toy-{shots}shot",
            SEEDS,
            settings={"embed": embed},
            shares=WHOLE if (label, shots) == ("GRU", 5) else None,
        )
        for shots in (5, 10)
        for label, embed in AGGREGATORS.items()
    )


def image_aggregators() -> tuple[Row, ...]:
    """Rows on images: GRU and mean pooling at 1, 3, 5 and 8 shots, the others at 1 shot."""
    return tuple(
        Row(
            f"{label}, {shots}-shot",
            "images-1shot" if shots == 1 else "images-5shot",
            paper=PAPER_AGGREGATORS.get((label, shots)),
            settings={"embed": embed, "shots": shots},
            shares=("table2", f"HSML, {shots}-shot") if label == "GRU" and shots in (1, 5) else None,
        )
        for shots in (1, 3, 5, 8)
        for label, embed in AGGREGATORS.items()
        if shots == 1 or (label, shots) in PAPER_AGGREGATORS
    )


def softplus() -> tuple[Row, ...]:
    """Rows on images at 32 px with softplus(κx)/κ in place of ReLU, trained for a few hundred meta-steps."""
    rows = [Row("ReLU", "images-32-1shot")]
    rows += [
        Row(f"softplus, κ = {kappa}", "images-32-1shot", settings={"softplus": float(kappa)})
        for kappa in (1, 3, 10, 30)
    ]
    return tuple(rows)


SOFTPLUS_BUDGETS = {
    "paper": Budget({"steps": 300, "validate_every": 150}, None, 400),
    "studies": Budget({"steps": 300, "validate_every": 150}, None, 400),
    "small": Budget({"steps": 300, "validate_every": 150}, None, 400),
    "quick": Budget({"steps": 100, "validate_every": 50}, None, 400),
}

TEST_TASKS: Settings = {"tasks": 10_000, "test_seed": 1}

STUDIES: dict[str, Experiment] = {
    "ablations": Experiment(
        "HSML on functions with one part removed or replaced (paper, appendix H)", rows=ablations(), **TEST_TASKS
    ),
    "ablations-images": Experiment(
        "the same on images of four datasets, 1 shot; A1 is each-alone (paper, appendix H)",
        rows=image_ablations(),
        **IMAGE_EXPERIMENT,
    ),
    "cluster-numbers": Experiment(
        "HSML on functions with other numbers of clusters", rows=cluster_numbers(), **TEST_TASKS
    ),
    "cluster-numbers-images": Experiment(
        "the same on images of four datasets, 1 shot (paper, table 3 and appendix F)",
        rows=image_cluster_numbers(),
        **IMAGE_EXPERIMENT,
    ),
    "aggregators": Experiment(
        "HSML on functions with other aggregators, 5 and 10 points", rows=aggregators(), **TEST_TASKS
    ),
    "aggregators-images": Experiment(
        "the same on images of four datasets, 1, 3, 5 and 8 shots (paper, appendix G)",
        rows=image_aggregators(),
        **IMAGE_EXPERIMENT,
    ),
    "softplus": Experiment(
        "softplus in place of ReLU in Conv-4: the cost of smoothness (paper, section 5)",
        rows=softplus(),
        **{**IMAGE_EXPERIMENT, "budgets": SOFTPLUS_BUDGETS},
    ),
}

"""MiniImagenet (appendix D): every method of the paper's table, two settings of each selected on validation tasks."""

from metagrove.paper.experiments.images import HSML_A, IMAGE_BUDGETS, IMAGE_EXPERIMENT, IMAGE_SETTINGS
from metagrove.paper.experiments.kinds import Budget, Experiment, Row, Search, Settings

PRESET = "mini-imagenet-1shot"
AT_32_PX: Settings = {"queries": 5, "augment": True, "schedule": "cosine"}
BUDGETS: dict[str, Budget] = {
    "paper": Budget({}, None, 4_000),
    "studies": Budget(
        {**AT_32_PX, "steps": 1500, "validate_every": 750},
        {**AT_32_PX, "steps": 300, "validate_every": 300},
        1_000,
    ),
    "small": IMAGE_BUDGETS["small"],
    "quick": Budget({**AT_32_PX, "steps": 300, "validate_every": 150}, None, 400),
}
"""The paper's protocol; with --size 32, 1,500 meta-steps with cosine decay after a search by trials of 300, or 10,000
without decay and search; a smoke test."""

RATES: tuple[Settings, ...] = ({"outer_lr": 0.001}, {"outer_lr": 0.003})
"""The two candidates of most methods."""
SLOW: tuple[Settings, ...] = ({"outer_lr": 0.0003}, {"outer_lr": 0.001})
MANY_NETS: Settings = {"validation_tasks": 50}
"""A validation of ten nets costs ten of MAML's."""
REPTILE: Settings = {
    "inner_rule": "adam",
    "inner_steps": 8,
    "minibatch": 10,
    "test_minibatch": 5,
    "max_eval_inner_steps": 50,
    "outer_rule": "sgd",
    "outer_lr": 1.0,
    "schedule": "linear",
    "meta_batch": 5,
    "queries": 14,  # with the support, 15 images of each class
}
METHODS: dict[str, tuple[str, str | None, Settings, tuple[Settings, ...]]] = {
    # label: learner, value in the paper, settings, two candidates
    "ProtoNet": ("protonet", "46.61 ± 0.78", {}, RATES),
    "MAML": ("maml", "48.70 ± 1.84", {}, RATES),
    "HSML": ("hsml", "50.38 ± 1.85", {}, RATES),
    "HSML (ours)": ("hsml", None, HSML_A, RATES),
    "mAP-DLM": ("map-dlm", "49.82 ± 0.78", {"train_ways": 8, "queries": 7}, RATES),
    "Matching networks": ("matching-net", "43.56 ± 0.34", {}, RATES),
    "Matching networks, FCE": ("matching-net-fce", "43.56 ± 0.34", {}, RATES),
    "Relation Net": ("relation-net", "50.44 ± 0.82", {"filters": 32, "clip_norm": 0.5}, RATES),
    "GNN": ("gnn", "50.33 ± 0.36", {}, RATES),
    "SNAIL": ("snail", "45.10 ± 0.00", {}, SLOW),
    "LLAMA": ("llama", "49.40 ± 1.83", {"outer_lr": 0.003}, ({}, {"curvature_weight": 1e-5})),
    "PLATIPUS": (
        "platipus",
        "50.13 ± 1.86",
        {"outer_lr": 0.003, **MANY_NETS},
        ({"kl_weight": 1e-6}, {"kl_weight": 1e-4}),
    ),
    "Reptile": ("reptile", "49.97 ± 0.32", REPTILE, ({"inner_lr": 0.001}, {"inner_lr": 0.003})),
    "Meta-learner LSTM": (
        "meta-lstm",
        "43.44 ± 0.77",
        {"max_eval_inner_steps": 12, "clip_norm": 0.25},
        ({"step_bias": -4.5}, {"step_bias": -3.0}),
    ),
    "Meta-SGD": ("meta-sgd", "50.47 ± 1.87", {}, RATES),
    "MT-Net": ("mt-net", "49.75 ± 1.83", {"transform": False}, RATES),  # as in the paper: T would add capacity
    "MUMOMAML": ("mumomaml", "49.86 ± 1.85", IMAGE_SETTINGS["mumomaml"], RATES),
    "BMAML": ("bmaml", "50.01 ± 1.86", {**IMAGE_SETTINGS["bmaml"], **MANY_NETS}, RATES),
}
"""Methods in the order in which they run: ProtoNet and MAML first, so that a broken method is seen at once."""

REMARKS = {
    "Matching networks": "± 0.84 in its source, Ravi & Larochelle (2017), and with FCE",
    "Matching networks, FCE": "± 0.84 in Ravi & Larochelle (2017)",
    "ProtoNet": "trained with 5 ways; 49.42 is the published value with 30-way training",
    "SNAIL": "the shallow embedding, for which no CI was published; 55.71 with a ResNet",
    "GNN": "published with a wider net, 64-96-128-256 channels",
    "Relation Net": "published with six convolutions of 64 channels in all; here of 32",
    "LLAMA": "of Grant et al. (2018), whose text has other splits; the paper cites Finn et al. (2017)",
    "Reptile": "transductive; published without: 47.07",
    "MT-Net": "without T; 51.70 ± 1.84 with",
    "PLATIPUS": "with 10 samples at test",
}
"""What a reader of the paper's values needs to know."""


def mini_imagenet() -> tuple[Row, ...]:
    """Rows of all methods; settings of a search override those of the budget."""
    rows = []
    for label, (learner, paper, settings, candidates) in METHODS.items():
        name = "-".join(label.lower().replace(",", "").replace("(", "").replace(")", "").split())
        search = Search(name, PRESET, learner, candidates, settings)
        rows.append(Row(label, PRESET, learner=learner, paper=paper, settings=settings, search=search))
    return tuple(rows)


MINI_IMAGENET = Experiment(
    "MiniImagenet, 5 ways, 1 shot: every method of the paper's table (appendix D)",
    rows=mini_imagenet(),
    **{**IMAGE_EXPERIMENT, "budgets": BUDGETS},
)

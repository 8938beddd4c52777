"""Options of gradient-based learners on images, one at a time: which benefits of a hierarchy transfer to new classes?

Each addition is trained for HSML-F, MAML and ProtoNet where it applies, by short trainings. The combination that
validation tasks select is then trained longer with three seeds, as are the other methods with the same additions.
"""

import dataclasses
from typing import Any

from metagrove.paper.experiments.images import IMAGE_BUDGETS, IMAGE_EXPERIMENT, IMAGE_SETTINGS
from metagrove.paper.experiments.kinds import Budget, Experiment, Row, Settings

METHODS = {"MAML": "maml", "HSML-F": None, "ProtoNet": "protonet"}
"""Learner of each method; None for that of the preset, HSML."""
HSML_F: Settings = IMAGE_SETTINGS["hsml-f"]
OUTER_LR = {"MAML": 0.003, "HSML-F": 0.001, "ProtoNet": 0.003}
"""Initial β, with cosine decay, as in table 2."""

PROTOTYPES: Settings = {"head": "prototypes", "inner_steps": 1}
SCALES: Settings = {"channel_scales": True, "layer_rates": True}
"""Parameters that each node of a small gate has, and that MAML then has once."""
SMALL_NODES: Settings = {
    **{name: value for name, value in HSML_F.items() if name not in ("gate_rank", "gate_inputs")},
    **SCALES,
    "gate": "small",
    "outer_lr": 0.002,
}


def row(method: str, addition: str = "", **settings: Any) -> Row:
    """Make the row of a method with an addition."""
    own: Settings = HSML_F if method == "HSML-F" and "gate" not in settings else {}
    settings = {"schedule": "cosine", "outer_lr": OUTER_LR[method], **own, **settings}
    label = f"{method}, {addition}" if addition else method
    return Row(label, "images-1shot", learner=METHODS[method], settings=settings)


def options() -> tuple[Row, ...]:
    """The methods without additions, then one addition at a time, some of them together with a prototype head."""
    rotated, mixed, pretrained = {"rotate": 0.25}, {"mix": 0.25}, {"pretrain_steps": 2_000}
    attention: Settings = {**PROTOTYPES, "set_attention": True}
    rows = [
        row("MAML", "prototype head", **PROTOTYPES, outer_lr=0.002),
        row("HSML-F", "prototype head", **PROTOTYPES),
        row("ProtoNet"),
        row("HSML-F", "prototype head, small nodes", **PROTOTYPES, **SMALL_NODES),
        row("MAML"),
        row("HSML-F"),
        row("HSML-F", "small nodes", **SMALL_NODES),
        row("MAML", "channel scales and layer rates", **SCALES),
        row("MAML", "prototype head, channel scales and layer rates", **PROTOTYPES, **SCALES, outer_lr=0.002),
        row("MAML", "prototype head, set attention", **attention, outer_lr=0.002),
        row("HSML-F", "prototype head, set attention", **attention),
        row(
            "HSML-F",
            "prototype head, set attention, small nodes",
            **attention,
            **SMALL_NODES,
            gate_owns=("film", "rates", "scale", "attention"),
        ),
        row("ProtoNet", "set attention", set_attention=True),
    ]
    for name, addition in (("rotated classes", rotated), ("pretrained", pretrained), ("mixed classes", mixed)):
        rows += [row("MAML", name, **addition), row("HSML-F", name, **addition), row("ProtoNet", name, **addition)]
    body = {"adapts": "body", "inner_lr": 0.5}  # learning rate of the body as in BOIL
    rows += [row("MAML", "body adapts", **body), row("HSML-F", "body adapts", **body)]
    return tuple(rows)


def combination() -> tuple[Row, ...]:
    """The combination of HSML-F, MAML with the same additions, and ProtoNet, with three seeds."""
    rows = (
        row("MAML", "combination", **PROTOTYPES, **SCALES, outer_lr=0.002),
        row("HSML-F", "combination", **PROTOTYPES, **SMALL_NODES),
        row("HSML-F", "prototype head", **PROTOTYPES),
        row("ProtoNet"),
    )
    return tuple(dataclasses.replace(one, seeds=(0, 1, 2)) for one in rows)


TRIAL: Settings = {"steps": 2_500, "queries": 5, "augment": True, "validate_every": 500, "validation_tasks": 400}
OPTION_BUDGETS: dict[str, Budget] = {
    "paper": IMAGE_BUDGETS["paper"],
    "trials": Budget(TRIAL, None, 400),
    "quick": IMAGE_BUDGETS["quick"],
}
"""Budgets of the additions: with --size 32, a quarter of an hour for each row (trials)."""

IMAGE_OPTIONS = Experiment(
    "additions to HSML-F, MAML and ProtoNet on images of four datasets, one at a time, 1 shot",
    rows=options(),
    **{**IMAGE_EXPERIMENT, "budgets": OPTION_BUDGETS},
)
IMAGE_COMBINATION = Experiment(
    "the best combination of additions, and MAML with the same, three seeds, 1 shot",
    rows=combination(),
    **IMAGE_EXPERIMENT,
)

"""Experiments on functions of one variable: HSML and MAML, and the paper's table 1."""

import itertools
from typing import Any

from metagrove.paper.experiments.kinds import Experiment, Row, Search, Settings


def choices(**lists: tuple[Any, ...]) -> tuple[Settings, ...]:
    """Return every combination of the given values."""
    return tuple(dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))


STEEP: Settings = {"inner_clip": 10.0, "clip_norm": 2.0}
INNER_LOOPS: tuple[Settings, ...] = (
    {},  # the paper's: α = .001, 5 steps, no clipping
    {"inner_lr": 0.001, **STEEP},
    {"inner_lr": 0.003, **STEEP},
    {"inner_lr": 0.01, **STEEP},
    {"inner_lr": 0.003},
    {"inner_steps": 10},
)
"""Inner learning rate, number of steps and clipping: the same six for every method with MAML's inner loop."""

FINAL: Settings = {"schedule": "cosine", "warmup_steps": 500, "clip_norm": 1.0}

SEARCHES: dict[str, Search] = {
    search.name: search
    for search in (
        Search("hsml", "toy-5shot", "hsml", INNER_LOOPS, known=2),
        Search("maml", "toy-5shot", "maml", INNER_LOOPS),
        Search("anil", "toy-5shot", "maml", INNER_LOOPS, {"adapts": "head"}, known=3),
        Search("meta-sgd", "toy-5shot", "meta-sgd", INNER_LOOPS, known=1),
        Search("meta-sgd-10", "toy-10shot", "meta-sgd", INNER_LOOPS, known=1),
        Search("mt-net", "toy-5shot", "mt-net", INNER_LOOPS, known=3),
        Search("mumomaml", "toy-5shot", "mumomaml", INNER_LOOPS, known=3),
        Search("arml", "toy-5shot", "arml", INNER_LOOPS, known=1),
        Search(
            "reptile",
            "toy-5shot",
            "reptile",
            choices(inner_lr=(0.0003, 0.001, 0.003), inner_steps=(2, 5)),
            {"schedule": "cosine"},  # its paper decays the outer learning rate to 0
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
        Search("llama", "toy-5shot", "llama", INNER_LOOPS),
        Search("platipus", "toy-5shot", "platipus", INNER_LOOPS),
        Search(
            "meta-lstm",
            "toy-5shot",
            "meta-lstm",
            choices(step_bias=(-6.0, -4.5, -3.0), inner_clip=(0.0, 10.0)),
            {"inner_steps": 5, "clip_norm": 1.0},
        ),
        Search(
            "snail",
            "toy-5shot",
            "snail",
            choices(outer_lr=(0.0003, 0.001, 0.003), dilations=((1, 2, 4), (1, 2, 4, 8))),
            {"key_dims": (32, 64, 64), "value_dims": (32, 64, 64), "filters_per_block": 64, **FINAL},
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


PUBLISHED = {
    "hsml": ("0.856 ± 0.073", "0.161 ± 0.021"),
    "maml": ("2.205 ± 0.121", "0.761 ± 0.068"),
    "meta-sgd": ("2.053 ± 0.117", "0.836 ± 0.065"),
    "mt-net": ("2.435 ± 0.130", "0.967 ± 0.056"),
    "bmaml": ("2.016 ± 0.109", "0.698 ± 0.054"),
    "mumomaml": ("1.096 ± 0.085", "0.256 ± 0.028"),
}
"""Mean squared errors of the paper's table 1, with 5 and 10 support points."""
LABELS = {
    "hsml": "HSML",
    "hsml-affine": "HSML, affine gate",
    "scratch": "From scratch",
    "reptile": "Reptile",
    "anil": "ANIL",
    "maml": "MAML",
    "meta-sgd": "Meta-SGD",
    "mt-net": "MT-Net",
    "mumomaml": "MUMOMAML",
    "arml": "ARML",
    "neural-process": "Neural process",
    "llama": "LLAMA",
    "snail": "SNAIL",
    "meta-lstm": "Meta-learner LSTM",
    "platipus": "PLATIPUS",
    "bmaml": "BMAML (12,000 meta-steps)",
}
BY_HAND = {
    "hsml-affine": {"gate": "affine"},  # nothing else differs from HSML
    "bmaml": {"steps": 12_000, "init_sd": 0.3, "inner_steps": 3},  # the training time of HSML
}
"""Settings that are not selected by a search."""


def table1_row(name: str, shots: int) -> Row:
    """One method of table 1 with its search."""
    searched = {"hsml-affine": "hsml"}.get(name, "meta-sgd-10" if (name, shots) == ("meta-sgd", 10) else name)
    search = SEARCHES.get(searched)
    return Row(
        f"{LABELS[name]}, {shots}-shot",
        f"toy-{shots}shot",
        (0, 1, 2),
        learner=search.learner if search else name,
        paper=PUBLISHED[name][shots == 10] if name in PUBLISHED else None,
        search=search,
        settings=BY_HAND.get(name, {}),
        max_eval_inner_steps=10 if name == "scratch" else None,  # of 100 updates each
    )


def table1() -> tuple[Row, ...]:
    """Rows of the paper's table 1, further methods and HSML-A, three seeds each; 5-shot first, the slowest last."""
    rows = []
    for shots in (5, 10):
        rows += [table1_row(name, shots) for name in LABELS]
        rows.append(Row(f"HSML (ours), {shots}-shot", f"toy-{shots}shot-best", (0, 1, 2)))
        rows += evidence_rows(shots)
    return tuple(rows)


def evidence_rows(shots: int) -> tuple[Row, ...]:
    """Clusters found by evidence: HSML on them, the clusters as a predictor, and both with a single cluster."""
    names = {"HSML-E": "evidence", "HSML-E, one cluster": "one-cluster", "Grove": "grove"}
    names["Grove, one cluster"] = "grove-one-cluster"
    released = ("HSML-E", "Grove")
    return tuple(
        Row(
            f"{label}, {shots}-shot",
            preset := f"toy-{shots}shot-{name}",
            (0, 1, 2),
            release=preset if label in released else None,
            settings={"steps": 0} if label.startswith("Grove") else {},
        )
        for label, name in names.items()
    )


TOY = Experiment(
    "HSML and MAML on four families of functions, 5 and 10 points (paper, section 6.1)",
    rows=(
        Row("MAML, 5-shot", "toy-5shot", (0,), "maml", "2.205 ± 0.121"),
        Row("HSML, 5-shot, the paper's protocol", "toy-5shot", (0, 1, 2), None, "0.856 ± 0.073", "toy-5shot"),
        Row("HSML, 5-shot, rows sorted in training", "toy-5shot-sorted", (0,)),
        Row("HSML, 5-shot, ours", "toy-5shot-best", (0, 1, 2), release="toy-5shot-best"),
        *evidence_rows(5),
        Row("MAML, 10-shot", "toy-10shot", (0,), "maml", "0.761 ± 0.068"),
        Row("HSML, 10-shot, the paper's protocol", "toy-10shot", (0,), None, "0.161 ± 0.021", "toy-10shot"),
        Row("HSML, 10-shot, ours", "toy-10shot-best", (0,), release="toy-10shot-best"),
        *evidence_rows(10),
    ),
)

TABLE1 = Experiment(
    "every method on the same tasks, each with settings selected by an equal search (paper, table 1)",
    rows=table1(),
    test_seed=1,
    max_eval_inner_steps=50,
    tasks=10_000,
)

"""The paper's claims and the measurements here, each with the rule of its verdict (`claim_rules`)."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from metagrove.paper.claim_rules import (
    Finding,
    bound_and_gap,
    clusters_agree,
    comparable,
    gate_exists,
    held_out,
    linear_form,
    order,
    risk_inequality,
    smaller_gap,
)

PARTS = ("functions", "continual", "images", "theory")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of the paper, the command that tests it, and the rule of its verdict."""

    part: str
    where: str
    text: str
    paper: str
    command: str
    find: Callable[[Path], Finding]


def table(part: str, results: Path) -> list[list[str]]:
    """The claims of one part of the paper."""
    heading = ["where", "claim", "the paper's figures", "here", "verdict", "command"]
    found = [(claim, claim.find(results)) for claim in CLAIMS if claim.part == part]
    return [heading] + [
        [claim.where, claim.text, claim.paper, one.ours, f"**{one.verdict}**", f"`metagrove reproduce {claim.command}`"]
        for claim, one in found
    ]


FIVE = ("MAML", "Meta-SGD", "MT-Net", "MUMOMAML", "BMAML*")
IMAGES = "--budget studies --size 32"
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "functions",
        "table 1",
        "At 5 points HSML has a lower error than the five baselines.",
        "HSML 0.856; 1.096 to 2.435",
        "table1",
        order("table1", "HSML, 5-shot", [f"{name}, 5-shot" for name in FIVE]),
    ),
    Claim(
        "functions",
        "table 1",
        "The same at 10 points.",
        "HSML 0.161; 0.256 to 0.967",
        "table1",
        order("table1", "HSML, 10-shot", [f"{name}, 10-shot" for name in FIVE]),
    ),
    Claim(
        "functions",
        "figure 3, app. I",
        "Tasks of different shape activate different clusters (measured here: agreement with the family).",
        "heat maps",
        "toy",
        clusters_agree("toy", ["HSML, 5-shot, the paper's protocol"]),
    ),
    Claim(
        "continual",
        "figure 4",
        "On a stream of functions HSML-D is better than static hierarchies with 2 and 10 clusters (harder quadratic).",
        "0.869; 0.933, 0.889",
        "continual-toy",
        order("continual-toy", "HSML-D", ["HSML-S (2C)", "HSML-S (10C)"]),
    ),
    Claim(
        "continual",
        "figure 4",
        "The same with the authors' quadratic.",
        "0.869; 0.933, 0.889",
        "continual-toy",
        order(
            "continual-toy",
            "HSML-D, easier quadratic",
            ["HSML-S (2C), easier quadratic", "HSML-S (10C), easier quadratic"],
        ),
    ),
    Claim(
        "continual",
        "app. H",
        "The gate on a shared initialisation is a warm start for new clusters (against A4c).",
        "–",
        "continual-toy",
        order("continual-toy", "HSML-D", ["HSML-D, A4c, generated directly"]),
    ),
    Claim(
        "continual",
        "figure 7, app. F",
        "On a stream of images HSML-D is better than static hierarchies and MUMOMAML.",
        "47.96; 46.56, 46.63, 44.11",
        f"continual-images {IMAGES}",
        order("continual-images-studies-32", "HSML-D", ["HSML-S (2C)", "HSML-S (10C)", "MUMOMAML"], 2),
    ),
    Claim(
        "images",
        "table 2",
        "At 1 shot HSML is better than the five baselines, on average over four datasets.",
        "49.35; 44.77 to 46.50",
        f"table2 {IMAGES}",
        order("table2-studies-32", "HSML, 1-shot", [f"{name}, 1-shot" for name in FIVE], 2),
    ),
    Claim(
        "images",
        "table 2",
        "The same at 5 shots.",
        "62.39; 57.78 to 59.41",
        f"table2 {IMAGES}",
        order("table2-studies-32", "HSML, 5-shot", [f"{name}, 5-shot" for name in FIVE], 2),
    ),
    Claim(
        "images",
        "figures 5, 6, app. J",
        "Each dataset activates its own cluster.",
        "heat maps, t-SNE",
        f"table2 {IMAGES}",
        clusters_agree("table2-studies-32", ["HSML, 1-shot"]),
    ),
    Claim(
        "images",
        "the same",
        "The same for HSML-A and HSML-F, beyond the paper.",
        "–",
        "table2 --budget small --size 32",
        clusters_agree("table2-small-32", ["HSML (ours), 1-shot", "HSML (clusters first), falling step, 1-shot"]),
    ),
    Claim(
        "images",
        "table 3, app. F",
        "(2, 2, 1) clusters are too few: (4, 2, 1) is better.",
        "49.35; 47.65",
        f"cluster-numbers-images {IMAGES}",
        order("cluster-numbers-images-studies-32", "HSML (4, 2, 1)", ["HSML (2, 2, 1)"], 2),
    ),
    Claim(
        "images",
        "app. G",
        "At 1 shot the recurrent aggregator is better than mean pooling.",
        "49.35; 46.14",
        f"aggregators-images {IMAGES}",
        order("aggregators-images-studies-32", "GRU, 1-shot", ["mean pooling, 1-shot"], 2),
    ),
    Claim(
        "images",
        "app. E",
        "Trained on three datasets and tested on the fourth, HSML is better than MAML and MUMOMAML.",
        "34.41; 32.43, 33.28",
        f"leave-one-out {IMAGES}",
        held_out,
    ),
    Claim(
        "images",
        "app. H",
        "HSML is better than its ablations (all but FiLM, which is comparable).",
        "49.35; 43.18 to 48.07",
        f"ablations-images {IMAGES}",
        order(
            "ablations-images-studies-32",
            "HSML",
            [
                "A2a, embedding pretrained and frozen",
                "A2b, last state of the encoder",
                "A3a, no clustering",
                "A3b, flat clustering",
                "A4a, gate on the cluster representation alone",
                "A4c, initialisation generated directly",
            ],
            2,
        ),
    ),
    Claim(
        "images",
        "app. H, A4b",
        "FiLM in place of the gate is comparable with HSML.",
        "49.25; 49.35",
        f"ablations-images {IMAGES}",
        comparable("ablations-images-studies-32", "A4b, FiLM instead of the gate", "HSML"),
    ),
    Claim(
        "images",
        "app. D",
        "On MiniImagenet, a single dataset, HSML is comparable with MAML.",
        "50.38; 48.70",
        f"mini-imagenet {IMAGES}",
        comparable("mini-imagenet-studies-32", "HSML", "MAML"),
    ),
    Claim(
        "theory",
        "section 5",
        "The gated initialisation has a smaller risk on the support set than MAML's.",
        "a proof of existence",
        "theory",
        risk_inequality,
    ),
    Claim(
        "theory",
        "section 5",
        "HSML generalises with a smaller gap than MAML.",
        "a tighter bound",
        "theory",
        smaller_gap,
    ),
    Claim(
        "theory",
        "theorem 1",
        "Over tasks, the gap is correlated with the term of the bound.",
        "implied",
        "theory",
        bound_and_gap,
    ),
    Claim(
        "theory",
        "section 5, app. A",
        "A gate exists that is at least as good as a gradient step.",
        "a construction",
        "theory",
        gate_exists,
    ),
    Claim(
        "theory",
        "app. A",
        "The gated initialisation is nearly Σ B̂ₖθ₀, linear in the cluster representations.",
        "first-order Taylor series",
        "theory",
        linear_form,
    ),
)

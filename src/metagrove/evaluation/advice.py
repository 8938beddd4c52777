"""Recommendation of a method: the simplest one whose score is not significantly worse than the best."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from metagrove.evaluation.candidates import label_of
from metagrove.training.scores import PairedDifference, paired_difference

SIMPLEST_FIRST = (
    "support-mean",
    "pooled-linear",
    "ridge",
    "mixed-model",
    "gaussian-process",
    "shared-gaussian-process",
    "mixture",
    "pooled-trees",
    "support-trees",
    "grove",
    "maml",
)
"""Methods by simplicity; other learners come after these."""
MOST_BEHIND = 0.1
"""A simpler method is recommended if its error is at most this part above the best."""
META_LEARNERS = ("hsml", "maml")


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """The recommended method, the best one, and the paired difference of their losses over test tasks."""

    name: str
    best: str
    behind: PairedDifference
    part: float
    """The same as a part of the best one's loss."""


def simplicity(name: str) -> int:
    """Position among all methods, the simplest first."""
    return SIMPLEST_FIRST.index(name) if name in SIMPLEST_FIRST else len(SIMPLEST_FIRST)


def recommend(losses: Mapping[str, np.ndarray]) -> Recommendation:
    """The simplest method whose paired interval to the best one contains 0 and that is not far behind it.

    Args:
        losses: Of each method, the loss of each test task; a blend of methods is not recommended.
    """
    losses = {name: values for name, values in losses.items() if name != "blend"}
    best = min(losses, key=lambda name: float(losses[name].mean()))
    for name in sorted(losses, key=simplicity):
        behind = paired_difference(losses[name], losses[best])
        part = behind.difference / max(float(losses[best].mean()), 1e-30)
        if name == best or (behind.difference <= behind.ci95 and part <= MOST_BEHIND):
            return Recommendation(name, best, behind, part)
    raise AssertionError("the best is among them")


def advise(losses: Mapping[str, np.ndarray], run: str, *, num_tasks: int, classifies: bool) -> str:
    """Recommend a method, and say what the run's own learner would need to be worth it.

    Args:
        losses: Of each method, the loss of each test task.
        run: Name of the run's own learner.
        num_tasks: Number of training tasks.
        classifies: Whether targets are classes.
    """
    losses = {name: values for name, values in losses.items() if name != "blend"}
    found = recommend(losses)
    label = {name: label_of(name, classifies=classifies) for name in losses}
    loss = "log loss" if classifies else "error"
    if found.name == found.best:
        rest = {name: values for name, values in losses.items() if name != found.best}
        lead = f"Use {label[found.best]}: it has the least {loss} on test tasks"
        return (
            lead + (runner_up(losses, rest, found.best, label) if rest else ".") + worth(found, losses, run, num_tasks)
        )
    gap = f"{found.behind.difference:+.2g} ± {found.behind.ci95:.2g}"
    lead = f"Use {label[found.name]}: the lead of {label[found.best]}, {100 * found.part:.1f} %, is within its interval"
    return f"{lead} ({gap}), and nothing simpler is as good.{worth(found, losses, run, num_tasks)}"


def runner_up(
    losses: Mapping[str, np.ndarray], rest: Mapping[str, np.ndarray], best: str, label: Mapping[str, str]
) -> str:
    """The next method, and how far it is behind."""
    name = min(rest, key=lambda one: float(rest[one].mean()))
    behind = paired_difference(losses[name], losses[best])
    part = 100 * behind.difference / max(float(losses[best].mean()), 1e-30)
    return f", and no simpler method is as good; next is {label[name]}, {part:.1f} % behind."


def worth(found: Recommendation, losses: Mapping[str, np.ndarray], run: str, num_tasks: int) -> str:
    """Describe what a meta-learner would need, if another method is recommended."""
    if run not in META_LEARNERS or found.name == run:
        return ""
    part = float(losses[run].mean()) / max(float(losses[found.name].mean()), 1e-30) - 1
    there = "ahead" if part < 0 else "behind"
    return (
        f" {label_of(run)} is {abs(100 * part):.1f} % {there} of it here; its training pays with more tasks "
        f"({num_tasks} in training here), tasks of several kinds, or functions more curved than a spline."
    )

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
"""Methods by simplicity; other learners follow."""
MOST_BEHIND = 0.1
"""A simpler method is recommended if its error is at most this fraction above the best."""
WITH_ARTICLE = ("support-mean", "mixed-model", "shared-gaussian-process", "mixture")
"""Methods that are called "the ..." within a sentence."""
META_LEARNERS = ("hsml", "maml")


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """The recommended method, the best one, and the paired difference of their losses over test tasks."""

    name: str
    best: str
    behind: PairedDifference
    part: float
    """The difference as a fraction of the best one's loss."""


def simplicity(name: str) -> int:
    """Position among all methods, the simplest first."""
    return SIMPLEST_FIRST.index(name) if name in SIMPLEST_FIRST else len(SIMPLEST_FIRST)


def recommend(losses: Mapping[str, np.ndarray]) -> Recommendation:
    """The simplest method whose paired interval to the best one contains 0 and whose loss is not much higher.

    Args:
        losses: For each method, the loss of each test task; a blend of methods is not recommended.
    """
    losses = {name: values for name, values in losses.items() if name != "blend"}
    best = min(losses, key=lambda name: float(losses[name].mean()))
    for name in sorted(losses, key=simplicity):
        behind = paired_difference(losses[name], losses[best])
        part = behind.difference / max(float(losses[best].mean()), 1e-30)
        if name == best or (behind.difference <= behind.ci95 and part <= MOST_BEHIND):
            return Recommendation(name, best, behind, part)
    raise AssertionError("the best is among them")


def in_prose(name: str, *, classifies: bool) -> str:
    """The name of a method within a sentence: "the mixed model"."""
    label = label_of(name, classifies=classifies).replace(", each task alone", " of each task alone")
    article = {"gaussian-process": "a ", "pooled-linear": "one ", "blend": "a "}.get(
        name, "the " if name in WITH_ARTICLE else ""
    )
    return article + label


def advise(losses: Mapping[str, np.ndarray], run: str, *, num_tasks: int, classifies: bool) -> str:
    """Recommend a method, and describe the data for which the run's own learner pays off.

    Args:
        losses: For each method, the loss of each test task.
        run: Name of the run's own learner.
        num_tasks: Number of training tasks.
        classifies: Whether targets are classes.
    """
    losses = {name: values for name, values in losses.items() if name != "blend"}
    found = recommend(losses)
    words = {name: in_prose(name, classifies=classifies) for name in losses}
    return lead(found, losses, words, "log loss" if classifies else "squared error") + worth(
        found, losses, run, num_tasks
    )


def lead(found: Recommendation, losses: Mapping[str, np.ndarray], words: Mapping[str, str], loss: str) -> str:
    """The recommended method and the reason."""
    if found.name != found.best:
        gap = f"{found.behind.difference:+.2g} ± {found.behind.ci95:.2g}"
        ahead = f"the lead of {words[found.best]}, {100 * found.part:.1f} % of the {loss}, is within its interval"
        return f"Use {words[found.name]}: {ahead} ({gap}), and nothing simpler is as good."
    text = f"Use {words[found.best]}: it has the least {loss} on test tasks"
    if (near := runner_up(losses, found.best)) is None:
        return f"{text}."
    more = percent_more(losses, near, found.best)
    return f"{text}, and no simpler method is as good; next is {words[near]} with {more:.1f} % more."


def runner_up(losses: Mapping[str, np.ndarray], best: str) -> str | None:
    """The method with the second lowest loss."""
    rest = [name for name in losses if name != best]
    return min(rest, key=lambda name: float(losses[name].mean()), default=None)


def percent_more(losses: Mapping[str, np.ndarray], name: str, than: str) -> float:
    """How much more loss one method has than another, in percent."""
    return 100 * (float(losses[name].mean()) / max(float(losses[than].mean()), 1e-30) - 1)


def worth(found: Recommendation, losses: Mapping[str, np.ndarray], run: str, num_tasks: int) -> str:
    """Describe the data for which a meta-learner pays off, if another method is recommended."""
    if run not in META_LEARNERS or found.name == run:
        return ""
    more, label = percent_more(losses, run, found.name), label_of(run)
    mentioned = found.name == found.best and runner_up(losses, found.best) == run
    here = label if mentioned else f"{label} has {abs(more):.1f} % {'less' if more < 0 else 'more'} than that here; it"
    return (
        f" {here} pays off with more tasks ({num_tasks} in training here), tasks of several kinds, or curves that a "
        "spline cannot follow."
    )

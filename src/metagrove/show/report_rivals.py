"""Comparison of a run with others on the same test tasks."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from metagrove.errors import InputError
from metagrove.evaluation.baselines import Baselines
from metagrove.losses import Metric, is_better
from metagrove.serve.run import Run
from metagrove.show.figures import label_of
from metagrove.show.report_data import TaskResults
from metagrove.training.scores import ci95, paired_difference


@dataclasses.dataclass(frozen=True)
class Standing:
    """The mean score of one learner on test tasks, and its paired difference to the first learner."""

    name: str
    value: float
    ci95: float
    by_family: dict[str, float]
    difference: float | None = None
    difference_ci95: float = float("nan")
    note: str = ""
    """A remark, e.g. its settings."""

    @property
    def short(self) -> str:
        """Short name, for a sentence."""
        return self.name.partition(",")[0]

    def verdict(self, metric: Metric) -> str:
        """Return whether the first learner is "better" or "worse"; "unclear" if the interval contains 0."""
        if self.difference is None or not abs(self.difference) > self.difference_ci95:
            return "unclear"
        return "better" if is_better(0.0, self.difference, metric.name) else "worse"


def standing(name: str, scores: np.ndarray, results: TaskResults, families: Sequence[str]) -> Standing:
    """Summarise the scores of a learner; `results` holds those of the first one on the same tasks."""
    there = [i for i in range(len(families)) if (results.family == i).any()]
    by_family = {families[i]: float(scores[results.family == i].mean()) for i in there}
    found = Standing(name, float(scores.mean()), float(ci95(scores)), by_family)
    if scores is results.scores:
        return found
    gap = paired_difference(scores, results.scores)
    return dataclasses.replace(found, difference=gap.difference, difference_ci95=gap.ci95)


def standings(run: Run, results: TaskResults, others: Sequence[Run], *, num_tasks: int, seed: int) -> list[Standing]:
    """Summarise the run and each run that it is compared with."""
    source = run.config.source
    names = distinct([label_of(run), *(label_of(other) for other in others)], [o.folder.name for o in (run, *others)])
    found = [standing(names[0], results.scores, results, source.family_names)]
    for other, name in zip(others, names[1:], strict=True):
        scored = other.scores(num_tasks=num_tasks, seed=seed, steps=other.inner_steps, every_step=False)
        found.append(standing(name, scored.by_step[:, -1], results, source.family_names))
    return found


def measured_before(baselines: Baselines) -> list[Standing]:
    """Summarise the baselines of the run."""
    return [
        Standing(
            row.label,
            row.value,
            row.value_ci95,
            {family: part.value for family, part in row.by_family.items()},
            row.minus_run.difference,
            row.minus_run.ci95,
            row.variant,
        )
        for row in baselines.rows
        if row.minus_run is not None
    ]


def distinct(labels: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Name runs by their learner, and also by their folder if two have the same learner."""
    return [
        f"{label} ({folder})" if labels.count(label) > 1 else label
        for label, folder in zip(labels, folders, strict=True)
    ]


def refuse_unlike(run: Run, others: Sequence[Run]) -> None:
    """Raise an InputError unless all runs have the same source and metric."""
    for other in others:
        if other.config.source != run.config.source or other.metric != run.metric:
            raise InputError(
                f"{other.folder.name} was trained on a different source than {run.folder.name}: "
                "--compare-with takes runs of the same source"
            )

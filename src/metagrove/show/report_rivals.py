"""The headline: a run's score on test tasks, and by how much it beats or loses to others on the same tasks."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from metagrove.errors import InputError
from metagrove.evaluate.baselines import Baselines
from metagrove.losses import Metric, is_better
from metagrove.serve.run import Run
from metagrove.show.figures import label_of
from metagrove.show.report_data import Look
from metagrove.train.scores import ci95, paired_difference


@dataclasses.dataclass(frozen=True)
class Standing:
    """One learner's mean over test tasks, and the first one's minus its own, task by task."""

    name: str
    value: float
    ci95: float
    by_family: dict[str, float]
    difference: float | None = None
    difference_ci95: float = float("nan")
    note: str = ""
    """What else is to be said of it, e.g. its settings."""

    @property
    def short(self) -> str:
        """Its name in a sentence."""
        return self.name.partition(",")[0]

    def verdict(self, metric: Metric) -> str:
        """Is the first one better than this? `unclear` where the interval of their difference holds 0."""
        if self.difference is None or not abs(self.difference) > self.difference_ci95:
            return "unclear"
        return "better" if is_better(self.difference, 0.0, metric.name) else "worse"


def standing(name: str, scores: np.ndarray, seen: Look, families: Sequence[str]) -> Standing:
    """A learner's scores in short; `seen` is the first one's look at the same tasks."""
    there = [i for i in range(len(families)) if (seen.family == i).any()]
    by_family = {families[i]: float(scores[seen.family == i].mean()) for i in there}
    found = Standing(name, float(scores.mean()), float(ci95(scores)), by_family)
    if scores is seen.scores:
        return found
    gap = paired_difference(seen.scores, scores)
    return dataclasses.replace(found, difference=gap.difference, difference_ci95=gap.ci95)


def standings(run: Run, seen: Look, others: Sequence[Run], *, num_tasks: int, seed: int) -> list[Standing]:
    """The run's, and then that of each run beside it."""
    source = run.config.source
    names = distinct([label_of(run), *(label_of(other) for other in others)], [o.folder.name for o in (run, *others)])
    found = [standing(names[0], seen.scores, seen, source.family_names)]
    for other, name in zip(others, names[1:], strict=True):
        scored = other.scores(num_tasks=num_tasks, seed=seed, steps=other.inner_steps, every_step=False)
        found.append(standing(name, scored.by_step[:, -1], seen, source.family_names))
    return found


def measured_before(baselines: Baselines) -> list[Standing]:
    """The yardsticks that were trained beside the run."""
    return [
        Standing(
            row.label,
            row.value,
            row.value_ci95,
            {family: part.value for family, part in row.by_family.items()},
            -row.minus_run.difference,
            row.minus_run.ci95,
            row.variant,
        )
        for row in baselines.rows
        if row.minus_run is not None
    ]


def distinct(labels: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Runs by their learner, and by their folder too where two have the same."""
    return [
        f"{label} ({folder})" if labels.count(label) > 1 else label
        for label, folder in zip(labels, folders, strict=True)
    ]


def refuse_unlike(run: Run, others: Sequence[Run]) -> None:
    """Runs are set side by side on the same tasks, by the same score."""
    for other in others:
        if other.config.source != run.config.source or other.metric != run.metric:
            raise InputError(
                f"{other.folder.name} was trained on other tasks than {run.folder.name}: "
                "--beside takes runs of the same source"
            )

"""Tables on whether a hierarchy matters: learners with clusters compared with their controls."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metagrove.evaluation.hierarchy import HierarchyMeasures, LevelAgreement
from metagrove.paper.cells import error, with_ci
from metagrove.paper.results import ExperimentResult, RowResult, SeedResult
from metagrove.paper.seeds import Seeds, difference_over_seeds

Cells = list[list[str]]

SHOTS = ("5-shot", "10-shot")
CONTROL = ", one cluster"
"""Suffix of the label of a control after that of its method."""
MOST_TIMES = 10_000
"""Largest factor that is printed: coordinates in a wrong cluster are unbounded."""


def errors(result: ExperimentResult) -> Cells:
    """Error of each learner that has a control, of the control, and their difference over seeds."""
    heading = ["", "4,000 tasks ± CI", "40,000 tasks ± CI", "median", "mean of seeds ± std", "one cluster minus this"]
    rows = {row.label: row for row in result.rows}
    lines = []
    for label, row in rows.items():
        control = rows.get(control_of(label))
        if control is None and CONTROL not in label:
            continue
        few, one = row.chosen.evaluation_4000, row.chosen
        lines.append(
            [
                label,
                with_ci(few.value, few.value_ci95),
                with_ci(one.evaluation.value, one.evaluation.value_ci95),
                "" if one.median is None else error(one.median),
                over_seeds(row),
                "" if control is None else difference(control, row),
            ]
        )
    return [heading, *lines]


def measures(result: ExperimentResult) -> Cells:
    """Whether the clusters matter for each learner with clusters, means over the seeds that were measured."""
    heading = ["", "error ratio, assignments permuted", "typical error ratio", "node share", "effective clusters"]
    heading += ["NMI with families, level by level", "cut to 4 nodes", "NMI with shapes, level by level", "seeds"]
    lines = []
    for row in result.rows:
        found = [one.hierarchy for one in row.seeds if one.hierarchy is not None]
        if found:
            lines.append([row.label, *measured(found), str(len(found))])
    return [heading, *lines]


def goals(result: ExperimentResult) -> Cells:
    """Table of the targets of evidence clusters, and the means over seeds."""
    rows = {row.label: row for row in result.rows}
    heading = ["", *(f"{shots}: {what}" for shots in SHOTS for what in ("goal", "measured", "reached"))]
    lines = []
    for name, method, value, limits in GOALS:
        line = [name]
        for shots, (sign, limit) in zip(SHOTS, limits, strict=True):
            row = rows.get(f"{method}, {shots}")
            number = None if row is None else value(row, rows.get(control_of(row.label)))
            reached = number is not None and (number <= limit if sign == "≤" else number >= limit)
            shown = "needs more seeds" if number is None else error(number) if number < 1 else times(number)
            line += [f"{sign} {limit:g}", shown, "" if number is None else "yes" if reached else "no"]
        lines.append(line)
    return [heading, *lines]


def control_of(label: str) -> str:
    """The label of a row's control."""
    method, shots = label.rsplit(", ", 1)
    return f"{method}{CONTROL}, {shots}"


def measured(found: list[HierarchyMeasures]) -> list[str]:
    """Cells of the measures of one learner."""
    ratios = [one.typical_ratio[0] for one in found if one.typical_ratio is not None]
    shares = [one.node_share for one in found if one.node_share is not None]
    merged = [one.merged.families for one in found if one.merged is not None and one.merged.families is not None]
    return [
        times(mean_ratio(found)),
        times(geometric_mean(ratios)) if ratios else "",
        f"{np.mean(shares):.2f}" if shares else "",
        f"{np.mean([one.effective_clusters for one in found]):.1f}",
        by_level(found, lambda level: level.families),
        f"{np.mean(merged):.3f}" if merged else "",
        by_level(found, lambda level: level.shapes),
    ]


def mean_ratio(found: list[HierarchyMeasures]) -> float:
    """Mean error with permuted assignments over that as trained, geometric mean over seeds."""
    return float(np.exp(np.mean([np.log(one.shuffled.value / one.as_trained.value) for one in found])))


def by_level(found: list[HierarchyMeasures], value: Callable[[LevelAgreement], float | None]) -> str:
    """Agreement at each level with its number of nodes, of the first seed."""
    return ", ".join(f"{one:.2f} ({level.nodes})" for level in found[0].levels if (one := value(level)) is not None)


def difference(control: RowResult, row: RowResult) -> str:
    """Mean of the control's seeds minus that of the row's, and Welch's interval."""
    found = difference_over_seeds(Seeds.of(control), Seeds.of(row))
    return f"{found.difference:+.3g}" + ("" if found.ci95 is None else f" ± {found.ci95:.2g} (over seeds)")


def over_seeds(row: RowResult) -> str:
    """Mean and standard deviation over seeds."""
    mean, std = row.mean_over_seeds, row.sd_over_seeds
    return f"{error(mean) if std is None else with_ci(mean, std)} ({len(row.seeds)})"


def times(value: float) -> str:
    """Format a factor with three digits, at most 10,000."""
    return f"{value:.2f}" if value < 10 else f"{float(f'{value:.3g}'):,.0f}" if value <= MOST_TIMES else "> 10,000"


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm."""
    return float(np.exp(np.mean(np.log(values))))


def mean_of(
    value: Callable[[SeedResult], float | None], average: Callable[[Sequence[float]], Any] = np.mean
) -> Callable[[RowResult, RowResult | None], float | None]:
    """Mean over seeds; None if none has a value."""

    def mean(row: RowResult, control: RowResult | None) -> float | None:
        del control
        each = [one for seed in row.seeds if (one := value(seed)) is not None]
        return float(average(each)) if each else None

    return mean


def merged_nmi(seed: SeedResult) -> float | None:
    """Agreement with the families of the dendrogram, cut to as many nodes."""
    return None if seed.hierarchy is None or seed.hierarchy.merged is None else seed.hierarchy.merged.families


def typical_ratio(seed: SeedResult) -> float | None:
    """Typical ratio of a task's error with another task's assignment to its own."""
    found = seed.hierarchy
    return None if found is None or found.typical_ratio is None else found.typical_ratio[0]


def gain_in_std(row: RowResult, control: RowResult | None) -> float | None:
    """The control's error minus the row's, in standard deviations over seeds (the larger of both)."""
    if control is None or row.sd_over_seeds is None or control.sd_over_seeds is None:
        return None
    return (control.mean_over_seeds - row.mean_over_seeds) / max(row.sd_over_seeds, control.sd_over_seeds)


GOALS = (
    # (what, method, its value, (goal at 5 points, at 10))
    ("NMI, cut to 4 nodes", "HSML-E", mean_of(merged_nmi), (("≥", 0.90), ("≥", 0.96))),
    (
        "MSE of Grove, 4,000 tasks",
        "Grove",
        mean_of(lambda one: one.evaluation_4000.value),
        (("≤", 0.02), ("≤", 0.0005)),
    ),
    ("MSE of Grove, 40,000 tasks", "Grove", mean_of(lambda one: one.evaluation.value), (("≤", 0.02), ("≤", 0.0005))),
    (
        "MSE of HSML-E, 4,000 tasks",
        "HSML-E",
        mean_of(lambda one: one.evaluation_4000.value),
        (("≤", 0.017), ("≤", 0.0003)),
    ),
    ("MSE of HSML-E, 40,000 tasks", "HSML-E", mean_of(lambda one: one.evaluation.value), (("≤", 0.017), ("≤", 0.0003))),
    ("one cluster minus HSML-E, in std over seeds", "HSML-E", gain_in_std, (("≥", 1.0), ("≥", 1.0))),
    (
        "HSML-E, assignments permuted: typical error ratio",
        "HSML-E",
        mean_of(typical_ratio, geometric_mean),
        (("≥", 10.0), ("≥", 10.0)),
    ),
)
"""Targets of evidence clusters on functions."""

"""The hierarchy in the report: whether it matters, with its measures, and the prior over functions of each node."""

import jax
import numpy as np

from metagrove.evaluation.agreement import LevelAgreement
from metagrove.evaluation.hierarchy import HierarchyMeasures, in_words
from metagrove.learner import ClusterFunctions
from metagrove.show.report_data import TaskResults
from metagrove.show.report_html import Html, join, number, percent, table, tag, with_ci
from metagrove.show.report_plot import Frame, axis, plot
from metagrove.show.report_tasks import GRID, Sketcher

NUM_DRAWS = 6
"""Functions drawn from a node's prior."""
PRIOR_HEIGHT = 110
"""Pixels of the drawing of a prior."""


def hierarchy_proof(found: HierarchyMeasures | None, metric: str) -> Html | None:
    """Summarise whether the clusters matter, with the measures; None for a learner without clusters."""
    if found is None:
        return None
    agreement = table(
        ["agreement (NMI)", "nodes", "families", "shapes"],
        [agreement_row(f"level {i}", one) for i, one in enumerate(found.levels, 1)]
        + ([] if found.merged is None else [agreement_row("merged to as many nodes as families", found.merged)]),
        class_="events",
    )
    known = any(one.families is not None or one.shapes is not None for one in found.levels)
    return join(
        tag("p", in_words(found, metric), class_="aside"),
        table(["measure", "value"], measure_rows(found, metric), class_="events"),
        agreement if known else None,
        parents(found),
    )


def measure_rows(found: HierarchyMeasures, metric: str) -> list[list[str]]:
    """The measures by name."""
    own, other = found.as_trained, found.shuffled
    rows = [
        [f"{metric} as trained (median)", f"{with_ci(own.value, own.value_ci95)} ({number(found.own_median)})"],
        [
            f"{metric} with assignments permuted over tasks (median)",
            f"{with_ci(other.value, other.value_ci95)} ({number(found.shuffled_median)})",
        ],
        ["effective number of clusters", number(found.effective_clusters)],
        ["mean share of a task's strongest cluster", percent(found.largest_share)],
    ]
    if found.node_share is not None:
        rows.append(["share of the gate's variance that comes from nodes below the root", percent(found.node_share)])
    return rows


def agreement_row(name: str, one: LevelAgreement) -> list[str]:
    """A row of the table of agreements."""
    return [name, str(one.nodes), *("–" if v is None else f"{v:.2f}" for v in (one.families, one.shapes))]


def parents(found: HierarchyMeasures) -> Html | None:
    """Describe which families share a parent at the second level."""
    if not found.families_by_parent:
        return None
    said = [f"{node}: {', '.join(families)}" for node, families in found.families_by_parent.items()]
    return tag("p", f"Families by their parent at level 2: {'; '.join(said)}.", class_="aside")


def node_functions(sketcher: Sketcher, results: TaskResults) -> tuple[ClusterFunctions, ...] | None:
    """The prior over functions of the nodes of each level, on the range of the tasks; None if they are not curves."""
    if sketcher.kind != "curve":
        return None
    run = sketcher.run
    ends = [np.asarray(case.part.sample(case.key).query.x) for case in results.cases[:20]]
    x = np.linspace(np.min(ends), np.max(ends), GRID, dtype=np.float32)[:, None]
    return run.config.learner.cluster_functions(run.meta, x, num_draws=NUM_DRAWS, key=jax.random.key(0))


def prior_sketch(sketcher: Sketcher, level: ClusterFunctions, node: int, name: str) -> Html:
    """Draw the prior of a node: its mean, a band of two standard deviations, and some functions drawn from it."""
    units = sketcher.units
    across, mean = units.x(level.x[:, 0]), units.y(level.mean[node])
    std = level.std[node, :, 0] * units.y_scale[0][1]
    draws = [units.y(one) for one in level.draws[node]]
    frame = Frame(axis(across), axis(mean - 2 * std, mean + 2 * std, pad=0.02), PRIOR_HEIGHT)
    marks = [frame.band(across, mean - 2 * std, mean + 2 * std, "band")]
    marks += [frame.line(across, one, "draw") for one in draws]
    label = f"prior of {name}: mean function, two standard deviations, and {NUM_DRAWS} functions drawn from it"
    drawn = plot(frame, *marks, frame.line(across, mean, "mean"), label=label, ticks=(3, 2))
    caption = tag("figcaption", "prior: mean, ± 2 standard deviations, and functions drawn from it")
    return tag("figure", drawn, caption, class_="prior")

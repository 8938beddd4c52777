"""Tables of the experiments on streams."""

import numpy as np

from metagrove.evaluation.arrivals import Detections
from metagrove.evaluation.summaries import StreamSummary
from metagrove.evaluation.transfer import ReportedGrowth
from metagrove.files import Json
from metagrove.paper.results import ExperimentResult, SeedResult


def errors(result: ExperimentResult) -> list[list[str]]:
    """Test score of every method with the paper's, by seed, and its paired difference to the first row."""
    heading = ["", "paper", "mean of seeds ± std", "each seed ± CI", "minus HSML-D of the same seed ± CI", "clusters"]
    rows = []
    for row in result.rows:
        std = "" if row.sd_over_seeds is None else f" ± {row.sd_over_seeds:.3f}"
        seeds = [one.evaluation for one in row.seeds]
        paired = [one.paired_difference for one in row.seeds]
        clusters = [stream_of(one).clusters for one in row.seeds]
        rows.append(
            [
                row.label,
                row.paper or "",
                f"{row.mean_over_seeds:.3f}{std}",
                ", ".join(f"{one.value:.3f} ± {one.value_ci95:.3f}" for one in seeds),
                ", ".join(f"{one.difference:+.3f} ± {one.ci95:.3f}" for one in paired if one.ci95),
                ", ".join(str(tuple(one)) if one else "none" for one in clusters),
            ]
        )
    return [heading, *rows]


def stream_of(seed: SeedResult) -> StreamSummary:
    """Return growth and transfer of a run on a stream."""
    assert seed.stream is not None
    return seed.stream


def events(result: ExperimentResult) -> list[list[str]]:
    """Growth events: step, numbers of clusters, change of predictions, and final shares of the clusters."""
    heading = ["", "seed", "meta-step", "clusters", "previous window", "current window", "ratio or t"]
    return [[*heading, "predictions changed", "final shares"]] + [
        [row.label, str(one.seed), *event_cells(growth)]
        for row in result.rows
        for one in row.seeds
        for growth in stream_of(one).growth
    ]


def event_cells(growth: ReportedGrowth) -> list[str]:
    """The cells of one growth event."""
    event, cause = growth.event, growth.event.cause
    return [
        f"{growth.step:,}",
        f"{event.before[0]} to {event.clusters[0]}",
        f"{cause.last_window:.3f}",
        f"{cause.this_window:.3f}",
        f"{cause.t if cause.ratio is None else cause.ratio:.2f}",
        f"{100 * event.changed:.1f} %",
        ", ".join(f"{share:.2f}" for share in growth.final_shares or ()),
    ]


def detection_cells(found: Detections | None) -> list[str]:
    """The arrivals with their delay, and the number of false alarms."""
    if found is None:
        return ["", ""]
    delays = [
        f"{', '.join(one.families)}: {'never' if one.noticed_at is None else f'{one.noticed_at - one.step:,}'}"
        for one in found.arrivals
    ]
    return ["; ".join(delays), str(len(found.false_alarms))]


def final_cells(seed: SeedResult) -> list[str]:
    """Clusters, score, agreement, and the share of tasks of the first families in the initial clusters."""
    stream, summary = stream_of(seed), seed.evaluation
    found = summary.clustering
    assert found is not None
    first = stream.growth[0].event.before[0] if stream.growth else len(found.tasks_by_cluster_and_family)
    table = np.array(found.tasks_by_cluster_and_family)[:, :2]  # the streams begin with the first two families
    return [
        str(tuple(stream.clusters or ())),
        f"{summary.value:.3f} ± {summary.value_ci95:.3f}",
        f"{found.nmi:.2f}",
        f"{100 * table[:first].sum() / table.sum():.0f} %",
    ]


def transfers(result: ExperimentResult) -> list[list[str]]:
    """Backward and forward transfer (higher is better) and forgetting (lower is better)."""
    heading = ["", "seed", "backward transfer", "forward transfer", "forgetting"]
    return [heading] + [
        [row.label, str(one.seed), signed(found.backward), signed(found.forward), signed(found.forgetting)]
        for row in result.rows
        for one in row.seeds
        if (found := stream_of(one).transfer)
    ]


def signed(value: float | None) -> str:
    """Format a number with its sign; empty if there is none."""
    return "" if value is None else f"{value:+.3f}"


def cost(result: Json) -> list[list[str]]:
    """Cost of a meta-step before and after growth, and with masked clusters instead."""
    heading = ["", "compile, s", "meta-steps/s"]
    return [heading] + [
        [row["what"], f"{row['compile_seconds']:.1f}", f"{row['steps_per_second']:.1f}"] for row in result["rows"]
    ]


def false_alarms(result: Json) -> list[list[str]]:
    """False alarms of each detector on runs whose tasks never change."""
    detectors = list(result["rows"][0]["detectors"])
    heading = ["run", *(cell for name in detectors for cell in (f"{name}: alarms", "nearest", "windows"))]
    rows = []
    for row in result["rows"]:
        found = row["detectors"].values()
        rows.append(
            [
                row["run"],
                *(
                    c
                    for f in found
                    for c in (
                        str(len(f["alarms"])),
                        "" if f["nearest"] is None else f"{f['nearest']:.2f}",
                        str(f["windows"]),
                    )
                ),
            ]
        )
    return [heading, *rows]

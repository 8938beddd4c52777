"""Summaries that `evaluate` and `compare` report."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from metagrove.config.encoding import to_json
from metagrove.errors import InputError
from metagrove.evaluation.arrivals import Detections, detections
from metagrove.evaluation.hierarchy import HierarchyMeasures, measure_hierarchy
from metagrove.evaluation.row_scores import RowScores, score_rows
from metagrove.evaluation.transfer import ReportedGrowth, Transfer, growth_events, transfer
from metagrove.files import FLAT, OMIT_NONE, Json, json_key
from metagrove.losses import metric_of
from metagrove.nets.predictors import Statistics
from metagrove.serve.run import Run, load
from metagrove.training import folders
from metagrove.training.records import BlockRecord
from metagrove.training.scores import (
    PairedComparison,
    Summary,
    ValueByFamily,
    compare_scores,
    summarize,
    value_by_family,
)

__all__ = [
    "Comparison",
    "Evaluation",
    "StreamSummary",
    "as_run",
    "compare",
    "evaluate",
    "image_statistics",
    "learner_name",
    "stream_summary",
]

STATISTICS: dict[str, Statistics] = {"transductive": "query", "support statistics": "support"}
"""Names of the two accuracies of an image run."""


@dataclasses.dataclass(frozen=True)
class StreamSummary:
    """Growth and transfer of a run on a stream."""

    clusters: list[int] | None
    """Final number of clusters of each level."""
    growth: list[ReportedGrowth]
    transfer: Transfer | None
    """None before the stream has ended."""
    detections: Detections | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Growth events against arrivals, of a run that may grow."""


@dataclasses.dataclass(frozen=True)
class ImageStatistics:
    """Accuracy of a run on images under both normalisation statistics, on the same test tasks."""

    transductive: ValueByFamily
    """Normalised by the query set that is classified."""
    support_statistics: ValueByFamily = dataclasses.field(metadata=json_key("support statistics"))
    """Normalised by the support set, as a fitted task always is."""
    paired: PairedComparison = dataclasses.field(metadata=json_key("support statistics minus transductive"))


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Summary of a run on test tasks."""

    run: str
    """Name of the run folder."""
    learner: str
    seed: int
    """Seed of the test tasks."""
    summary: Summary = dataclasses.field(metadata=FLAT)
    stream: StreamSummary | None = dataclasses.field(metadata=FLAT)
    checkpoint: Json
    """Record of the checkpoint, with its validation."""
    statistics: ImageStatistics | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Accuracies of a run on images."""
    rows: RowScores | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Errors in the units of the columns, coverage of intervals, recall of classes."""
    hierarchy: HierarchyMeasures | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Whether the clusters matter, of a learner with clusters."""


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """Summary of one of several runs on the same test tasks, with its paired difference to the first one."""

    run: str
    learner: str
    summary: Summary = dataclasses.field(metadata=FLAT)
    minus_first: PairedComparison


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Summaries of runs on the same test tasks."""

    num_tasks: int
    seed: int
    runs: list[ComparedRun]


def evaluate(run: Run | str | Path, *, num_tasks: int = 40_000, seed: int = 0) -> Evaluation:
    """Score a run on test tasks, after each number of inner steps.

    Args:
        run: A run, its folder, or the name of a released model.
        num_tasks: Number of test tasks; the paper uses 4,000.
        seed: Random seed of the test tasks.

    Returns:
        Means with 95 % confidence intervals over tasks, by family, the agreement of clusters and families, and whether
        the clusters matter; of a run on images, with support statistics and transductive; of a run on tables or with
        calibration, errors in the units of the columns and the coverage of intervals, or the recall of each class.

    Example:
        >>> import metagrove as mg
        >>> mg.evaluate("toy-5shot-best", num_tasks=4000).summary.value < 0.2  # doctest: +SKIP
        True
    """
    run = as_run(run)
    scores = run.scores(num_tasks=num_tasks, seed=seed)
    summary = summarize(scores, run.config.source.family_names, step=run.inner_steps, metric=run.metric)
    stream = stream_summary(run, folders.read_metrics(run.folder))
    statistics = image_statistics(run, num_tasks=num_tasks, seed=seed) if run.config.source.spec.is_image else None
    name, rows = (run.folder.name, learner_name(run)), score_rows(run)
    measures = measure_hierarchy(run, num_tasks=num_tasks, seed=seed)
    return Evaluation(*name, seed, summary, stream, run.about, statistics, rows, measures)


def image_statistics(run: Run, *, num_tasks: int, seed: int) -> ImageStatistics:
    """Score a run on images under both statistics, after the selected number of inner steps."""
    step, names = run.inner_steps, run.config.source.family_names
    how = {"num_tasks": num_tasks, "seed": seed, "steps": step, "every_step": False}
    query, support = (run.scores(statistics=statistics, **how) for statistics in STATISTICS.values())
    paired = compare_scores(support, step, query, step, names)
    return ImageStatistics(value_by_family(query, names, step=step), value_by_family(support, names, step=step), paired)


def stream_summary(run: Run, records: Sequence[BlockRecord]) -> StreamSummary | None:
    """Summarise growth and transfer of a run on a stream; None for a source without phases."""
    source, training = run.config.source, run.config.training
    if not source.has_phases:
        return None
    higher, growth = metric_of(run.config.learner.loss).higher_is_better, growth_events(records)
    noticed = detections([event.step for event in growth], source, training.steps)
    return StreamSummary(
        clusters=run.about.get("clusters"),
        growth=growth,
        transfer=transfer(records, source, training.steps, higher_is_better=higher),
        detections=noticed if training.growth.growth_window else None,
    )


def compare(runs: Sequence[Run | str | Path], *, num_tasks: int = 40_000, seed: int = 0) -> Comparison:
    """Score runs on the same test tasks, with paired differences to the first one.

    Args:
        runs: Two or more runs of one source, their folders, or names of released models.
        num_tasks: Number of test tasks.
        seed: Random seed of the test tasks.

    Returns:
        A summary of each run, and its paired difference to the first with a 95 % confidence interval over tasks.

    Raises:
        InputError: If there are fewer than two runs, or they were trained on different sources.

    Example:
        >>> import metagrove as mg
        >>> mg.compare(["runs/hsml", "runs/maml"], num_tasks=4000).runs[1].minus_first  # doctest: +SKIP
    """
    runs = [as_run(run) for run in runs]
    if len(runs) < 2:
        raise InputError(f"compare needs two or more runs, got {len(runs)}")
    for run in runs:
        if run.config.source != runs[0].config.source:
            other = f"{run.folder.name} was trained on a different source than {runs[0].folder.name}"
            raise InputError(f"{other}: compare runs of the same source")
    families = runs[0].config.source.family_names
    scores = [run.scores(num_tasks=num_tasks, seed=seed) for run in runs]
    rows = []
    for run, own in zip(runs, scores, strict=True):
        summary = summarize(own, families, step=run.inner_steps, metric=run.metric)
        paired = compare_scores(own, run.inner_steps, scores[0], runs[0].inner_steps, families)
        rows.append(ComparedRun(run.folder.name, learner_name(run), summary, paired))
    return Comparison(num_tasks, seed, rows)


def as_run(run: Run | str | Path) -> Run:
    """The run itself, or the one of that folder or name."""
    return run if isinstance(run, Run) else load(run)


def learner_name(run: Run) -> str:
    """Return the registered name of a run's learner, or its class name if it is a user's own."""
    return to_json(run.config)["learner"].get("name", type(run.config.learner).__name__)

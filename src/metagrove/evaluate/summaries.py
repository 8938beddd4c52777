"""What `evaluate` and `compare` tell of runs."""

import dataclasses
from collections.abc import Sequence

from metagrove.config.config import to_json
from metagrove.errors import InputError
from metagrove.evaluate.transfer import ReportedGrowth, Transfer, growth_events, transfer
from metagrove.files import FLAT, Json
from metagrove.losses import metric_of
from metagrove.serve.run import Run
from metagrove.train import folders
from metagrove.train.records import BlockRecord
from metagrove.train.scores import PairedComparison, Summary, compare, summarize


@dataclasses.dataclass(frozen=True)
class StreamStory:
    """Of a run on a stream, how it grew and what it kept."""

    clusters: list[int] | None
    """Clusters of each level at the end."""
    growth: list[ReportedGrowth]
    transfer: Transfer | None
    """None for a run that is not trained to its end."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A run on test tasks."""

    run: str
    """The name of its folder."""
    learner: str
    seed: int
    """Of the test tasks."""
    summary: Summary = dataclasses.field(metadata=FLAT)
    stream: StreamStory | None = dataclasses.field(metadata=FLAT)
    checkpoint: Json
    """Which checkpoint it is, and its validation."""


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """A run on the same test tasks as others, and its paired difference to the first of them."""

    run: str
    learner: str
    summary: Summary = dataclasses.field(metadata=FLAT)
    minus_first: PairedComparison


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs on the same test tasks."""

    num_tasks: int
    seed: int
    runs: list[ComparedRun]


def evaluation(run: Run, *, num_tasks: int, seed: int) -> Evaluation:
    """A run's summary on test tasks."""
    scores = run.scores(num_tasks=num_tasks, seed=seed)
    summary = summarize(scores, run.config.source.family_names, step=run.inner_steps, metric=run.metric)
    story = stream_story(run, folders.read_metrics(run.folder))
    return Evaluation(run.folder.name, learner_name(run), seed, summary, story, run.about)


def stream_story(run: Run, records: Sequence[BlockRecord]) -> StreamStory | None:
    """How a run on a stream grew and what it kept; None for a source without phases."""
    source, training = run.config.source, run.config.training
    if not source.has_phases:
        return None
    higher = metric_of(run.config.learner.loss).higher_is_better
    return StreamStory(
        clusters=run.about.get("clusters"),
        growth=growth_events(records),
        transfer=transfer(records, source, training.steps, higher_is_better=higher),
    )


def comparison(runs: Sequence[Run], *, num_tasks: int, seed: int) -> Comparison:
    """Each run's summary, and its paired difference to the first."""
    if len(runs) < 2:
        raise InputError(f"compare needs two or more runs, got {len(runs)}")
    for run in runs:
        if run.config.source != runs[0].config.source:
            other = f"{run.folder.name} was trained on other tasks than {runs[0].folder.name}"
            raise InputError(f"{other}: compare runs of the same source")
    families = runs[0].config.source.family_names
    scores = [run.scores(num_tasks=num_tasks, seed=seed) for run in runs]
    rows = []
    for run, own in zip(runs, scores, strict=True):
        summary = summarize(own, families, step=run.inner_steps, metric=run.metric)
        paired = compare(own, run.inner_steps, scores[0], runs[0].inner_steps, families)
        rows.append(ComparedRun(run.folder.name, learner_name(run), summary, paired))
    return Comparison(num_tasks, seed, rows)


def learner_name(run: Run) -> str:
    """Its short name, or its class's for a person's own."""
    return to_json(run.config)["learner"].get("name", type(run.config.learner).__name__)

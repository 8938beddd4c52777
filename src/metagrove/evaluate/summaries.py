"""Summaries that `evaluate` and `compare` report, as JSON data."""

from collections.abc import Sequence
from typing import Any

from metagrove.config.encoding import to_json
from metagrove.errors import InputError
from metagrove.evaluate.transfer import growth_events, transfer
from metagrove.losses import best_of, metric_of
from metagrove.serve.run import Run
from metagrove.sources.stream import Stream
from metagrove.train import folders
from metagrove.train.scores import compare, summarize


def evaluation(run: Run, *, num_tasks: int, seed: int) -> dict[str, Any]:
    """Summarise a run on test tasks."""
    scores = run.scores(num_tasks=num_tasks, seed=seed)
    summary = summarize(scores, run.config.source.family_names, step=run.inner_steps, metric=run.metric)
    story = stream_story(run, folders.read_metrics(run.folder))
    return {
        "run": run.folder.name,
        "learner": learner_name(run),
        "seed": seed,
        **summary,
        **story,
        "checkpoint": run.about,
    }


def stream_story(run: Run, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarise growth and transfer of a run on a stream; empty for other runs."""
    source, training = run.config.source, run.config.training
    if not isinstance(source, Stream):
        return {}
    higher = metric_of(run.config.learner.loss).higher_is_better
    return {
        "clusters": run.about.get("clusters"),
        "growth": growth_events(records),
        "transfer": transfer(records, source, training.steps, higher_is_better=higher),
    }


def comparison(runs: Sequence[Run], *, num_tasks: int, seed: int) -> dict[str, Any]:
    """Summarise runs on the same test tasks, with paired differences to the first one."""
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
        paired = compare(own, run.inner_steps, scores[0], runs[0].inner_steps, families)
        rows.append({"run": run.folder.name, "learner": learner_name(run), **summary, "minus_first": paired})
    return {"num_tasks": num_tasks, "seed": seed, "runs": rows}


def chosen_seed(row: dict[str, Any]) -> dict[str, Any]:
    """Return the seed of a result's row with the best validation score."""
    metric = row["seeds"][0]["evaluation"]["metric"]
    return best_of(row["seeds"], lambda one: one["checkpoint"]["validation"]["value"], metric)


def learner_name(run: Run) -> str:
    """Return the registered name of a run's learner, or its class name if it is a user's own."""
    return to_json(run.config)["learner"].get("name", type(run.config.learner).__name__)

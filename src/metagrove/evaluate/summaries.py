"""What `evaluate` and `compare` tell, as plain data."""

from collections.abc import Sequence
from typing import Any

from metagrove.config.config import to_json
from metagrove.errors import InputError
from metagrove.evaluate.transfer import growth_events, transfer
from metagrove.losses import best_of, metric_of
from metagrove.nets.predictors import Statistics
from metagrove.serve.run import Run
from metagrove.sources.stream import Stream
from metagrove.train import folders
from metagrove.train.scores import compare, summarize, value_by_family


def evaluation(run: Run, *, num_tasks: int, seed: int) -> dict[str, Any]:
    """A run's summary on test tasks."""
    scores = run.scores(num_tasks=num_tasks, seed=seed)
    summary = summarize(scores, run.config.source.family_names, step=run.inner_steps, metric=run.metric)
    story = stream_story(run, folders.read_metrics(run.folder))
    by_statistics = image_statistics(run, num_tasks=num_tasks, seed=seed) if run.config.source.spec.is_image else {}
    return {
        "run": run.folder.name,
        "learner": learner_name(run),
        "seed": seed,
        **summary,
        **story,
        **by_statistics,
        "checkpoint": run.about,
    }


STATISTICS: dict[str, Statistics] = {"transductive": "query", "support statistics": "support"}
"""What both figures of an image run are called."""


def image_statistics(run: Run, *, num_tasks: int, seed: int) -> dict[str, Any]:
    """Of a run on images, the mean after the chosen inner steps under both statistics, and their paired difference."""
    step, names = run.inner_steps, run.config.source.family_names
    how = {"num_tasks": num_tasks, "seed": seed, "steps": step, "every_step": False}
    scores = {name: run.scores(statistics=statistics, **how) for name, statistics in STATISTICS.items()}
    found = {name: value_by_family(one, names, step=step) for name, one in scores.items()}
    paired = compare(scores["support statistics"], step, scores["transductive"], step, names)
    return {"statistics": {**found, "support statistics minus transductive": paired}}


def stream_story(run: Run, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of a run on a stream, how it grew and what it kept; nothing of any other."""
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
        rows.append({"run": run.folder.name, "learner": learner_name(run), **summary, "minus_first": paired})
    return {"num_tasks": num_tasks, "seed": seed, "runs": rows}


def chosen_seed(row: dict[str, Any]) -> dict[str, Any]:
    """Of a result's row, the seed that did best on the validation tasks."""
    metric = row["seeds"][0]["evaluation"]["metric"]
    return best_of(row["seeds"], lambda one: one["checkpoint"]["validation"]["value"], metric)


def learner_name(run: Run) -> str:
    """Its short name, or its class's for a person's own."""
    return to_json(run.config)["learner"].get("name", type(run.config.learner).__name__)

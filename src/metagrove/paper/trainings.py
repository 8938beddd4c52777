"""Trainings of an experiment: the searches of its rows and their runs, their folders, and those that are missing."""

import dataclasses
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from metagrove import files
from metagrove.config.config import Config
from metagrove.config.encoding import to_json
from metagrove.config.presets import preset
from metagrove.errors import DivergedError, RunError
from metagrove.files import Json
from metagrove.losses import best_of, metric_of
from metagrove.paper.experiments import Budget, Experiment, Row, Search, Settings
from metagrove.paper.results import SearchRecord, Trial
from metagrove.serve.train import default_folder
from metagrove.training import folders
from metagrove.training.jobs import TrainJob
from metagrove.training.records import BestCheckpoint


@dataclasses.dataclass(frozen=True)
class ExperimentContext:
    """An experiment with its budget and image size, and the folder of its runs."""

    experiment: Experiment
    budget: Budget
    folder: Path
    size: int | None = None
    """Size of the images, if not that of the preset."""
    suffix: str = ""
    """Suffix of the folder name after that of the experiment: budget and size."""


def settings_of(row: Row, context: ExperimentContext) -> Settings:
    """Return the changes of a row to its preset.

    Those of its search override its own, which override those of the budget; the overrides of the budget come last.
    """
    chosen: Settings = {}
    if row.search is not None:
        record = search_record(row, context)
        index = record.chosen if record else row.search.known
        chosen = {**row.search.base, **row.search.candidates[index]}
    size = {} if context.size is None else {"size": context.size}
    return {**context.budget.training, **row.settings, **size, **chosen, **context.budget.overrides}


def run_of(row: Row, seed: int, context: ExperimentContext) -> tuple[Config, Path, Settings]:
    """Return the config and folder of a row and its changes to the preset; unchanged presets share one folder."""
    settings = {**settings_of(row, context), "seed": seed}
    plain = preset(row.preset, row.learner).with_settings(seed=seed)
    config = plain.with_settings(**settings)
    folder = default_folder(row.preset, plain) if config == plain else own_folder(row, seed, context)
    return config, folder, settings


def own_folder(row: Row, seed: int, context: ExperimentContext) -> Path:
    """Return the folder of a run among those of its experiment, or of the experiment that it is shared with."""
    label, parent = row.label, context.folder
    if row.shares is not None:
        experiment, label = row.shares
        parent = context.folder.with_name(experiment + context.suffix)
    slug = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return parent / f"{slug}-s{seed}"


def trained_part(row: Row, context: ExperimentContext) -> Row | None:
    """Return the row with the seeds whose training is complete, or None if there are none."""
    if row.search is not None and context.budget.trial is not None and not search_file(row.search, context).exists():
        return None
    configs = {seed: run_of(row, seed, context)[:2] for seed in row.seeds}
    seeds = tuple(seed for seed, (config, folder) in configs.items() if finished(folder, config))
    return dataclasses.replace(row, seeds=seeds) if seeds else None


def search_file(search: Search, context: ExperimentContext) -> Path:
    """Return the file of a search record."""
    return context.folder / "search" / f"{search.name}.json"


def search_record(row: Row, context: ExperimentContext) -> SearchRecord | None:
    """Read the candidates and the selection of a row's search; None if there is no search."""
    if row.search is None or context.budget.trial is None:
        return None
    return files.from_json(SearchRecord, files.read_json(search_file(row.search, context)))


def needs_search(row: Row, context: ExperimentContext) -> bool:
    """Return whether a row has a search that is not complete; raise an error if the record is of another search."""
    if row.search is None or context.budget.trial is None:
        return False
    if not search_file(row.search, context).exists():
        return True
    check_same_search(row.search, context)
    return False


def write_search(search: Search, context: ExperimentContext, diverged: Collection[Path]) -> None:
    """Record the trained candidates of a search and select the best; `diverged` are folders of those that diverged."""
    trials = [trial_of(search, index, context, diverged) for index in range(len(search.candidates))]
    scored = {index: one.validation.value for index, one in enumerate(trials) if one.validation}
    if not scored:
        raise DivergedError(f"every candidate of the search for {search.name} diverged")
    metric = metric_of(preset(search.preset, search.learner).learner.loss).name
    best = best_of(scored, lambda index: scored[index], metric)
    record = SearchRecord(search.preset, dict(search.base), dict(context.budget.trial or {}), trials, best)
    files.write_json(search_file(search, context), {"format": files.FORMAT, **files.as_json(record)})


def check_same_search(search: Search, context: ExperimentContext) -> None:
    """Raise an error if the record is of a search with other candidates or another budget."""
    path = search_file(search, context)
    record = files.from_json(SearchRecord, files.read_json(path))
    requested = {
        "base": dict(search.base),
        "trial": dict(context.budget.trial or {}),
        "candidates": list(search.candidates),
    }
    stored = {"base": record.base, "trial": record.trial, "candidates": [one.settings for one in record.candidates]}
    if record.preset != search.preset or stored != plain_data(requested):
        raise RunError(f"{path} is the record of another search: remove it and its runs to search again")


def plain_data(value: Any) -> Any:
    """Convert a value to the form in which it is read from a JSON file."""
    return json.loads(json.dumps(value))


def trial_settings(search: Search, index: int, context: ExperimentContext) -> Settings:
    """Return the changes of a candidate's short training to the preset."""
    size = {} if context.size is None else {"size": context.size}
    return {**(context.budget.trial or {}), **size, **search.base, **search.candidates[index], "seed": 0}


def trial_folder(search: Search, index: int, context: ExperimentContext) -> Path:
    """Return the folder of a candidate's short training."""
    return search_file(search, context).parent / f"{search.name}-{index}"


def trial_of(search: Search, index: int, context: ExperimentContext, diverged: Collection[Path]) -> Trial:
    """Return the result of a candidate; it has no validation if it diverged."""
    settings, folder = dict(search.candidates[index]), trial_folder(search, index, context)
    if folder in diverged:
        return Trial(settings)
    best = files.from_json(BestCheckpoint, files.read_json(folder / "best.json"))
    return Trial(settings, best.validation, last_of(folder)["seconds"])


def finished_trials(row: Row, context: ExperimentContext) -> list[Trial]:
    """Return the candidates of a row's search whose short training is complete."""
    if row.search is None or context.budget.trial is None:
        return []
    left = {job.folder for job in trial_jobs(row.search, context)}
    indices = range(len(row.search.candidates))
    return [trial_of(row.search, i, context, ()) for i in indices if trial_folder(row.search, i, context) not in left]


def last_of(folder: Path) -> Json:
    """Read the record of the last checkpoint of a run."""
    return files.read_json(folder / "last.json")


def finished(folder: Path, config: Config) -> bool:
    """Return whether a run is trained completely; raise an error if it has other settings."""
    if not (folder / "run.json").exists():
        return False
    folders.check_same_config(folder, to_json(config))
    return (folder / "last.json").exists() and last_of(folder)["step"] >= config.training.steps


def row_jobs(row: Row, context: ExperimentContext) -> list[TrainJob]:
    """Return a job for each run of a row that is not trained completely."""
    jobs = []
    for seed in row.seeds:
        config, folder, settings = run_of(row, seed, context)
        if not finished(folder, config):
            label = f"{row.label}, seed {seed}" if len(row.seeds) > 1 else row.label
            arguments = train_arguments(row.preset, row.learner, settings)
            jobs.append(TrainJob(label, arguments, folder, config.training.steps))
    return jobs


def trial_jobs(search: Search, context: ExperimentContext) -> list[TrainJob]:
    """Return a job for each candidate of a search that is not trained completely."""
    jobs = []
    for index in range(len(search.candidates)):
        settings, folder = trial_settings(search, index, context), trial_folder(search, index, context)
        config = preset(search.preset, search.learner).with_settings(**settings)
        if not finished(folder, config):
            label = f"search for {search.name}, {index + 1} of {len(search.candidates)}"
            arguments = train_arguments(search.preset, search.learner, settings)
            jobs.append(TrainJob(label, arguments, folder, config.training.steps))
    return jobs


def train_arguments(name: str, learner: str | None, settings: Settings) -> tuple[str, ...]:
    """Return the arguments of `metagrove train`."""
    return (name, *(["--learner", learner] if learner else []), *flags(settings))


def flags(settings: Settings) -> list[str]:
    """Convert settings to flags of `metagrove train`."""
    given: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            given += [f"--{flag}" if value else f"--no-{flag}"]
        else:
            given += [f"--{flag}", *(str(one) for one in (value if isinstance(value, tuple) else (value,)))]
    return given

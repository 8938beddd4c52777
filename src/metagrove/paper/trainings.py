"""Trainings of an experiment: the searches of its rows and their runs, where they are and what is missing."""

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
    """What the name of the folder adds to that of the experiment: budget and size."""


def settings_of(row: Row, place: ExperimentContext) -> Settings:
    """Return the changes of a row to its preset.

    Those of its search override its own, which override those of the budget; the overrides of the budget come last.
    """
    chosen: Settings = {}
    if row.search is not None:
        record = search_record(row, place)
        index = record.chosen if record else row.search.known
        chosen = {**row.search.base, **row.search.candidates[index]}
    size = {} if place.size is None else {"size": place.size}
    return {**place.budget.training, **row.settings, **size, **chosen, **place.budget.overrides}


def run_of(row: Row, seed: int, place: ExperimentContext) -> tuple[Config, Path, Settings]:
    """Return the config and folder of a row and its changes to the preset; unchanged presets share one folder."""
    settings = {**settings_of(row, place), "seed": seed}
    plain = preset(row.preset, row.learner).with_settings(seed=seed)
    config = plain.with_settings(**settings)
    folder = default_folder(row.preset, plain) if config == plain else own_folder(row, seed, place)
    return config, folder, settings


def own_folder(row: Row, seed: int, place: ExperimentContext) -> Path:
    """Return the folder of a run among those of its experiment, or of the experiment that it is shared with."""
    label, parent = row.label, place.folder
    if row.shares is not None:
        experiment, label = row.shares
        parent = place.folder.with_name(experiment + place.suffix)
    slug = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return parent / f"{slug}-s{seed}"


def trained_part(row: Row, place: ExperimentContext) -> Row | None:
    """Return the row with the seeds whose training is complete, or None if there are none."""
    if row.search is not None and place.budget.trial is not None and not search_file(row.search, place).exists():
        return None
    configs = {seed: run_of(row, seed, place)[:2] for seed in row.seeds}
    seeds = tuple(seed for seed, (config, folder) in configs.items() if finished(folder, config))
    return dataclasses.replace(row, seeds=seeds) if seeds else None


def search_file(search: Search, place: ExperimentContext) -> Path:
    """Return the file of a search record."""
    return place.folder / "search" / f"{search.name}.json"


def search_record(row: Row, place: ExperimentContext) -> SearchRecord | None:
    """Read the candidates and the selection of a row's search; None if there is no search."""
    if row.search is None or place.budget.trial is None:
        return None
    return files.from_json(SearchRecord, files.read_json(search_file(row.search, place)))


def needs_search(row: Row, place: ExperimentContext) -> bool:
    """Return whether a row has a search that is not complete; raise an error if the record is of another search."""
    if row.search is None or place.budget.trial is None:
        return False
    if not search_file(row.search, place).exists():
        return True
    check_same_search(row.search, place)
    return False


def write_search(search: Search, place: ExperimentContext, diverged: Collection[Path]) -> None:
    """Record the trained candidates of a search and select the best; `diverged` are folders of those that diverged."""
    trials = [trial_of(search, index, place, diverged) for index in range(len(search.candidates))]
    scored = {index: one.validation.value for index, one in enumerate(trials) if one.validation}
    if not scored:
        raise DivergedError(f"every candidate of the search for {search.name} diverged")
    metric = metric_of(preset(search.preset, search.learner).learner.loss).name
    best = best_of(scored, lambda index: scored[index], metric)
    record = SearchRecord(search.preset, dict(search.base), dict(place.budget.trial or {}), trials, best)
    files.write_json(search_file(search, place), {"format": files.FORMAT, **files.as_json(record)})


def check_same_search(search: Search, place: ExperimentContext) -> None:
    """Raise an error if the record is of a search with other candidates or another budget."""
    path = search_file(search, place)
    record = files.from_json(SearchRecord, files.read_json(path))
    asked = {"base": dict(search.base), "trial": dict(place.budget.trial or {}), "candidates": list(search.candidates)}
    stored = {"base": record.base, "trial": record.trial, "candidates": [one.settings for one in record.candidates]}
    if record.preset != search.preset or stored != plain_data(asked):
        raise RunError(f"{path} is the record of another search: remove it and its runs to search again")


def plain_data(value: Any) -> Any:
    """Convert a value to what a JSON file gives back."""
    return json.loads(json.dumps(value))


def trial_settings(search: Search, index: int, place: ExperimentContext) -> Settings:
    """Return the changes of a candidate's short training to the preset."""
    size = {} if place.size is None else {"size": place.size}
    return {**(place.budget.trial or {}), **size, **search.base, **search.candidates[index], "seed": 0}


def trial_folder(search: Search, index: int, place: ExperimentContext) -> Path:
    """Return the folder of a candidate's short training."""
    return search_file(search, place).parent / f"{search.name}-{index}"


def trial_of(search: Search, index: int, place: ExperimentContext, diverged: Collection[Path]) -> Trial:
    """Return the result of a candidate; it has no validation if it diverged."""
    settings, folder = dict(search.candidates[index]), trial_folder(search, index, place)
    if folder in diverged:
        return Trial(settings)
    best = files.from_json(BestCheckpoint, files.read_json(folder / "best.json"))
    return Trial(settings, best.validation, last_of(folder)["seconds"])


def finished_trials(row: Row, place: ExperimentContext) -> list[Trial]:
    """Return the candidates of a row's search whose short training is complete."""
    if row.search is None or place.budget.trial is None:
        return []
    left = {job.folder for job in trial_jobs(row.search, place)}
    indices = range(len(row.search.candidates))
    return [trial_of(row.search, i, place, ()) for i in indices if trial_folder(row.search, i, place) not in left]


def last_of(folder: Path) -> Json:
    """Read the record of the last checkpoint of a run."""
    return files.read_json(folder / "last.json")


def finished(folder: Path, config: Config) -> bool:
    """Return whether a run is trained completely; raise an error if it has other settings."""
    if not (folder / "run.json").exists():
        return False
    folders.check_same_config(folder, to_json(config))
    return (folder / "last.json").exists() and last_of(folder)["step"] >= config.training.steps


def row_jobs(row: Row, place: ExperimentContext) -> list[TrainJob]:
    """Return a job for each run of a row that is not trained completely."""
    jobs = []
    for seed in row.seeds:
        config, folder, settings = run_of(row, seed, place)
        if not finished(folder, config):
            label = f"{row.label}, seed {seed}" if len(row.seeds) > 1 else row.label
            arguments = train_arguments(row.preset, row.learner, settings)
            jobs.append(TrainJob(label, arguments, folder, config.training.steps))
    return jobs


def trial_jobs(search: Search, place: ExperimentContext) -> list[TrainJob]:
    """Return a job for each candidate of a search that is not trained completely."""
    jobs = []
    for index in range(len(search.candidates)):
        settings, folder = trial_settings(search, index, place), trial_folder(search, index, place)
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

"""Trainings of an experiment: search the settings of a row and train its runs, each going on where it stopped."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from metagrove import files
from metagrove.config.config import Config
from metagrove.config.encoding import to_json
from metagrove.config.presets import preset
from metagrove.errors import STOPPED, DivergedError, RunError
from metagrove.files import Json
from metagrove.losses import best_of, metric_of
from metagrove.paper.experiments import Budget, Experiment, Row, Search, Settings
from metagrove.paper.results import SearchRecord, Trial
from metagrove.serve.run import default_folder
from metagrove.training import folders
from metagrove.training.records import BestCheckpoint


@dataclasses.dataclass(frozen=True)
class ExperimentContext:
    """An experiment with its budget and image size, and the folder of its runs."""

    experiment: Experiment
    budget: Budget
    folder: Path
    size: int | None = None
    """Size of the images, if not that of the preset."""


def settings_of(row: Row, place: ExperimentContext) -> Settings:
    """Return the changes of a row to its preset: those of its search override its own, which override the budget's."""
    chosen: Settings = {}
    if row.search is not None:
        record = search_record(row, place)
        index = record.chosen if record else row.search.known
        chosen = {**row.search.base, **row.search.candidates[index]}
    size = {} if place.size is None else {"size": place.size}
    return {**place.budget.training, **row.settings, **size, **chosen}


def run_of(row: Row, seed: int, place: ExperimentContext) -> tuple[Config, Path, Settings]:
    """Return the config and folder of a row and its changes to the preset; unchanged presets share one folder."""
    settings = {**settings_of(row, place), "seed": seed}
    plain = preset(row.preset, row.learner).with_settings(seed=seed)
    config = plain.with_settings(**settings)
    slug = re.sub(r"[^a-z0-9]+", "-", row.label.lower()).strip("-")
    folder = default_folder(row.preset, plain) if config == plain else place.folder / f"{slug}-s{seed}"
    return config, folder, settings


def train_if_needed(row: Row, seed: int, place: ExperimentContext) -> bool:
    """Select the settings of a row and train its run, resuming both; return False if interrupted."""
    if row.search is not None and not search_if_needed(row.search, place):
        return False
    config, folder, settings = run_of(row, seed, place)
    if finished(folder, config):
        return True
    print(f"{row.label}, seed {seed}: {folder}", file=sys.stderr)
    try:
        return train_in_own_process(row.preset, row.learner, settings, folder)
    except DivergedError:
        if not (folder / "best.json").exists():
            raise
        print(f"{row.label} diverged: its best checkpoint before that is used", file=sys.stderr)
        return True


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


def search_if_needed(search: Search, place: ExperimentContext) -> bool:
    """Train every candidate briefly and record the results; return False if interrupted."""
    path = search_file(search, place)
    if place.budget.trial is None:
        return True
    if path.exists():
        check_same_search(search, place)
        return True
    trials = []
    for index in range(len(search.candidates)):
        trial = try_out(search, index, place)
        if trial is None:
            return False
        trials.append(trial)
    scored = {index: one.validation.value for index, one in enumerate(trials) if one.validation}
    if not scored:
        raise DivergedError(f"every candidate of the search for {search.name} diverged")
    metric = metric_of(preset(search.preset, search.learner).learner.loss).name
    best = best_of(scored, lambda index: scored[index], metric)
    record = SearchRecord(search.preset, dict(search.base), dict(place.budget.trial), trials, best)
    files.write_json(path, {"format": files.FORMAT, **files.as_json(record)})
    return True


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


def try_out(search: Search, index: int, place: ExperimentContext) -> Trial | None:
    """Train one candidate briefly; the trial has no validation if it diverged. Return None if interrupted."""
    candidate = search.candidates[index]
    settings = {**(place.budget.trial or {}), **search.base, **candidate, "seed": 0}
    folder = search_file(search, place).parent / f"{search.name}-{index}"
    try:
        if not finished(folder, preset(search.preset, search.learner).with_settings(**settings)):
            print(f"search for {search.name}, {index + 1} of {len(search.candidates)}", file=sys.stderr)
            if not train_in_own_process(search.preset, search.learner, settings, folder):
                return None
    except DivergedError:
        return Trial(dict(candidate))
    best = files.from_json(BestCheckpoint, files.read_json(folder / "best.json"))
    return Trial(dict(candidate), best.validation, last_of(folder)["seconds"])


def last_of(folder: Path) -> Json:
    """Read the record of the last checkpoint of a run."""
    return files.read_json(folder / "last.json")


def finished(folder: Path, config: Config) -> bool:
    """Return whether a run is trained completely; raise an error if it has other settings."""
    if not (folder / "run.json").exists():
        return False
    folders.check_same_config(folder, to_json(config))
    return (folder / "last.json").exists() and last_of(folder)["step"] >= config.training.steps


def train_in_own_process(name: str, learner: str | None, settings: Settings, folder: Path) -> bool:
    """Run `metagrove train` in a subprocess, for its command and peak memory; return False if interrupted."""
    arguments = ["train", name, *(["--learner", learner] if learner else []), *flags(settings), "--out", str(folder)]
    arguments += ["--resume"] if (folder / "run.json").exists() else []
    code = run_and_wait([sys.executable, "-m", "metagrove", *arguments])
    if code in (0, STOPPED):
        return code == 0
    failed = f"`{shlex.join(['metagrove', *arguments])}` failed with code {code}, see above"
    raise DivergedError(failed) if code == DivergedError.exit_code else RunError(failed)


def run_and_wait(command: list[str]) -> int:
    """Run a command and return its exit code; on Ctrl-C, wait until it has saved its state."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return process.wait()


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

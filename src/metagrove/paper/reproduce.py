"""Run whole experiments: search, train what is missing, evaluate all rows on the same tasks, write one JSON file."""

import dataclasses
import fnmatch
import io
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from metagrove import files
from metagrove.config.config import Config
from metagrove.config.encoding import to_json
from metagrove.config.presets import preset
from metagrove.config.registry import unknown_name
from metagrove.errors import STOPPED, DivergedError, InputError, RunError
from metagrove.evaluation.summaries import stream_story
from metagrove.files import Json
from metagrove.learner import num_parameters
from metagrove.losses import best_of, metric_of
from metagrove.paper.experiments import EXPERIMENTS, Budget, Experiment, Row, Search, Settings
from metagrove.paper.results import DifferenceTo, ExperimentResult, RowResult, SearchRecord, SeedResult, Trial
from metagrove.serve.run import Run, default_folder, load
from metagrove.sources.source import Source
from metagrove.training import folders
from metagrove.training.records import BestCheckpoint, BlockRecord
from metagrove.training.scores import Scores, compare, summarize
from metagrove.training.validate import validate

PAPER_TASKS = 4_000
SHOWN_STEPS = 10
"""Minimum number of inner steps after which a result is evaluated."""


@dataclasses.dataclass(frozen=True)
class ExperimentContext:
    """An experiment with its budget and image size, and the folder of its runs."""

    experiment: Experiment
    budget: Budget
    folder: Path
    size: int | None = None
    """Size of the images, if not that of the preset."""


def reproduce(
    name: str,
    *,
    budget: str = "paper",
    size: int | None = None,
    only: str = "*",
    train: bool = True,
    out: Path,
    release: Path | None = None,
) -> ExperimentResult | None:
    """Run an experiment, resuming it if it was interrupted, and write its result.

    Args:
        name: Name of the experiment.
        budget: "paper", "small" or "quick".
        size: Height and width of images, if not that of the preset.
        only: Search and train only the rows whose label matches this pattern; the result then has no rows.
        train: Train what is missing; without it the result has the rows that are trained so far.
        out: Folder of the result file.
        release: Folder to copy the released models to.

    Returns:
        The result, or None if it was interrupted.
    """
    if name not in EXPERIMENTS:
        raise InputError(unknown_name(name, EXPERIMENTS, "experiment"))
    experiment = EXPERIMENTS[name]
    full_name = name + ("" if budget == "paper" else f"-{budget}") + ("" if size is None else f"-{size}")
    place = ExperimentContext(experiment, experiment.budgets[budget], Path("runs") / full_name, size)
    rows = [row for row in experiment.rows if fnmatch.fnmatchcase(row.label, only)]
    if not rows:
        raise InputError(unknown_name(only, [row.label for row in experiment.rows], "row"))
    if not train:
        rows = [as_trained for row in rows if (as_trained := trained_part(row, place)) is not None]
    elif not all(train_if_needed(row, seed, place) for row in rows for seed in row.seeds):
        return None
    results = [] if only != "*" else evaluate_rows(rows, place)
    command = f"metagrove reproduce {name}" + ("" if budget == "paper" else f" --budget {budget}")
    command += ("" if size is None else f" --size {size}") + ("" if train else " --no-train")
    provenance = folders.provenance(command)
    result = ExperimentResult(full_name, experiment.about, experiment.remark, provenance, results)
    if only != "*":
        return result
    out.mkdir(parents=True, exist_ok=True)
    files.write_json(out / f"{full_name}.json", {"format": files.FORMAT, **files.as_json(result)})
    for row, row_result in zip(rows, results, strict=True):
        if release is not None:
            publish(row, row_result, place, release)
    return result


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


def evaluate_rows(rows: list[Row], place: ExperimentContext) -> list[RowResult]:
    """Evaluate all seeds of all rows; return their scores, mean and std, and the search records."""
    references = References()
    results = []
    for row in rows:
        print(f"evaluating {row.label}", file=sys.stderr)
        seeds = [evaluate_seed(row, seed, place, references) for seed in row.seeds]
        values = [one.evaluation.value for one in seeds]
        sd = statistics.stdev(values) if len(values) > 1 else None
        search = search_record(row, place)
        results.append(RowResult(row.label, row.preset, row.paper, statistics.fmean(values), sd, search, seeds))
    return results


def evaluate_seed(row: Row, seed: int, place: ExperimentContext, references: "References") -> SeedResult:
    """Evaluate one run on many tasks and, as in the paper, on the first 4,000 of them."""
    _, folder, _ = run_of(row, seed, place)
    stored, last, records = files.read_json(folder / "run.json"), last_of(folder), folders.read_metrics(folder)
    run, scores = scored(load(folder), row, place)
    families, step = run.config.source.family_names, run.inner_steps
    few = dataclasses.replace(
        scores, by_step=scores.by_step[:PAPER_TASKS], family=scores.family[:PAPER_TASKS], shares=None
    )
    return SeedResult(
        seed=seed,
        test_seed=place.experiment.test_seed,
        evaluation=summarize(scores, families, step=step, metric=run.metric),
        evaluation_4000=summarize(few, families, step=step, metric=run.metric),
        paired_difference=references.difference(run, row.label, seed, scores),
        scores=every_score(scores, run) if place.experiment.keep_scores else None,
        data=run.config.source.checksums or None,
        stream=stream_story(run, records),
        checkpoint=run.about,
        parameters=num_parameters(run.meta),
        meta_steps=last["step"],
        diverged=last["step"] < run.config.training.steps,
        training_seconds=last["seconds"],
        steps_per_second=last.get("steps_per_second"),
        peak_memory_mb=last.get("peak_memory_mb"),
        curve=[(r.step, r.validation.value) for r in records if r.validation is not None],
        final_training=final_training(records, run.config.training.validate_every),
        config=stored["config"],
        provenance=stored["provenance"],
    )


@dataclasses.dataclass(frozen=True)
class Reference:
    """A run with which others are compared."""

    label: str
    scores: Scores
    step: int


@dataclasses.dataclass(frozen=True)
class References:
    """The runs of the first row of each source, by seed."""

    of_source: dict[Source, dict[int, Reference]] = dataclasses.field(default_factory=dict)

    def difference(self, run: Run, label: str, seed: int, scores: Scores) -> DifferenceTo:
        """Compute the paired difference to the same seed of the first row of the run's source, or to its first seed."""
        by_seed = self.of_source.setdefault(run.config.source, {})
        first = next(iter(by_seed.values()), None)
        if first is None or first.label == label:
            first = by_seed[seed] = Reference(label, scores, run.inner_steps)
        other = by_seed.get(seed, first)
        paired = compare(scores, run.inner_steps, other.scores, other.step, run.config.source.family_names)
        return DifferenceTo(paired.difference, paired.ci95, paired.by_family, to=other.label)


def every_score(scores: Scores, run: Run) -> dict[str, str]:
    """Format the score of each test task at the selected number of steps, by family, separated by spaces."""
    values, names = scores.after(run.inner_steps), run.config.source.family_names
    return {name: " ".join(f"{one:.5g}" for one in values[scores.family == i]) for i, name in enumerate(names)}


def final_training(records: list[BlockRecord], last_steps: int) -> dict[str, float]:
    """Compute the mean loss, and accuracy if recorded, of the last meta-steps; a record is the mean of a block."""
    trained = [record for record in records if "loss" in record.means]  # a stream's step 0 has none
    last = [record for record in trained if record.step > trained[-1].step - last_steps]
    recorded = [name for name in ("loss", "accuracy") if all(name in record.means for record in last)]
    return {name: float(np.mean([record.means[name] for record in last])) for name in recorded}


def scored(run: Run, row: Row, place: ExperimentContext) -> tuple[Run, Scores]:
    """Select the number of inner steps at test time and score the run; both are cached in its folder."""
    experiment, num_tasks = place.experiment, min(place.experiment.tasks, place.budget.tasks)
    most = row.max_eval_inner_steps or experiment.max_eval_inner_steps
    what = f"{run.about['sha256'][:12]}-{experiment.test_seed}-{num_tasks}-{most}"
    path = run.folder / f"scores-{what}.npz"
    if path.exists():
        with np.load(path) as kept:
            shares = kept.get("shares")
            validation = json.loads(str(kept["validation"]))
            first_step = int(kept["first_step"]) if "first_step" in kept else 0
            scores = Scores(kept["by_step"].astype(np.float64), kept["family"], shares, first_step)
        return dataclasses.replace(run, about={**run.about, "validation": validation}), scores
    run = with_steps_chosen(run, most)
    steps = max(run.inner_steps, SHOWN_STEPS) if experiment.every_step else run.inner_steps
    how = {"steps": steps, "every_step": experiment.every_step}
    scores = run.scores(num_tasks=num_tasks, seed=experiment.test_seed, **how)
    arrays = {"by_step": scores.by_step.astype(np.float32), "family": scores.family, "first_step": scores.first_step}
    arrays |= {} if scores.shares is None else {"shares": scores.shares}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, validation=json.dumps(run.about["validation"]), **arrays)
    files.write_atomically(path, buffer.getvalue())
    return run, scores


def with_steps_chosen(run: Run, most: int | None) -> Run:
    """Select the number of inner steps at test time from 0 to `most` on validation tasks."""
    if most is None:
        return run
    config = run.config.with_settings(max_eval_inner_steps=most)
    validation = files.as_json(validate(config, run.meta))
    return dataclasses.replace(run, about={**run.about, "validation": validation})


def publish(row: Row, result: RowResult, place: ExperimentContext, models: Path) -> None:
    """Copy the seed with the best validation score to the folder of released models."""
    if row.release is None:
        return
    best = result.chosen
    name = row.release if place.size is None else f"{row.release}-{place.size}"
    (_, source, _), target = run_of(row, best.seed, place), models / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("run.json", "best.json", best.checkpoint["weights"], "metrics.jsonl"):
        shutil.copy(source / name, target / name)

"""Whole experiments: train what is missing, evaluate all on the same tasks, write one JSON file with provenance."""

import dataclasses
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from metagrove.errors import InputError
from metagrove.learner import num_parameters
from metagrove.run import checkpoint, folders
from metagrove.run.api import default_folder, load
from metagrove.run.config import name_it, to_json
from metagrove.run.evaluate import compare, summarize
from metagrove.run.presets import preset
from metagrove.run.train import train

TEST_SEED = 0
MANY_TASKS, PAPER_TASKS = 40_000, 4_000


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a result table: a preset, a learner, and the seeds it is trained with."""

    label: str
    preset: str
    seeds: tuple[int, ...]
    learner: str | None = None
    paper: str | None = None
    release: str | None = None
    """The released model that the seed with the best validation becomes."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Rows whose sources agree are evaluated on the same tasks; the first of a source is their yardstick."""

    about: str
    minutes: int
    """Expected time on two cores: the trainings' own time here, one after another, on a busy machine."""
    rows: tuple[Row, ...]


EXPERIMENTS: dict[str, Experiment] = {
    "toy": Experiment(
        "HSML and MAML on four families of functions, 5 and 10 points (paper, section 6.1)",
        minutes=130,
        rows=(
            Row("MAML, 5-shot", "toy-5shot", (0,), "maml", "2.205 ± 0.121"),
            Row("HSML, 5-shot, the paper's protocol", "toy-5shot", (0, 1, 2), None, "0.856 ± 0.073", "toy-5shot"),
            Row("HSML, 5-shot, rows sorted in training", "toy-5shot-sorted", (0,)),
            Row("HSML, 5-shot, ours", "toy-5shot-best", (0, 1, 2), release="toy-5shot-best"),
            Row("MAML, 10-shot", "toy-10shot", (0,), "maml", "0.761 ± 0.068"),
            Row("HSML, 10-shot, the paper's protocol", "toy-10shot", (0,), None, "0.161 ± 0.021", "toy-10shot"),
            Row("HSML, 10-shot, ours", "toy-10shot-best", (0,), release="toy-10shot-best"),
        ),
    ),
}


def reproduce(name: str, *, out: Path, release: Path | None) -> bool:
    """Run an experiment, going on where it stopped. False if a person stopped it."""
    if name not in EXPERIMENTS:
        raise InputError(name_it(name, EXPERIMENTS, "experiment"))
    experiment = EXPERIMENTS[name]
    for row in experiment.rows:
        for seed in row.seeds:
            if not train_if_needed(row, seed):
                return False
    yardsticks: dict[Any, Any] = {}
    rows = [result_of(row, yardsticks) for row in experiment.rows]
    command = f"metagrove reproduce {name}"
    result = {"experiment": name, "about": experiment.about, "provenance": folders.provenance(command), "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    checkpoint.write_json(out / f"{name}.json", {"format": checkpoint.FORMAT, **result})
    if release is not None:
        for row, row_result in zip(experiment.rows, rows, strict=True):
            publish(row, row_result, release)
    return True


def folder_of(row: Row, seed: int) -> Path:
    """Where a row's run is kept."""
    return default_folder(row.preset, preset(row.preset, row.learner).with_settings(seed=seed))


def train_if_needed(row: Row, seed: int) -> bool:
    """Train the row's run, resume it, or leave it if it is finished."""
    config, folder = preset(row.preset, row.learner).with_settings(seed=seed), folder_of(row, seed)
    begun = (folder / "run.json").exists()
    if begun:
        folders.check_same_config(folder, to_json(config))
    if (folder / "last.json").exists() and checkpoint.read_json(folder / "last.json")["step"] >= config.training.steps:
        return True
    print(f"{row.label}, seed {seed}: {folder}", file=sys.stderr)
    learner = f" --learner {row.learner}" if row.learner else ""
    command = f"metagrove train {row.preset}{learner} --seed {seed}"
    return train(config, folder, resume=begun, command=command)


def result_of(row: Row, yardsticks: dict[Any, Any]) -> dict[str, Any]:
    """Every seed's evaluation, and their mean and spread."""
    seeds = [evaluate_seed(row, seed, yardsticks) for seed in row.seeds]
    values = [one["evaluation"]["value"] for one in seeds]
    return {
        "label": row.label,
        "preset": row.preset,
        "paper": row.paper,
        "mean_over_seeds": statistics.fmean(values),
        "sd_over_seeds": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": seeds,
    }


def evaluate_seed(row: Row, seed: int, yardsticks: dict[Any, Any]) -> dict[str, Any]:
    """One run on many tasks and, for the paper's protocol, on its first 4,000."""
    folder = folder_of(row, seed)
    run, stored = load(folder), checkpoint.read_json(folder / "run.json")
    families = run.config.source.family_names
    scores = run.scores(num_tasks=MANY_TASKS, seed=TEST_SEED)
    yardstick, its_step, its_label = yardsticks.setdefault(run.config.source, (scores, run.inner_steps, row.label))
    few = dataclasses.replace(scores, by_step=scores.by_step[:PAPER_TASKS], family=scores.family[:PAPER_TASKS])
    few = dataclasses.replace(few, shares=None)
    last = checkpoint.read_json(folder / "last.json")
    return {
        "seed": seed,
        "test_seed": TEST_SEED,
        "evaluation": summarize(scores, families, step=run.inner_steps, metric=run.metric),
        "evaluation_4000": summarize(few, families, step=run.inner_steps, metric=run.metric),
        "paired_difference": {"to": its_label, **compare(scores, run.inner_steps, yardstick, its_step, families)},
        "checkpoint": run.about,
        "parameters": num_parameters(run.meta),
        "meta_steps": last["step"],
        "training_seconds": last["seconds"],
        "config": stored["config"],
        "provenance": stored["provenance"],
    }


def publish(row: Row, result: dict[str, Any], models: Path) -> None:
    """Copy the seed with the best validation to where released models are kept."""
    if row.release is None:
        return
    best = min(result["seeds"], key=lambda one: one["checkpoint"]["validation"]["value"])
    source, target = folder_of(row, best["seed"]), models / row.release
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("run.json", "best.json", best["checkpoint"]["weights"], "metrics.jsonl"):
        shutil.copy(source / name, target / name)

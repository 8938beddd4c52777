"""Whole experiments: search and train what is missing, evaluate all on the same tasks, write one JSON file."""

import fnmatch
import shutil
from pathlib import Path

from metagrove import files
from metagrove.config.registry import unknown_name
from metagrove.errors import InputError
from metagrove.paper.evaluations import evaluate_rows
from metagrove.paper.experiments import EXPERIMENTS, Experiment, Row
from metagrove.paper.results import ExperimentResult, RowResult
from metagrove.paper.trainings import ExperimentContext, run_of, train_if_needed, trained_part
from metagrove.training import folders


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
    rows = matching_rows(experiment, only)
    if not train:
        rows = [as_trained for row in rows if (as_trained := trained_part(row, place)) is not None]
    elif not all(train_if_needed(row, seed, place) for row in rows for seed in row.seeds):
        return None
    results = [] if only != "*" else evaluate_rows(rows, place)
    command = f"metagrove reproduce {name}" + ("" if budget == "paper" else f" --budget {budget}")
    command += ("" if size is None else f" --size {size}") + ("" if train else " --no-train")
    about = {"about": experiment.about, "remark": experiment.remark, "provenance": folders.provenance(command)}
    result = ExperimentResult(experiment=full_name, **about, rows=results)
    if only != "*":
        return result
    out.mkdir(parents=True, exist_ok=True)
    files.write_json(out / f"{full_name}.json", {"format": files.FORMAT, **files.as_json(result)})
    for row, row_result in zip(rows, results, strict=True):
        if release is not None:
            publish(row, row_result, place, release)
    return result


def matching_rows(experiment: Experiment, pattern: str) -> list[Row]:
    """The rows whose label matches."""
    rows = [row for row in experiment.rows if fnmatch.fnmatchcase(row.label, pattern)]
    if not rows:
        raise InputError(unknown_name(pattern, [row.label for row in experiment.rows], "row"))
    return rows


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

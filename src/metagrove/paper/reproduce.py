"""Whole experiments: search and train what is missing, evaluate all on the same tasks, write one JSON file."""

import dataclasses
import fnmatch
import shutil
import sys
from pathlib import Path

from metagrove import files
from metagrove.config.presets import preset
from metagrove.config.registry import unknown_name
from metagrove.config.settings import setting_names
from metagrove.errors import InputError, MetagroveError
from metagrove.paper.earlier import EarlierResult
from metagrove.paper.evaluations import evaluate_rows, with_measures_of_release
from metagrove.paper.experiments import EXPERIMENTS, Experiment, Row, budget_of
from metagrove.paper.names import display_name
from metagrove.paper.results import ExperimentResult, RowResult
from metagrove.paper.schedule import train_rows
from metagrove.paper.trainings import ExperimentContext, run_of, trained_part
from metagrove.training import folders
from metagrove.workers.pool import LocalPool, Pool


def reproduce(
    *names: str,
    budget: str = "paper",
    size: int | None = None,
    only: str = "*",
    train: bool = True,
    out: Path,
    release: Path | None = None,
    pool: Pool | None = None,
) -> list[ExperimentResult] | None:
    """Run experiments, resuming them if they were interrupted, and write their results.

    Args:
        *names: Names of the experiments.
        budget: "paper", "small", "quick" or "smoke".
        size: Height and width of images, if not that of the preset.
        only: Search and train only the rows whose label matches this pattern; the result then has no rows.
        train: Train what is missing; without it the result has the rows that are trained so far.
        out: Folder of the result files.
        release: Folder to copy the released models to.
        pool: Executes the trainings; by default one after another on this machine.

    Returns:
        The results, or None if it was interrupted.
    """
    contexts = {name: context_of(name, budget, size) for name in names}
    rows = {name: matching_rows(contexts[name].experiment, only) for name in names}
    earlier = {
        name: EarlierResult.read(out / f"{context.folder.name}.json", context) for name, context in contexts.items()
    }
    wanted = {name: [part for row in rows[name] for part in earlier[name].missing(row)] for name in names}
    missing = [(row, contexts[name]) for name in names for row in wanted[name]]
    if train and not train_rows(missing, pool or LocalPool(1)):
        return None
    results = []
    for name, context in contexts.items():
        trained = [part for row in wanted[name] if (part := row if train else trained_part(row, context)) is not None]
        command = f"metagrove reproduce {name}" + ("" if budget == "paper" else f" --budget {budget}")
        command += ("" if size is None else f" --size {size}") + ("" if train else " --no-train")
        result = evaluate(trained if only == "*" else [], context, command)
        if only == "*":
            result = with_earlier(result, rows[name], earlier[name], complete=train)
            write_result(result, context, out, release)
        results.append(result)
    return results


def with_earlier(
    result: ExperimentResult, rows: list[Row], earlier: EarlierResult, *, complete: bool
) -> ExperimentResult:
    """Add the rows of an earlier result, finished trials of searches, and measures of the released models."""
    merged = earlier.merge(rows, result.rows, complete=complete)
    by_label = {row.label: row for row in rows}
    measured = [
        with_measures_of_release(by_label[one.label], one, earlier.context) if one.label in by_label else one
        for one in merged
    ]
    return dataclasses.replace(result, rows=measured, trials=earlier.trials_of(rows, merged))


def context_of(name: str, budget: str, size: int | None) -> ExperimentContext:
    """Return an experiment with its budget; its runs are in runs/NAME[-BUDGET][-SIZE] (SIZE for images only)."""
    if name not in EXPERIMENTS:
        raise InputError(unknown_name(name, EXPERIMENTS, "experiment"))
    experiment, settings = EXPERIMENTS[name], budget_of(EXPERIMENTS[name], budget)
    size = size if "size" in setting_names(preset(experiment.rows[0].preset)) else None
    rows = tuple(dataclasses.replace(row, seeds=row.seeds[: settings.max_seeds]) for row in experiment.rows)
    suffix = ("" if budget == "paper" else f"-{budget}") + ("" if size is None else f"-{size}")
    experiment = dataclasses.replace(experiment, rows=rows)
    return ExperimentContext(experiment, settings, Path("runs") / (name + suffix), size, suffix)


def prepared(budget: str, size: int | None) -> list[str]:
    """Return the names of the experiments whose data is prepared, and print those that are skipped."""
    names = []
    for name in EXPERIMENTS:
        try:
            context = context_of(name, budget, size)
            for row in context.experiment.rows:
                _ = run_of(row, row.seeds[0], without_search(context))[0].source.checksums
        except MetagroveError as error:
            print(f"skipped {name}: {error}", file=sys.stderr)
            continue
        names.append(name)
    return names


def without_search(context: ExperimentContext) -> ExperimentContext:
    """Return the context with the known selections of its searches."""
    return dataclasses.replace(context, budget=dataclasses.replace(context.budget, trial=None))


def evaluate(rows: list[Row], context: ExperimentContext, command: str) -> ExperimentResult:
    """Evaluate rows and return the result of the experiment."""
    return ExperimentResult(
        experiment=context.folder.name,
        about=context.experiment.about,
        remark=context.experiment.remark,
        provenance=folders.provenance(command),
        rows=evaluate_rows(rows, context),
    )


def write_result(result: ExperimentResult, context: ExperimentContext, out: Path, release: Path | None) -> None:
    """Write the result file, and copy the released models."""
    out.mkdir(parents=True, exist_ok=True)
    files.write_json(out / f"{result.experiment}.json", {"format": files.FORMAT, **files.as_json(result)})
    results = {row.label: row for row in result.rows}
    for row in context.experiment.rows:
        if release is not None and row.label in results:
            publish(row, results[row.label], context, release)


def matching_rows(experiment: Experiment, pattern: str) -> list[Row]:
    """The rows whose label, as stored or as displayed, matches a pattern."""
    rows = [
        row
        for row in experiment.rows
        if any(fnmatch.fnmatchcase(label, pattern) for label in (row.label, display_name(row.label)))
    ]
    if not rows:
        raise InputError(unknown_name(pattern, [row.label for row in experiment.rows], "row"))
    return rows


def publish(row: Row, result: RowResult, context: ExperimentContext, models: Path) -> None:
    """Copy the seed with the best validation score to the folder of released models."""
    if row.release is None:
        return
    best = result.chosen
    name = row.release if context.size is None else f"{row.release}-{context.size}"
    (_, source, _), target = run_of(row, best.seed, context), models / name
    if not source.exists():
        print(f"{name} is not released again: its run was not trained here", file=sys.stderr)
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("run.json", "best.json", best.checkpoint["weights"], "metrics.jsonl"):
        shutil.copy(source / name, target / name)

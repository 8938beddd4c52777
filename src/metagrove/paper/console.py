"""Print experiments and their results to the terminal."""

import re
from pathlib import Path
from typing import get_args

from rich.table import Column, Table

from metagrove import files
from metagrove.files import Json
from metagrove.paper import grouped_tables
from metagrove.paper.experiments import ANALYSES, EXPERIMENTS, BudgetName, Experiment, Search
from metagrove.paper.names import display_name
from metagrove.paper.results import ExperimentResult
from metagrove.show.console import NARROW
from metagrove.terminal import TerminalConsole

BUDGET_NAMES = "|".join(get_args(BudgetName))


def print_experiments(results: Path) -> None:
    """Print the experiments that `metagrove reproduce` can run; minutes are those of the result files."""
    heading = (Column("experiment", no_wrap=True), "description", "trainings", "minutes of training, as measured")
    table = Table(*heading, title="metagrove reproduce NAME")
    for name, experiment in EXPERIMENTS.items():
        trainings = str(sum(len(row.seeds) for row in experiment.rows))
        if trials := sum(len(search.candidates) for search in searches(experiment)):
            trainings += f" and {trials} trials"
        table.add_row(name, experiment.about, trainings, ", ".join(measured_minutes(name, results)))
    table.add_row(grouped_tables.NAME, grouped_tables.ABOUT, "80", "")
    for name, about in ANALYSES.items():
        table.add_row(name, about, "", "")
    TerminalConsole().print(table)


def measured_minutes(name: str, results: Path) -> list[str]:
    """Return the minutes that the trainings of an experiment took one after another, for each of its result files."""
    found = []
    for path in sorted(results.glob(f"{name}*.json")):
        if match := re.fullmatch(rf"{name}((-({BUDGET_NAMES}))?(-\d+)?)", path.stem):
            rows = files.from_json(ExperimentResult, files.read_json(path)).rows
            searches = {row.search.preset + str(row.search.base): row.search for row in rows if row.search}.values()
            seconds = sum(seed.training_seconds for row in rows for seed in row.seeds)
            seconds += sum(trial.seconds or 0 for search in searches for trial in search.candidates)
            found.append(f"{seconds / 60:.0f} ({match[1].strip('-') or 'paper'})")
    return found


def searches(experiment: Experiment) -> list[Search]:
    """Return the distinct searches of an experiment."""
    return list({row.search.name: row.search for row in experiment.rows if row.search}.values())


def print_results(result: ExperimentResult) -> None:
    """Print the result of an experiment, one line per row."""
    metric = result.rows[0].seeds[0].evaluation.metric if result.rows else ""
    table = Table(title=f"{result.experiment}: {metric} on test tasks, seed selected on validation tasks", **NARROW)
    table.add_column("", overflow="fold")
    for heading in ("paper", "here ± CI", "minus the first row of its source ± CI", "inner steps"):
        table.add_column(heading, justify="right")
    for row in result.rows:
        best = row.chosen
        value, paired = best.evaluation, best.paired_difference
        table.add_row(
            display_name(row.label),
            row.paper or "",
            f"{value.value:.3f}±{value.value_ci95:.3f}",
            "" if paired.to == row.label else f"{paired.difference:+.3f}±{paired.ci95:.3f}",
            str(value.steps),
        )
    if result.rows:
        TerminalConsole().print(table)


def print_grouped_tables(result: Json) -> None:
    """Print the relative error of every method on every set."""
    table = Table(title="error relative to the mean of the support rows, mean over splits", **NARROW)
    table.add_column("", overflow="fold")
    for name, one in result["sets"].items():
        table.add_column(f"{name} ({len(one['splits'])})", justify="right")
    names = dict.fromkeys(name for one in result["sets"].values() for name in one["relative"])
    for method in names:
        cells = (one["relative"].get(method) for one in result["sets"].values())
        table.add_row(method, *("" if cell is None else f"{cell:.3f}" for cell in cells))
    table.add_row("served", *(f"{one['served']:.3f}" for one in result["sets"].values()))
    TerminalConsole().print(table)
    ratio = result["served_over_best"]
    print(f"served / best method: mean {ratio['mean']:.3f}, worst {ratio['worst']:.3f}")

"""Experiments and their results on the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from metagrove.evaluate.summaries import chosen_seed
from metagrove.paper.experiments import EXPERIMENTS, Experiment, Search
from metagrove.show.console import NARROW


def print_experiments() -> None:
    """What `reproduce` can run."""
    heading = ("experiment", "what it is", "trainings", "minutes, where measured")
    table = Table(*heading, title="metagrove reproduce NAME")
    for name, experiment in EXPERIMENTS.items():
        trainings = str(sum(len(row.seeds) for row in experiment.rows))
        if trials := sum(len(search.candidates) for search in searches(experiment)):
            trainings += f" and {trials} trials"
        took = ", ".join(f"{minutes} ({budget})" for budget, minutes in experiment.minutes.items())
        table.add_row(name, experiment.about, trainings, took)
    Console().print(table)


def searches(experiment: Experiment) -> list[Search]:
    """The searches of an experiment, each once."""
    return list({row.search.name: row.search for row in experiment.rows if row.search}.values())


def print_results(result: dict[str, Any]) -> None:
    """A row of the experiment a line."""
    metric = result["rows"][0]["seeds"][0]["evaluation"]["metric"] if result["rows"] else ""
    table = Table(title=f"{result['experiment']}: {metric} on test tasks, seed chosen on validation tasks", **NARROW)
    table.add_column("", overflow="fold")
    for heading in ("paper", "ours ± CI", "minus the first of its kind ± CI", "inner steps"):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        best = chosen_seed(row)
        value, paired = best["evaluation"], best["paired_difference"]
        table.add_row(
            row["label"],
            row["paper"] or "",
            f"{value['value']:.3f}±{value['value_ci95']:.3f}",
            "" if paired["to"] == row["label"] else f"{paired['difference']:+.3f}±{paired['ci95']:.3f}",
            str(value["steps"]),
        )
    if result["rows"]:
        Console().print(table)

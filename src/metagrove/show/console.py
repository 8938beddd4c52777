"""Print tables to the terminal."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from metagrove import files
from metagrove.config.presets import PRESETS
from metagrove.config.registry import learners
from metagrove.evaluation.summaries import Comparison, Evaluation
from metagrove.learner import num_parameters
from metagrove.serve.run import load
from metagrove.training import folders

NARROW: Any = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False}
"""Table style that fits in 80 columns."""


def print_evaluation(result: Evaluation) -> None:
    """Print the scores of a run, one row per number of inner steps."""
    summary = result.summary
    tasks = f"{summary.num_tasks} tasks, seed {result.seed}"
    table = Table(title=f"{result.run} ({result.learner}): {summary.metric} on {tasks}", **NARROW)
    columns = {"all": summary, **summary.by_family}
    table.add_column("steps", justify="right")
    for name in columns:
        table.add_column(name, justify="right")
    for step in range(len(summary.by_step)):
        cells = [f"{c.by_step[step]:.3f}±{c.ci95[step]:.3f}" for c in columns.values()]
        table.add_row(str(step), *cells, style="bold" if step == summary.steps else None)
    console = Console()
    console.print(table)
    console.print(f"bold: {summary.steps} inner steps, selected on validation tasks; ± is the 95 % CI over tasks")
    if result.statistics is not None:
        for name, one in (
            ("transductive", result.statistics.transductive),
            ("support statistics", result.statistics.support_statistics),
        ):
            console.print(f"{name}: {one.value:.3f}±{one.value_ci95:.3f} after {summary.steps} inner steps")
    if agreement := summary.clustering:
        console.print(
            f"agreement of clusters and families: NMI {agreement.nmi:.2f}, purity {agreement.purity:.2f}, "
            f"mean largest share {agreement.largest_share:.2f}"
        )


def print_comparison(result: Comparison) -> None:
    """Print a comparison of runs, one row per run."""
    first = result.runs[0]
    tasks = f"{result.num_tasks} tasks, seed {result.seed}"
    table = Table(title=f"{first.summary.metric} on {tasks}, and paired difference to the first", **NARROW)
    table.add_column("run", overflow="fold")
    for heading in (f"{first.summary.metric} ± CI", "minus first", *first.summary.by_family):
        table.add_column(heading, justify="right")
    for row in result.runs:
        paired, summary = row.minus_first, row.summary
        table.add_row(
            row.run,
            f"{summary.value:.3f}±{summary.value_ci95:.3f}",
            "" if row is first else f"{paired.difference:+.3f}±{paired.ci95:.3f}",
            *(f"{family.by_step[summary.steps]:.3f}" for family in summary.by_family.values()),
        )
    Console().print(table)


def print_list() -> None:
    """Print presets, learners and released models."""
    console = Console()
    presets = Table("preset", "purpose", "learner", "meta-steps", title="metagrove train PRESET")
    for name, entry in PRESETS.items():
        config = entry.config
        presets.add_row(name, entry.about, type(config.learner).__name__, f"{config.training.steps:,}")
    methods = Table("learner", "what it does", title="--learner NAME")
    for name, cls in learners().items():
        methods.add_row(name, (cls.__doc__ or "").splitlines()[0])
    models = Table("model", "trained by", "parameters", "validation", title="released models")
    for name, path in folders.shipped().items():
        validation = files.read_json(path / "best.json")["validation"]
        command = files.read_json(path / "run.json")["provenance"]["command"]
        models.add_row(
            name,
            command,
            f"{num_parameters(load(path).meta):,}",
            f"{validation['value']:.3f} ± {validation['ci95']:.3f}",
        )
    for table in (presets, methods, models):
        console.print(table)

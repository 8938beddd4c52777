"""Print tables to the terminal."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Column, Table
from rich.text import Text

from metagrove.config.own_data import OWN_DATA
from metagrove.config.presets import PRESETS
from metagrove.config.registry import LEARNER_GROUPS, learners
from metagrove.evaluation.calibration import Calibration
from metagrove.evaluation.hierarchy import HierarchyMeasures, in_words
from metagrove.evaluation.row_scores import RowScores
from metagrove.evaluation.summaries import Comparison, Evaluation
from metagrove.learner import num_parameters
from metagrove.serve.run import load
from metagrove.terminal import TerminalConsole
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
    console = TerminalConsole(soft_wrap=True)
    console.print(table)
    console.print(f"bold: {summary.steps} inner steps, selected on validation tasks; ± is the 95 % CI over tasks")
    if result.statistics is not None:
        for name, one in (
            ("transductive", result.statistics.transductive),
            ("support statistics", result.statistics.support_statistics),
        ):
            console.print(f"{name}: {one.value:.3f}±{one.value_ci95:.3f} after {summary.steps} inner steps")
    if result.rows is not None:
        print_rows(result.rows, console)
    agreement = summary.clustering
    if agreement is not None and len(summary.by_family) > 1:
        console.print(
            f"agreement of clusters and families: NMI {agreement.nmi:.2f}, purity {agreement.purity:.2f}, "
            f"mean largest share {agreement.largest_share:.2f}"
        )
    if result.hierarchy is not None:
        print_hierarchy(console, result.hierarchy, summary.metric)


def print_hierarchy(console: TerminalConsole, found: HierarchyMeasures, metric: str) -> None:
    """Print whether the clusters matter, and which families and shapes the nodes represent."""
    table = Table(title=f"hierarchy, {found.num_tasks} tasks", **NARROW)
    for heading in ("level", "nodes", "NMI, families", "NMI, shapes"):
        table.add_column(heading, justify="right")
    merged = [] if found.merged is None else [("merged", found.merged)]
    for name, one in [*((str(i), level) for i, level in enumerate(found.levels, 1)), *merged]:
        table.add_row(name, str(one.nodes), *("" if v is None else f"{v:.2f}" for v in (one.families, one.shapes)))
    console.print(table)
    share = "" if found.node_share is None else f"; nodes cause {100 * found.node_share:.0f} % of the gate's variance"
    console.print(f"effective number of clusters {found.effective_clusters:.1f}{share}", soft_wrap=True)
    for node, families in (found.families_by_parent or {}).items():
        console.print(f"families below {node} of level 2: {', '.join(families)}")
    console.print(in_words(found, metric), soft_wrap=True)


def print_rows(scores: RowScores, console: TerminalConsole) -> None:
    """Print scores of single predictions: in the units of the targets, or by class."""
    whose = "" if scores.served is None else f" by {scores.served}, which the run serves"
    console.print(
        f"{scores.num_rows:,} predictions{whose} for {scores.num_tasks} test tasks, {scores.shots} support rows each:"
    )
    for name, target in (scores.targets or {}).items():
        console.print(f"  {name}: RMSE {target.rmse:.4g}, R² {target.r2:.3f} in its units", highlight=False)
        if (interval := target.interval) is not None:
            inside = f"{100 * interval.coverage:.1f} ± {100 * interval.coverage_ci95:.1f} %"
            console.print(
                f"  {name}: {100 * interval.asked:.0f} % intervals cover {inside}, mean width {interval.width:.4g}",
                highlight=False,
            )
    if (classes := scores.classes) is not None:
        console.print(
            f"  accuracy {classes.accuracy:.1f} %, balanced accuracy {classes.balanced_accuracy:.1f} %, "
            f"log loss {classes.log_loss:.3f}, calibration error {classes.calibration_error:.3f}",
            highlight=False,
        )
        recalls = [f"{name} {value:.1f} % ({classes.rows[name]} rows)" for name, value in classes.recall.items()]
        console.print(f"  recall: {', '.join(recalls)}", highlight=False)


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
    TerminalConsole().print(table)


def print_calibrations(results: Sequence[Calibration]) -> None:
    """Print the calibration of runs, one row per run."""
    first = results[0]
    table = Table(title=f"calibration on {first.num_tasks} tasks, seed {first.seed}", **NARROW)
    table.add_column("run", overflow="fold")
    for heading in ("learner", first.metric, "NLL ± CI", "ECE", *(f"in {level}" for level in first.coverage)):
        table.add_column(heading, justify="right")
    for one in results:
        cells = [one.learner, f"{one.value:.3f}", f"{one.nll:.3f}±{one.nll_ci95:.3f}", f"{one.ece:.3f}"]
        table.add_row(one.run, *cells, *(f"{share:.3f}" for share in one.coverage.values()))
    TerminalConsole().print(table)


def grouped_learners() -> dict[str, list[str]]:
    """Names of all learners by group; those of installed packages are a group of their own."""
    groups = {group: list(members) for group, members in LEARNER_GROUPS.items()}
    known = {name for names in groups.values() for name in names}
    others = [name for name in learners() if name not in known]
    return {**groups, **({"of installed packages": others} if others else {})}


def print_list() -> None:
    """Print presets, own data, learners and released models."""
    console = TerminalConsole()
    presets = Table(Column("preset", no_wrap=True), "purpose", "learner", "meta-steps", title="metagrove train PRESET")
    for name, entry in {**PRESETS, **OWN_DATA}.items():
        config = entry.config
        presets.add_row(name, entry.about, type(config.learner).__name__, f"{config.training.steps:,}")
    methods = Table(Column("learner", no_wrap=True), "what it does", title="--learner NAME")
    for group, names in grouped_learners().items():
        methods.add_section()
        methods.add_row(Text(group, style="bold"))
        for name in names:
            methods.add_row(name, (learners()[name].__doc__ or "").splitlines()[0])
    models = Table(Column("model", no_wrap=True), "trained by", "parameters", "validation", title="released models")
    for name, path in folders.shipped().items():
        validation = folders.read_best(path).validation
        command = folders.read_run(path / "run.json").provenance.command
        models.add_row(
            name,
            command,
            f"{num_parameters(load(path).meta):,}",
            f"{validation.value:.3g} ± {validation.ci95:.2g}",
        )
    for table in (presets, methods, models):
        console.print(table)

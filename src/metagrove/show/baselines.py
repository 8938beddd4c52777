"""Print the baselines of a run to the terminal."""

import math

from rich.table import Table

from metagrove.evaluation.baselines import BaselineRow, Baselines
from metagrove.show.console import NARROW
from metagrove.terminal import TerminalConsole


def print_baselines(result: Baselines) -> None:
    """Print the score of each baseline, its paired difference to the run, what is served and what is recommended."""
    tasks = f"{result.num_tasks} test tasks, {result.num_draws} draws of each"
    table = Table(title=f"{result.metric} on {tasks}, and paired difference to the run", **NARROW)
    table.add_column("", overflow="fold")
    families = result.rows[0].by_family if len(result.rows[0].by_family) > 1 else {}
    extra = ["log loss"] if result.metric == "accuracy" else []
    for heading in (f"{result.metric} ± CI", "minus the run", *extra, "seconds", *families):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(*cells(row, result, families=bool(families)))
    TerminalConsole().print(table)
    TerminalConsole().print(result.advice, highlight=False)
    if result.serving:
        TerminalConsole().print(result.serving[:1].upper() + result.serving[1:], highlight=False)


def cells(row: BaselineRow, result: Baselines, *, families: bool) -> list[str]:
    """The cells of a row."""
    marks = [
        word for word, name in (("served", result.served), ("recommended", result.recommended)) if name == row.name
    ]
    label = row.label + (f" ({row.variant})" if row.variant else "") + "".join(f" [{mark}]" for mark in marks)
    if row.error is not None:
        return [f"{label}: failed, {row.error}"]
    paired = row.minus_run
    return [
        label,
        f"{row.value:.4g}±{row.value_ci95:.2g}",
        f"{paired.difference:+.3g}±{paired.ci95:.2g}" if paired else "",
        *([] if row.log_loss is None else [f"{row.log_loss:.4g}"]),
        "" if math.isnan(row.seconds) else f"{row.seconds:.1f}",
        *(f"{family.value:.4g}" for family in (row.by_family.values() if families else ())),
    ]

"""Print the baselines of a run to the terminal."""

from rich.console import Console
from rich.table import Table

from metagrove.evaluation.baselines import Baselines
from metagrove.show.console import NARROW


def print_baselines(result: Baselines) -> None:
    """Print the score of each baseline, its paired difference to the run, and a recommendation."""
    tasks = f"{result.num_tasks} test tasks, {result.num_draws} draws of each"
    table = Table(title=f"{result.metric} on {tasks}, and paired difference to the run", **NARROW)
    table.add_column("", overflow="fold")
    for heading in (f"{result.metric} ± CI", "minus the run", *result.rows[0].by_family):
        table.add_column(heading, justify="right")
    for row in result.rows:
        paired = row.minus_run
        table.add_row(
            row.label + (f" ({row.variant})" if row.variant else ""),
            f"{row.value:.4g}±{row.value_ci95:.2g}",
            f"{paired.difference:+.3g}±{paired.ci95:.2g}" if paired else "",
            *(f"{family.value:.4g}" for family in row.by_family.values()),
        )
    Console().print(table)
    Console().print(result.advice, highlight=False)

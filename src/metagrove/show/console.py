"""Tables on the terminal."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from metagrove import files
from metagrove.config.config import LEARNERS
from metagrove.config.presets import PRESETS
from metagrove.learner import num_parameters
from metagrove.serve.run import load
from metagrove.train import folders

NARROW: Any = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False}
"""Tables of numbers that fit in 80 columns."""


def print_evaluation(result: dict[str, Any]) -> None:
    """A row for each number of inner steps."""
    tasks = f"{result['num_tasks']} tasks, seed {result['seed']}"
    table = Table(title=f"{result['run']} ({result['learner']}): {result['metric']} on {tasks}", **NARROW)
    columns = {"all": result, **result["by_family"]}
    table.add_column("steps", justify="right")
    for name in columns:
        table.add_column(name, justify="right")
    for step in range(len(result["by_step"])):
        cells = [f"{c['by_step'][step]:.3f}±{c['ci95'][step]:.3f}" for c in columns.values()]
        table.add_row(str(step), *cells, style="bold" if step == result["steps"] else None)
    console = Console()
    console.print(table)
    console.print(f"bold: {result['steps']} inner steps, as chosen on validation tasks; ± is the 95 % CI over tasks")
    if result["clustering"]:
        agreement = result["clustering"]
        console.print(
            f"clusters against families: NMI {agreement['nmi']:.2f}, purity {agreement['purity']:.2f}, "
            f"mean largest share {agreement['largest_share']:.2f}"
        )


def print_comparison(result: dict[str, Any]) -> None:
    """A row for each run."""
    first = result["runs"][0]
    tasks = f"{result['num_tasks']} tasks, seed {result['seed']}"
    table = Table(title=f"{first['metric']} on {tasks}, and paired difference to the first", **NARROW)
    table.add_column("run", overflow="fold")
    for heading in (f"{first['metric']} ± CI", "minus first", *first["by_family"]):
        table.add_column(heading, justify="right")
    for row in result["runs"]:
        paired = row["minus_first"]
        table.add_row(
            row["run"],
            f"{row['value']:.3f}±{row['value_ci95']:.3f}",
            "" if row is first else f"{paired['difference']:+.3f}±{paired['ci95']:.3f}",
            *(f"{family['by_step'][row['steps']]:.3f}" for family in row["by_family"].values()),
        )
    Console().print(table)


def print_list() -> None:
    """Presets, learners and released models."""
    console = Console()
    presets = Table("preset", "what it is for", "learner", "meta-steps", title="metagrove train PRESET")
    for name, entry in PRESETS.items():
        config = entry.config
        presets.add_row(name, entry.about, type(config.learner).__name__, f"{config.training.steps:,}")
    learners = Table("learner", "what it does", title="--learner NAME")
    for name, cls in LEARNERS.items():
        learners.add_row(name, (cls.__doc__ or "").splitlines()[0])
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
    for table in (presets, learners, models):
        console.print(table)

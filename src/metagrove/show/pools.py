"""Print the tables of `metagrove data list`."""

from pathlib import Path

from rich.table import Table

from metagrove.errors import MetagroveError
from metagrove.pools import pool
from metagrove.pools.official import OFFICIAL, splits
from metagrove.terminal import TerminalConsole

TERMS = "Research use; the photographers keep their rights. Pools are for your own machine: do not publish them."


def print_official() -> None:
    """Print the datasets of the paper and where to get them."""
    table = Table("name", "description", "classes", "images", "option", title="official datasets")
    for name, entry in OFFICIAL.items():
        counts = "/".join(str(len(names)) for names in splits()[name].values())
        table.add_row(name, entry.about, counts, f"{entry.images} per class", "--download" if entry.url else "--from")
    console = TerminalConsole()
    console.print(table)
    for name, entry in OFFICIAL.items():
        console.print(f"  {name:<14} {entry.page}", soft_wrap=True, highlight=False)
    console.print(f"Classes are those of train/validation/test. {TERMS}")


def print_pools(data: Path) -> None:
    """Print the pools of a folder, a damaged one with its error."""
    table = Table("pool", "size", "content", title=f"prepared in {data}")
    for name, size in pool.prepared(data):
        table.add_row(name, str(size), description(name, size, data))
    TerminalConsole().print(table if table.row_count else f"No pool is prepared in {data} yet.")


def description(name: str, size: int, data: Path) -> str:
    """Describe a pool, or why it cannot be opened."""
    try:
        return pool.describe(pool.read(name, size, data))
    except MetagroveError as error:
        return str(error)

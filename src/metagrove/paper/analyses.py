"""Studies of `metagrove reproduce` that measure trained runs instead of scoring them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from metagrove.paper.drawings import draw_figures
from metagrove.paper.theory.study import theory

FUNCTIONS: dict[str, Callable[..., Any]] = {"theory": theory, "figures": draw_figures}


def analyse(name: str, out: Path, *, budget: str) -> None:
    """Run an analysis, which writes its result to a folder.

    Args:
        name: Name of the analysis.
        out: Folder of the result file, or of the figures.
        budget: Name of the budget.
    """
    FUNCTIONS[name](out, budget=budget)
    print(f"{name}: written to {out}")

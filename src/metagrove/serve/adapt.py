"""`metagrove.adapt`: a run, by name or in hand, fitted to a new task."""

from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from metagrove.nets.predictors import Statistics
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.run import Run, load


def adapt(
    run: Run | str | Path,
    support: Any,
    y: ArrayLike | None = None,
    *,
    steps: int | None = None,
    statistics: Statistics = "support",
) -> FittedTask:
    """`Run.adapt` of a run, of the run in a folder, or of a released model by name.

    Example:
        >>> mg.adapt("toy-5shot-best", {"x": [-1.0, 0.0, 2.0], "y": [-1.0, 1.0, 5.0]}).predict({"x": [1.0]})
    """
    run = run if isinstance(run, Run) else load(run)
    return run.adapt(support, y, steps=steps, statistics=statistics)

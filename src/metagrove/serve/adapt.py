"""`metagrove.adapt`: adapt a run, given by name or as an object, to a new task."""

from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from metagrove.nets.predictors import Statistics
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.run import Run, load

__all__ = ["adapt"]


def adapt(
    run: Run | str | Path,
    support: Any,
    y: ArrayLike | None = None,
    *,
    steps: int | None = None,
    statistics: Statistics = "support",
    learner: str | None = None,
) -> FittedTask:
    """Adapt a run or a released model to a new task; the same as `Run.adapt`.

    Args:
        run: A run, its folder, or the name of a released model (`metagrove list` shows them).
        support: Inputs as an array, with `y`; or a table with inputs and targets (path, DataFrame or mapping of
            columns); for images also a folder class/*.jpg.
        y: Targets as an array.
        steps: Number of inner steps; by default the number selected on validation tasks.
        statistics: Whose statistics normalise images: the support set's, or those of the rows of one call ("query",
            transductive).
        learner: Name of the learner or baseline of the run to use; by default what won on validation tasks.

    Returns:
        The fitted task.

    Raises:
        InputError: If the rows do not fit the run; the message names row and column.
        RunError: If there is no such run, or it is damaged.

    Example:
        >>> import metagrove as mg
        >>> task = mg.adapt("toy-5shot-best", {"x": [-1.0, 0.0, 2.0], "y": [-1.0, 1.0, 5.0]})
        >>> task.predict({"x": [1.0, 3.0]})["y"].shape
        (2,)
    """
    run = run if isinstance(run, Run) else load(run)
    return run.adapt(support, y, steps=steps, statistics=statistics, learner=learner)

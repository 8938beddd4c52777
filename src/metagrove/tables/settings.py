"""Where people's own tables are and how they are read: settings of the source, and of `metagrove train own`."""

import dataclasses
from typing import Literal

from metagrove.errors import check_at_least_one

Missing = Literal["refuse", "mean", "drop"]


@dataclasses.dataclass(frozen=True)
class TableData:
    """What a person says of their tables."""

    tasks: str = ""
    """One long table (CSV or Parquet) with a task column, or a folder with a table for each task."""
    task_column: str = ""
    """The column that says which task a row of the long table belongs to; a folder has its files' names instead."""
    target: tuple[str, ...] = ()
    """What is to be predicted: one or more columns of numbers, or one of names (classes)."""
    inputs: tuple[str, ...] = ()
    """What it is predicted from; by default every other column."""
    categorical: tuple[str, ...] = ()
    """Columns of numbers that are names all the same, e.g. codes; columns of text need not be said."""
    missing: Missing = "refuse"
    """Cells without a value (empty, NA, NaN, null): refuse them, fill in the training tasks' mean (and drop rows
    without a target), or drop their rows."""
    stratify: str = ""
    """Column with a task's kind: each split gets its part of every kind, and reports tell them apart."""
    together: str = ""
    """Column whose equal values keep tasks in the same split, e.g. the country of several tasks."""
    validation: float = 0.15
    """Part of the tasks that choose the checkpoint and the number of inner steps."""
    test: float = 0.15
    """Part of the tasks that are kept for the test."""
    split_seed: int = 0
    """Decides which tasks those are."""
    shots: int = 5
    """Support rows of a task."""
    min_shots: int = 0
    """If set, training tasks have from this many support rows to `shots`, and smaller tasks can take part."""
    queries: int = 20
    """Most query rows of a task, of those that are not in its support."""

    @property
    def fewest_rows(self) -> int:
        """Rows that a task needs: a support set, and something to be judged on."""
        return (self.min_shots or self.shots) + 1

    def validation_errors(self) -> list[str]:
        """What is wrong with the settings, a line each."""
        parts = [f"{name} must be above 0 and below 0.5, got {getattr(self, name)}" for name in ("validation", "test")]
        bad = [line for line, part in zip(parts, (self.validation, self.test), strict=True) if not 0 < part < 0.5]
        return (
            check_at_least_one(self, "shots", "queries")
            + ([] if self.target else ["target must name a column: --target NAME"])
            + ([] if 0 <= self.min_shots <= self.shots else [f"min_shots must be 0 to shots, got {self.min_shots}"])
            + bad
        )

"""Settings for a user's own tables, shared by the source and by `metagrove train own`."""

import dataclasses
from typing import Literal

from metagrove.errors import check_at_least_one

__all__ = ["TableData"]

Missing = Literal["impute", "mean", "drop", "refuse"]
KeepRows = Literal["auto", "memory", "disk"]


@dataclasses.dataclass(frozen=True)
class TableData:
    """Settings of a user's tables: their files, the roles of columns, and how tasks are split and drawn."""

    tasks: str = ""
    """One long table (CSV or Parquet) with a task column, or a folder with one table per task."""
    task_column: str = ""
    """Column of the long table that names the task of each row; in a folder, the file names are used instead."""
    target: tuple[str, ...] = ()
    """Columns to predict: one or more numeric columns, or one categorical column (classification)."""
    inputs: tuple[str, ...] = ()
    """Columns to predict from; by default all other columns."""
    categorical: tuple[str, ...] = ()
    """Numeric columns to treat as categorical, e.g. codes; text columns are always categorical."""
    missing: Missing = "impute"
    """Missing inputs (empty, NA, NaN, null): impute the mean of training tasks and add an indicator column; the mean
    alone; drop the rows; or refuse, an error. Rows without a target are dropped, or refused."""
    stratify: str = ""
    """Column with the family of a task: splits are stratified by it, and reports list each family."""
    group_column: str = ""
    """Column whose equal values keep tasks in the same split, e.g. the country of several tasks."""
    validation: float = 0.15
    """Fraction of the tasks used for validation: to select the checkpoint and the number of inner steps."""
    test: float = 0.15
    """Fraction of the tasks held out for the test."""
    split_seed: int = 0
    """Random seed of the split."""
    shots: int = 5
    """Number of support rows per task."""
    min_shots: int = 0
    """If set, training tasks have between this many and `shots` support rows."""
    min_rows: int = 0
    """Smaller tasks are left out; by default tasks with fewer than 3 rows (with --min-shots, one row more than that).
    A task with no more rows than `shots` has all but one of them as its support set."""
    queries: int = 20
    """Maximum number of query rows per task."""
    keep_rows: KeepRows = "auto"
    """Where training keeps the encoded rows; the result is the same. `disk` sorts one long table by task once and reads
    tasks from files, so that it may be larger than memory; `auto` does so above 10,000,000 cells."""
    store: str = ""
    """Folder of these files; by default TASKS.store, beside the table. It may be deleted when no training uses it."""

    @property
    def fewest_rows(self) -> int:
        """Minimum number of rows of a task: a support set and one query row."""
        return self.min_rows or (self.min_shots or min(self.shots, 2)) + 1

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            A message for each setting that cannot be used.
        """
        parts = [f"{name} must be above 0 and below 0.5, got {getattr(self, name)}" for name in ("validation", "test")]
        bad = [line for line, part in zip(parts, (self.validation, self.test), strict=True) if not 0 < part < 0.5]
        return (
            check_at_least_one(self, "shots", "queries")
            + ([] if self.target else ["target must name a column: --target NAME"])
            + ([] if 0 <= self.min_shots <= self.shots else [f"min_shots must be 0 to shots, got {self.min_shots}"])
            + ([] if self.min_rows == 0 or self.min_rows >= 2 else [f"min_rows must be 2 or more, got {self.min_rows}"])
            + bad
        )

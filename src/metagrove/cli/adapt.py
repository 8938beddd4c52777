"""metagrove adapt, predict and export."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from metagrove.errors import STOPPED, InputError
from metagrove.files import Json
from metagrove.terminal import say

if TYPE_CHECKING:
    from metagrove.bulk.work import Kind

Positional = tyro.conf.Positional


@dataclasses.dataclass(frozen=True)
class Adapt:
    """Adapt a run to a new task from a few rows, and report its clusters and the most similar known tasks.

    With --tasks, adapt to every task of a table and write the clusters and the embedding of each.
    """

    run: Positional[str]
    """A run folder, or the name of a released model."""
    out: Path
    """Folder of the fitted task, for `metagrove predict` and `metagrove export`; with --tasks, a Parquet file with a
    line for each task."""
    support: Path | None = None
    """Support rows: CSV or Parquet with inputs and targets; for images a folder class/*.jpg."""
    tasks: Path | None = None
    """Instead of --support: CSV or Parquet of any size with a task column and the rows of many tasks."""
    task_column: str | None = None
    """Task column of --tasks; by default that of the training table, or "task"."""
    workers: int = 1
    """Number of processes for --tasks; several are pinned to a core each."""
    cluster: str | None = None
    """Address of a Dask scheduler whose workers process --tasks instead; they must see the same files."""
    inner_steps: int | None = None
    """Number of inner steps; by default the number selected on validation tasks."""
    learner: str | None = None
    """Learner or baseline of the run to use, e.g. hsml or mixed-model; by default what won on validation tasks."""
    json: bool = False
    """Print one JSON object instead of lines."""

    def __call__(self) -> int:
        from metagrove.serve.adapt import adapt

        if (self.support is None) == (self.tasks is None):
            raise InputError("give either --support ROWS (one task) or --tasks TABLE (many tasks)")
        if self.tasks is not None:
            return all_tasks("adapt", self.run, self.tasks, self)
        task = adapt(self.run, self.support, steps=self.inner_steps, learner=self.learner)
        task.save(self.out)
        tell(task.about, self.json)
        return 0


@dataclasses.dataclass(frozen=True)
class Predict:
    """Predict new rows of a task: `predict FITTED`, or `predict RUN --support ROWS` to adapt first.

    With --tasks, adapt a run to every task of a table and predict its rows whose target is empty.
    """

    model: Positional[str]
    """A folder that `metagrove adapt` wrote; with --support or --tasks, a run folder or the name of a released one."""
    out: Path
    """CSV file of the predictions: a line for each row with the columns given, the prediction and its interval; with
    --tasks, a Parquet file."""
    input: Path | None = None
    """Rows to predict: CSV or Parquet of any size with the inputs; for images a folder."""
    support: Path | None = None
    """Support rows to adapt to."""
    tasks: Path | None = None
    """Instead of --input and --support: CSV or Parquet of any size with a task column and the rows of many tasks. Rows
    with a target are support rows, rows without are predicted."""
    task_column: str | None = None
    """Task column of --tasks; by default that of the training table, or "task"."""
    workers: int = 1
    """Number of processes for --tasks; several are pinned to a core each."""
    cluster: str | None = None
    """Address of a Dask scheduler whose workers process --tasks instead; they must see the same files."""
    inner_steps: int | None = None
    """Number of inner steps; by default the number selected on validation tasks."""
    learner: str | None = None
    """Learner or baseline of the run to use, e.g. hsml or mixed-model; by default what won on validation tasks."""
    coverage: float = 0.9
    """Coverage of the intervals TARGET_lower to TARGET_upper: 0.5, 0.8, 0.9 or 0.95."""
    json: bool = False
    """Print one JSON object instead of lines."""

    def __call__(self) -> int:
        from metagrove.serve.predict_files import predict_file
        from metagrove.serve.saved import load_fitted

        if self.tasks is not None and self.input is None and self.support is None:
            return all_tasks("predict", self.model, self.tasks, self)
        if self.input is None or self.tasks is not None:
            raise InputError("give either --input ROWS (one task) or --tasks TABLE (many tasks)")
        if self.support is None and (self.inner_steps is not None or self.learner is not None):
            raise InputError("--inner-steps and --learner are for adapting: give --support as well")
        if self.support is None:
            task = load_fitted(self.model)
        else:
            from metagrove.serve.adapt import adapt

            task = adapt(self.model, self.support, steps=self.inner_steps, learner=self.learner)
        count = predict_file(task, self.input, self.out, self.coverage)
        tell({**task.about, "predictions": count, "out": str(self.out)}, self.json)
        return 0


@dataclasses.dataclass(frozen=True)
class DoWork:
    """Process a share of a table that `metagrove adapt` or `metagrove predict` with --tasks has begun."""

    folder: Positional[Path]
    """Folder OUT.work of the unfinished work."""
    share: int = 0
    """Number of the share, from 0."""
    num_shares: int = 1
    """Number of shares."""

    def __call__(self) -> None:
        from metagrove.bulk.run import do_share

        do_share(self.folder, self.share, self.num_shares)


@dataclasses.dataclass(frozen=True)
class Export:
    """Export a fitted task as plain layers that can be used without this package (docs/export.md)."""

    adapted: Positional[Path]
    """A folder that `metagrove adapt` wrote."""
    out: Path
    """Folder of model.json and its weights."""

    def __call__(self) -> None:
        from metagrove.serve.export import export
        from metagrove.serve.saved import load_fitted

        export(load_fitted(self.adapted), self.out)
        say(self.out / "model.json")


def all_tasks(kind: "Kind", run: str, tasks: Path, options: Adapt | Predict) -> int:
    """Adapt to all tasks of a table; the exit code."""
    from metagrove.bulk.run import run_work
    from metagrove.bulk.work import describe_work
    from metagrove.workers.pool import open_pool

    how = {"task_column": options.task_column, "inner_steps": options.inner_steps}
    work = describe_work(kind, run, tasks, **how)
    count = run_work(work, options.out, open_pool(options.workers, options.cluster))
    if count is None:
        print("interrupted, finished parts are kept: repeat the command to continue", file=sys.stderr)
        return STOPPED
    about = {"rows": count, "out": str(options.out)}
    say(json.dumps(about) if options.json else f"{count:,} rows: {options.out}")
    return 0


def tell(about: Json, as_json: bool) -> None:
    """Print a description of a task, as JSON or as lines."""
    from metagrove.serve.standing import described

    if as_json:
        print(json.dumps(about))
        return
    say(*described(about))
    if "predictions" in about:
        say(f"{about['predictions']:,} predictions: {about['out']}")

"""Work on all tasks of a table: a folder beside the result with the store, the finished parts and their checksums."""

import dataclasses
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from metagrove import files
from metagrove.bulk.parts import Columns, adapt_part, predict_part
from metagrove.bulk.store import read_part, write_store
from metagrove.errors import InputError, RunError
from metagrove.files import Json
from metagrove.serve.fitted_tasks import Fit
from metagrove.serve.run import Run, load
from metagrove.serve.support import note_unused
from metagrove.tables.read import rows_of
from metagrove.tables.schema import Schema
from metagrove.tables.sort import part_path
from metagrove.tables.tasks import checksum

Kind = Literal["adapt", "predict"]


@dataclasses.dataclass(frozen=True)
class Work:
    """Description of the work, stored in work.json. The same work in the same folder is continued."""

    kind: Kind
    run: str
    """Folder of the run, or the name of a released model."""
    run_sha256: str
    """Checksum of its weights."""
    tasks: str
    """Table with a task column, inputs and targets."""
    tasks_sha256: str
    task_column: str
    inner_steps: int


@dataclasses.dataclass(frozen=True)
class WorkFolder:
    """The folder of a work: work.json, store/, done/."""

    path: Path

    @property
    def store(self) -> Path:
        """Folder of the encoded rows."""
        return self.path / "store"

    def result(self, number: int) -> Path:
        """The result of a part."""
        return self.path / "done" / f"part-{number:05d}.parquet"

    def read(self) -> tuple[Work, int]:
        """Read the work and its number of parts."""
        stored = files.read_json(self.path / "work.json")
        return files.from_json(Work, stored["work"]), stored["num_parts"]

    def is_done(self, number: int) -> bool:
        """Return whether the result of a part exists and is undamaged; a damaged one is deleted."""
        path = self.result(number)
        if not path.exists() or not path.with_suffix(".json").exists():
            return False
        if files.read_json(path.with_suffix(".json"))["sha256"] == sha256_of(path):
            return True
        path.unlink()
        return False

    def count_done(self, parts: range) -> int:
        """The number of some parts that have a result; its content is not verified."""
        return sum(self.result(number).with_suffix(".json").exists() for number in parts)


def begin(work: Work, folder: WorkFolder) -> int:
    """Sort the rows of a table into parts, unless they are sorted; return the number of parts.

    Raises:
        InputError: If a cell cannot be used, or the folder is that of other work.
    """
    if (folder.path / "work.json").exists():
        stored, num_parts = folder.read()
        if stored != work:
            other = next(f.name for f in dataclasses.fields(Work) if getattr(stored, f.name) != getattr(work, f.name))
            raise InputError(f"{folder.path} is unfinished work with another {other}: finish that first, or remove it")
        return num_parts
    run = load(work.run)
    schema = schema_of(run)
    first = next(iter(rows_of(work.tasks, 1)))
    ignored = run.config.source.ignored_columns
    note_unused(first, schema, None if ignored is None else (*ignored, work.task_column))
    try:
        shutil.rmtree(folder.path, ignore_errors=True)
        (folder.path / "done").mkdir(parents=True)
        num_parts, num_queries = write_store(Path(work.tasks), schema, work.task_column, folder.store)
        if work.kind == "predict" and not num_queries:
            raise InputError(f"{work.tasks} has a target in every row: leave it empty in the rows to predict")
    except OSError as error:
        raise files.save_error(folder.path, error) from error
    except InputError:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    content: Json = {"format": files.FORMAT, "work": files.as_json(work), "num_parts": num_parts}
    files.write_json(folder.path / "work.json", content)
    return num_parts


def schema_of(run: Run) -> Schema:
    """The columns of a run's tables."""
    if run.schema is None:
        raise InputError(f"{run.folder.name} has no columns (it was trained on images): --tasks needs a run on tables")
    return run.schema


def describe_work(
    kind: Kind, run: str | Path, tasks: Path, *, task_column: str | None = None, inner_steps: int | None = None
) -> Work:
    """Describe the work.

    Args:
        kind: "adapt" to describe every task, "predict" to predict its rows without targets.
        run: A run folder, or the name of a released model.
        tasks: CSV or Parquet file with a task column, inputs and targets.
        task_column: The task column; by default that of the training table, or "task".
        inner_steps: Number of inner steps; by default the number selected on validation tasks.

    Returns:
        The work.
    """
    if not tasks.is_file():
        raise InputError(f"{tasks} is not a file: --tasks takes one table with a task column, CSV or Parquet")
    trained = chosen_run(kind, run)
    column = task_column or getattr(trained.config.source, "task_column", "") or "task"
    steps = trained.inner_steps if inner_steps is None else inner_steps
    return Work(kind, str(run), trained.about["sha256"], str(tasks), checksum(tasks), column, steps)


def chosen_run(kind: Kind, run: str | Path) -> Run:
    """The run that predicts, which is what the run serves; tasks are described by its own learner."""
    return load(run).using() if kind == "predict" else load(run)


def do_parts(folder: WorkFolder, parts: range) -> None:
    """Process the unfinished ones among some parts."""
    work, _ = folder.read()
    run = chosen_run(work.kind, work.run)
    fit = Fit(run.folder, run.config, run.meta, work.inner_steps, "support")
    for number in parts:
        if not folder.is_done(number):
            rows = read_part(part_path(folder.store, number))
            if work.kind == "predict":
                columns = predict_part(fit, rows, schema_of(run), work.tasks)
            else:
                columns = adapt_part(fit, rows, work.tasks)
            write_result(folder.result(number), columns)


def write_result(path: Path, columns: Columns) -> None:
    """Write the result of a part atomically, and then its checksum."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: as_arrow(values) for name, values in columns.items()})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    files.write_atomically(path, buffer.getvalue().to_pybytes())
    about: Json = {"format": files.FORMAT, "sha256": sha256_of(path), "rows": table.num_rows}
    files.write_json(path.with_suffix(".json"), about)


def as_arrow(values: np.ndarray) -> Any:
    """A column in Arrow; a matrix becomes a column of lists."""
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values, pa.string() if values.dtype == object else None)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def sha256_of(path: Path) -> str:
    """The SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def join_results(folder: WorkFolder, num_parts: int, out: Path) -> int:
    """Join the results of all parts in one Parquet file, verify them and remove the folder; the number of rows."""
    import pyarrow.parquet as pq

    count, writer = 0, None
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
        try:
            for number in range(num_parts):
                if not folder.is_done(number):
                    raise RunError(f"{folder.result(number)} is missing or damaged: repeat the command")
                table = pq.read_table(folder.result(number))
                if table.num_rows == 0 and number + 1 < num_parts:  # tasks without rows to predict
                    continue
                writer = writer or pq.ParquetWriter(Path(place) / out.name, table.schema)
                writer.write_table(table)
                count += table.num_rows
        finally:
            if writer is not None:
                writer.close()
        os.replace(Path(place) / out.name, out)
    shutil.rmtree(folder.path)
    return count

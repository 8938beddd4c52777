"""Train on a user's own tables: read them, choose a config by their size, train, and measure baselines."""

import csv
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from metagrove import files
from metagrove.config.config import Config
from metagrove.config.encoding import learner_from_json, to_json
from metagrove.config.migrate import migrate
from metagrove.config.own_data import cluster_candidates, table_config
from metagrove.config.presets import default_learner
from metagrove.config.registry import class_named
from metagrove.config.settings import setting_names
from metagrove.errors import DivergedError, InputError
from metagrove.evaluation import baselines
from metagrove.losses import cross_entropy
from metagrove.notes import note as note_line
from metagrove.own.clusters import choose_clusters
from metagrove.serve.calibrate import calibrate, calibrate_predictions
from metagrove.serve.run import Run, load
from metagrove.sources.tables import MOST_LISTED, Tables, open_tables
from metagrove.tables.csv_text import csv_text
from metagrove.tables.read import from_frame
from metagrove.tables.settings import TableData
from metagrove.tables.splits import SPLITS
from metagrove.task import Split
from metagrove.training import folders
from metagrove.training.loop import train as train_into

__all__ = ["train_own"]

Note = Callable[[str], None]
NUM_DRAWS = 5
"""Draws of each test task, with different support rows, when baselines are measured."""
SHOWN_INPUTS = 20
"""Inputs whose names are told."""
CALMER = 5.0
"""Learning rates are divided by this after a training that diverged."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One training on a user's own data."""

    config: Config
    folder: Path
    resume: bool = False
    choose_clusters: bool = False
    baselines: bool = True
    also: tuple[str, ...] = ()
    """Names of other learners to train on the same tasks, and to compare with."""
    serve: bool = True
    """Serve the winner on validation tasks; otherwise the run's own learner."""
    command: str = ""
    workers: int = 1
    """Number of trainings at a time, of clusters to select from and of baselines."""


def divide_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide settings into those of the tables and those of the run."""
    names = {field.name for field in dataclasses.fields(TableData)} - {"tasks", "target"}
    of_tables = {key: as_tuple(key, value) for key, value in settings.items() if key in names}
    return of_tables, {key: value for key, value in settings.items() if key not in names}


def train_own(
    tasks: Any,
    *,
    target: str | tuple[str, ...],
    out: str | Path | None = None,
    resume: bool = False,
    learner: str | None = None,
    clusters: tuple[int, ...] | Literal["auto"] | None = None,
    baselines: bool = True,
    also_train: tuple[str, ...] = (),
    workers: int = 1,
    **settings: Any,
) -> Run:
    """Train on your own tables; the same as `metagrove train own`.

    Args:
        tasks: One long table (path of a CSV or Parquet file, or a DataFrame) with a task column, or a folder with one
            table per task.
        target: Name of the column to predict; several for several numeric targets.
        out: Run folder; by default runs/own-LEARNER-sSEED.
        resume: Continue from the last checkpoint of the folder.
        learner: Name of the learner (see `metagrove list`), which the run then serves; by default HSML is trained, and
            whatever wins on validation tasks is served.
        clusters: Numbers of clusters per level, e.g. (4, 2, 1), or "auto" to select them on validation tasks.
        baselines: Fit baselines on the same tasks, in seconds, and compare.
        also_train: Names of other learners to train on the same tasks and compare, e.g. ("maml",).
        workers: Number of trainings at a time, where there are several (clusters="auto"), each on its own core.
        **settings: Any other setting of `metagrove train own`, e.g. `task_column`, `inputs`, `shots`, `steps`.

    Returns:
        The trained run.

    Raises:
        InputError: If a setting or a table cannot be used; the message names file, row and column.
        RunError: If the run folder cannot be written or is damaged.
        DivergedError: If training diverges.
        KeyboardInterrupt: If training is interrupted; `resume=True` continues it.

    Example:
        >>> import metagrove as mg
        >>> run = mg.train_own("sensors.csv", task_column="sensor", target="y")  # doctest: +SKIP
    """
    data_settings, others = divide_settings(settings)
    folder = Path(out) if out is not None else default_own_folder(learner, settings.get("seed", 0))
    path = tasks if isinstance(tasks, str | Path) else save_table(tasks, folder, resume=resume)
    data = TableData(tasks=str(path), target=as_tuple("target", target), **data_settings)
    config = own_config(data, learner, print_note).with_settings(**others)
    if clusters is not None and clusters != "auto":
        config = config.with_settings(clusters=clusters)
    how = {"resume": resume, "choose_clusters": clusters == "auto", "baselines": baselines, "workers": workers}
    job = Job(config, folder, also=tuple(also_train), serve=learner is None, command="metagrove.train_own(...)", **how)
    if (run := run_job(job, print_note)) is None:
        raise KeyboardInterrupt
    return run


def default_own_folder(learner: str | None, seed: int) -> Path:
    """Return the default folder of a run."""
    name = "HSML" if learner is None else class_named("learner", learner).__name__
    return Path("runs") / f"own-{name.lower()}-s{seed}"


def as_tuple(name: str, value: Any) -> Any:
    """Wrap a single column name in a tuple, for settings that take several."""
    return (value,) if name in ("target", "inputs", "categorical") and isinstance(value, str) else value


def save_table(frame: Any, folder: Path, *, resume: bool) -> Path:
    """Save a DataFrame as a CSV file in the run folder, where evaluation and report read it again."""
    table, path = from_frame(frame), folder / "tasks.csv"
    if resume:
        return path
    if (folder / "run.json").exists():
        raise InputError(f"{folder} already holds a run: continue it (resume=True), or choose another folder (out=...)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with files.open_atomically(path) as file:
            writer = csv.writer(file)
            writer.writerow(map(csv_text, table.columns))
            writer.writerows(zip(*(map(csv_text, cells.tolist()) for cells in table.columns.values()), strict=True))
    except OSError as error:
        raise files.save_error(path, error) from error
    return path


def own_config(data: TableData, learner: str | None, note: Note) -> Config:
    """Read the tables, report what they contain, and choose a config by their size."""
    source, notes = open_tables(data)
    for line in notes:
        note(line)
    counts: dict[Split, int] = {split: source.num_tasks(split) for split in SPLITS}
    note(
        f"{data.tasks}: {counts['train']} tasks for training, {counts['validation']} for validation, "
        f"{counts['test']} for the test; {describe_columns(source)}"
    )
    many: list[Split] = [split for split in SPLITS if counts[split] > MOST_LISTED[split]]
    if many:
        used = ", ".join(f"{MOST_LISTED[split]:,} of {counts[split]:,} for {split}" for split in many)
        note(f"the index, calibration, baselines, scores and reports take evenly spaced tasks: {used}")
    config = table_config(source, counts["train"])
    config = config if learner is None else dataclasses.replace(config, learner=default_learner(learner, config))
    if config.learner.loss is cross_entropy and not source.schema.classifies:
        names = ", ".join(data.target)
        raise InputError(f"{learner} is a classifier, but {names} is numeric: choose another --learner")
    return config


def describe_columns(source: Tables) -> str:
    """Describe the inputs and targets of a source."""
    inputs = ", ".join(
        c.name + {"category": f" ({len(c.categories)} categories)", "date": " (a date)"}.get(c.kind, "")
        for c in source.schema.inputs[:SHOWN_INPUTS]
    )
    more = len(source.schema.inputs) - SHOWN_INPUTS
    inputs += f" and {more:,} others" if more > 0 else ""
    targets = ", ".join(column.name for column in source.schema.targets)
    kind = f"one of {len(source.schema.labels)} classes" if source.schema.classifies else "by regression"
    return f"{targets} from {inputs}, {kind}"


def run_job(job: Job, note: Note) -> Run | None:
    """Train a run, index its tasks and measure its baselines; return None if training was interrupted.

    The same job with `resume` continues it.
    """
    config = find_clusters(job, note) if job.choose_clusters else job.config
    if config is None or not train_or_calm_down(config, job, note):
        return None
    note("indexing the known tasks and calibrating intervals on validation tasks")
    run = calibrate(load(job.folder))
    if job.baselines or job.also:
        result = measure_baselines(run, job.also, serve=job.serve, note=note)
        return None if result is None else run
    return run


def train_or_calm_down(config: Config, job: Job, note: Note) -> bool:
    """Train, and once more with lower learning rates if training diverges. False if interrupted."""
    calm = with_lower_rates(config)
    if job.resume and is_config_of(job.folder, calm):
        return train_into(calm, job.folder, resume=True, command=job.command)
    try:
        return train_into(config, job.folder, resume=job.resume, command=job.command)
    except DivergedError as error:
        note(f"{error}")
        note(f"training once more with learning rates divided by {CALMER:g}: {rates(calm)}")
        remove_run(job.folder)
        return train_into(calm, job.folder, command=job.command)


def with_lower_rates(config: Config) -> Config:
    """The config with lower inner and outer learning rates."""
    names = [name for name in ("inner_lr", "outer_lr") if name in setting_names(config)]
    values = {"outer_lr": config.training.outer_lr, "inner_lr": getattr(config.learner, "inner_lr", 0.0)}
    return config.with_settings(**{name: values[name] / CALMER for name in names})


def rates(config: Config) -> str:
    """The learning rates of a config as options."""
    inner = getattr(config.learner, "inner_lr", None)
    return f"--outer-lr {config.training.outer_lr:.3g}" + (f" --inner-lr {inner:.3g}" if inner is not None else "")


def is_config_of(folder: Path, config: Config) -> bool:
    """Whether a run folder was created with this config."""
    if not (path := folder / "run.json").exists():
        return False
    stored = folders.read_run(path)
    return not folders.differences(migrate(stored.config, stored.format), json.loads(json.dumps(to_json(config))))


def remove_run(folder: Path) -> None:
    """Remove what a diverged training left behind; a table that was saved there stays."""
    for pattern in ("run.json", "metrics.jsonl", "best*", "last*"):
        for path in folder.glob(pattern):
            path.unlink()


def measure_baselines(run: Run, also: tuple[str, ...], *, serve: bool, note: Note) -> baselines.Baselines | None:
    """Measure the baselines of a run, and other learners of the same net and budget; None if it was interrupted."""
    configs = {
        name: dataclasses.replace(run.config, learner=default_learner(name, run.config))
        for name in also
        if name != run.learner_name
    }
    result = baselines.measure(run, configs, num_draws=NUM_DRAWS, seed=0, note=note, serve=serve)
    if result is not None and result.served != run.learner_name:
        note("calibrating what is served on validation tasks")
        calibrate_predictions(run.using(result.served))
    return result


def find_clusters(job: Job, note: Note) -> Config | None:
    """Use the clusters of the run to resume, or select them for a new run."""
    if job.resume and (job.folder / "run.json").exists():
        stored = folders.read_run(job.folder / "run.json")
        learner = learner_from_json(stored.config.get("learner", {}), file_format=stored.format)
        return job.config.with_settings(clusters=learner.clusters)
    num_tasks = job.config.source.num_tasks("train")
    return choose_clusters(job.config, cluster_candidates(num_tasks), note, job.workers)


print_note = note_line
"""Print a line to standard error, unless notes are suppressed."""

"""Train on people's own tables or images: read, size a config, train, and set yardsticks beside it."""

import csv
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from metagrove import files
from metagrove.config.config import LEARNERS, Config
from metagrove.config.own_data import cluster_candidates, table_config
from metagrove.config.presets import default_learner
from metagrove.errors import InputError
from metagrove.evaluate import baselines
from metagrove.losses import cross_entropy
from metagrove.own.clusters import choose_clusters
from metagrove.serve.known_tasks import write_atlas
from metagrove.serve.run import Run, load
from metagrove.sources.tables import Tables, open_tables
from metagrove.tables.read import from_frame
from metagrove.tables.settings import TableData
from metagrove.train.loop import train as train_into

Note = Callable[[str], None]
NUM_DRAWS = 5
"""How often each test task is drawn, with other rows as support, when yardsticks are set beside a run."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One training on own data."""

    config: Config
    folder: Path
    resume: bool = False
    choose_clusters: bool = False
    baselines: bool = False
    command: str = ""


def train_own(
    tasks: Any,
    *,
    target: str | tuple[str, ...],
    out: str | Path | None = None,
    resume: bool = False,
    learner: str | None = None,
    clusters: tuple[int, ...] | Literal["auto"] | None = None,
    baselines: bool = False,
    **settings: Any,
) -> Run:
    """Train on a table, a folder of tables or a DataFrame, e.g. `train_own("sensors.csv", task_column="sensor",
    target="y")`; settings as on the command line.
    """
    data_names = {field.name for field in dataclasses.fields(TableData)} - {"tasks", "target"}
    told = {key: as_tuple(key, value) for key, value in settings.items() if key in data_names}
    others = {key: value for key, value in settings.items() if key not in data_names}
    folder = Path(out) if out is not None else usual_folder(learner, settings.get("seed", 0))
    path = tasks if isinstance(tasks, str | Path) else kept_table(tasks, folder, resume=resume)
    data = TableData(tasks=str(path), target=as_tuple("target", target), **told)
    config = own_config(data, learner, print_note).with_settings(**others)
    if clusters is not None and clusters != "auto":
        config = config.with_settings(clusters=clusters)
    job = Job(
        config,
        folder,
        resume=resume,
        choose_clusters=clusters == "auto",
        baselines=baselines,
        command="metagrove.train_own(...)",
    )
    run = run_job(job, print_note)
    if run is None:
        raise KeyboardInterrupt
    return run


def usual_folder(learner: str | None, seed: int) -> Path:
    """Where a run goes when nobody says."""
    name = LEARNERS[learner].__name__ if learner in LEARNERS else "HSML"
    return Path("runs") / f"own-{name.lower()}-s{seed}"


def as_tuple(name: str, value: Any) -> Any:
    """One name will do where several may be given."""
    return (value,) if name in ("target", "inputs", "categorical") and isinstance(value, str) else value


def kept_table(frame: Any, folder: Path, *, resume: bool) -> Path:
    """A DataFrame as a CSV file in the run's folder, where evaluation and report find its tasks again."""
    table, path = from_frame(frame), folder / "tasks.csv"
    if resume:
        return path
    if (folder / "run.json").exists():
        raise InputError(
            f"{folder} already holds a run: go on with it (resume=True), or choose another folder (out=...)"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table.columns)
            writer.writerows(zip(*(cells.tolist() for cells in table.columns.values()), strict=True))
    except OSError as error:
        raise files.save_error(path, error) from error
    return path


def own_config(data: TableData, learner: str | None, note: Note) -> Config:
    """Read the tables and size a config to them; a line about what was found."""
    source, notes = open_tables(data)
    for line in notes:
        note(line)
    counts = {split: len(source.task_names(split)) for split in ("train", "validation", "test")}
    note(
        f"{data.tasks}: {counts['train']} tasks for training, {counts['validation']} for validation, "
        f"{counts['test']} for the test; {described(source)}"
    )
    config = table_config(source, counts["train"])
    config = config if learner is None else dataclasses.replace(config, learner=default_learner(learner, config))
    if config.learner.loss is cross_entropy and not source.schema.classifies:
        names = ", ".join(data.target)
        raise InputError(f"{learner} tells classes apart, but {names} holds numbers: choose another --learner")
    return config


def described(source: Tables) -> str:
    """Inputs and targets in words."""
    inputs = ", ".join(
        f"{c.name}" + (f" ({c.width} names)" if c.kind == "category" else "") for c in source.schema.inputs
    )
    targets = ", ".join(column.name for column in source.schema.targets)
    kind = f"one of {len(source.schema.labels)} classes" if source.schema.classifies else "by regression"
    return f"{targets} from {inputs}, {kind}"


def run_job(job: Job, note: Note) -> Run | None:
    """Train, and what comes after; None if a person stopped it: the same job with `resume` goes on."""
    config = settled_clusters(job, note) if job.choose_clusters else job.config
    if config is None or not train_into(config, job.folder, resume=job.resume, command=job.command):
        return None
    run = load(job.folder)
    write_atlas(run)
    if job.baselines:
        result = baselines.measure(run, rivals(config), num_draws=NUM_DRAWS, seed=0, note=note)
        return None if result is None else run
    return run


def settled_clusters(job: Job, note: Note) -> Config | None:
    """The clusters that a run was begun with, or a choice of new ones."""
    if job.resume and (job.folder / "run.json").exists():
        stored = files.read_json(job.folder / "run.json")["config"]["learner"]
        return job.config.with_settings(clusters=tuple(stored["clusters"]))
    source = job.config.source
    assert isinstance(source, Tables)
    return choose_clusters(job.config, cluster_candidates(len(source.task_names("train"))), note)


def rivals(config: Config) -> dict[str, Config]:
    """MAML with the same net and budget, unless the run is one."""
    maml = dataclasses.replace(config, learner=default_learner("maml", config))
    return {} if type(maml.learner) is type(config.learner) else {"maml": maml}


def print_note(line: str) -> None:
    """A line on standard error."""
    print(line, file=sys.stderr)

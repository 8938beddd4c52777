"""`metagrove train own` and `metagrove train own-images`: parse the data options first, then settings sized to them."""

import dataclasses
import difflib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from metagrove.cli.options import FLAT, choose_parts
from metagrove.config.config import Config
from metagrove.config.own_data import image_config, table_config
from metagrove.config.presets import default_learner
from metagrove.config.registry import learners
from metagrove.config.settings import setting_names
from metagrove.errors import STOPPED, InputError
from metagrove.evaluation.baselines import read_baselines
from metagrove.evaluation.row_scores import score_rows
from metagrove.notes import note
from metagrove.own.training import Job, own_config, print_note, run_job
from metagrove.pools import pool
from metagrove.serve.calibrate import calibrate
from metagrove.serve.run import Run, load
from metagrove.serve.train import default_folder
from metagrove.show.baselines import print_baselines
from metagrove.show.console import print_rows
from metagrove.sources.images import Images
from metagrove.sources.tables import Tables
from metagrove.tables.schema import Column, Schema
from metagrove.tables.settings import TableData
from metagrove.terminal import TerminalConsole
from metagrove.training.loop import train as train_into

ABOUT = {
    "own": "your own tables: a folder with one file per task, or one long table with a task column",
    "own-images": "a pool of your own images, prepared by `metagrove data prepare`",
}
AUTO = ["--clusters", "auto"]
WAYS, QUERIES = 5, 15
"""Default number of classes per task and queries per class, if the pool is large enough."""


@dataclasses.dataclass(frozen=True)
class OwnTables:
    """Settings of one training on your own tables."""

    config: Config
    out: Path | None = None
    """Run folder; by default runs/own-LEARNER-sSEED."""
    resume: bool = False
    """Continue from the last checkpoint of the folder."""
    baselines: bool = True
    """Fit baselines on the same tasks (mixed models, Gaussian processes, boosted trees, ...), recommend which method to
    use, and serve what wins on validation tasks; --no-baselines skips them."""
    also_train: tuple[str, ...] = ()
    """Other learners to train on the same tasks and compare, e.g. maml grove."""
    workers: int = 1
    """Number of trainings at a time (--clusters auto); several are pinned to a core each."""


@dataclasses.dataclass(frozen=True)
class OwnImages:
    """Settings of one training on your own images."""

    config: Config
    out: Path | None = None
    """Run folder; by default runs/own-images-LEARNER-sSEED."""
    resume: bool = False
    """Continue from the last checkpoint of the folder."""


@dataclasses.dataclass(frozen=True)
class ImageData:
    """The pools, and the tasks to draw from them."""

    pool: tuple[str, ...] = ()
    """One or more pools; `metagrove data list` shows them."""
    size: int = 0
    """Height and width of the images; by default the largest size at which all pools are prepared."""
    ways: int = 0
    """Number of classes per task; by default 5, or fewer if a pool has fewer."""
    shots: int = 1
    """Number of support images per class."""
    queries: int = 0
    """Number of query images per class; by default 15, or fewer if a class has fewer."""
    data: str = "data"
    """Folder of the prepared pools."""


SHORT_HELP = """\
metagrove train own --tasks FILE_OR_FOLDER --task-column NAME --target NAME [options]

Train on your own tables: one long table with a task column, or a folder with one file per task.

  --tasks PATH             one long table (CSV or Parquet), or a folder with one table per task
  --task-column NAME       the column of the long table that names the task of each row
  --target NAME ...        columns to predict: numeric ones, or one categorical column
  --inputs NAME ...        columns to predict from; by default all others (numbers, categories, dates)
  --group-column NAME      keep tasks with the same value in one split, e.g. the country of several tasks
  --shots N                number of support rows per task, as in the new tasks to come (5)
  --missing HOW            missing inputs: impute (with an indicator; the default), mean, drop, refuse
  --keep-rows WHERE        auto (the default), memory, or disk: for a long table larger than memory
  --learner NAME           another learner than HSML, which is then served; see `metagrove list`
  --clusters N ... | auto  clusters of each level, e.g. 4 2 1; auto selects them on validation tasks
  --steps N, --patience N  meta-steps; stop after N validations without improvement
  --no-baselines           do not fit baselines (mixed models, Gaussian processes, boosted trees) in seconds;
                           otherwise the winner on validation tasks is what `adapt` and `predict` serve
  --also-train NAME ...    other learners to train and compare, e.g. maml
  --out FOLDER, --resume   the run folder; continue an interrupted training

Afterwards:  metagrove adapt RUN --support ROWS --out TASK;  metagrove predict TASK --input ROWS --out CSV
`metagrove train own --help-all` lists every setting."""


def main(name: str, args: Sequence[str], learner: str | None) -> int:
    """metagrove train own | own-images."""
    if name == "own" and asks_help(args):
        print(SHORT_HELP)
        return 0
    args = ["--help" if arg == "--help-all" else arg for arg in args]
    command = shlex.join(["metagrove", "train", name, *args, *(["--learner", learner] if learner else [])])
    train = train_tables if name == "own" else train_images
    about = f"{ABOUT[name]}. --learner NAME selects another method: {', '.join(learners())}."

    def parse(kind: type, left: Sequence[str], default: Any = None) -> Any:
        how = {"args": list(left), "prog": f"metagrove train {name}", "description": about, "config": FLAT}
        return (
            tyro.cli(kind, **how, return_unknown_args=True)
            if default is None
            else tyro.cli(kind, default=default, **how)
        )

    return train(list(args), learner, command, parse)


def train_tables(args: list[str], learner: str | None, command: str, parse: Callable[..., Any]) -> int:
    """metagrove train own."""
    auto, args = take_auto(args)
    if asks_help(args):
        example = Tables(schema=Schema((Column("x", "number"),), (Column("y", "number"),)))
        parse(OwnTables, ["--help"], OwnTables(with_learner(table_config(example, 100), learner)))
    data, left = parse(TableData, args)
    refuse_misspelt(left)
    if not data.tasks:
        raise InputError(
            "the path of the tasks is missing: --tasks FILE_OR_FOLDER; `metagrove train own --help` lists all options"
        )
    config, left = choose_parts(own_config(data, learner, print_note), left)
    settings = parse(OwnTables, left, OwnTables(config))
    folder = settings.out or default_folder("own", settings.config)
    run = run_job(
        Job(
            settings.config,
            folder,
            resume=settings.resume,
            choose_clusters=auto,
            baselines=settings.baselines,
            also=settings.also_train,
            serve=learner is None,
            command=without(command, "--resume", "--out", "--workers"),
            workers=settings.workers,
        ),
        print_note,
    )
    return finish(run, folder, command)


def refuse_misspelt(args: Sequence[str]) -> None:
    """Raise an InputError for an unknown option that resembles one of the data options, e.g. --taks."""
    example = Tables(schema=Schema((Column("x", "number"),), (Column("y", "number"),)))
    names = [field.name for kind in (TableData, OwnTables) for field in dataclasses.fields(kind)]
    known = {f"--{name.replace('_', '-')}" for name in [*names, *setting_names(table_config(example, 100))]}
    data = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(TableData)]
    for option in (arg.partition("=")[0] for arg in args if arg.startswith("--")):
        near = difflib.get_close_matches(option, data, n=1, cutoff=0.75)
        if near and option.replace("--no-", "--") not in known:
            raise InputError(f"unknown option {option}: did you mean {near[0]}?")


def train_images(args: list[str], learner: str | None, command: str, parse: Callable[..., Any]) -> int:
    """metagrove train own-images."""
    if asks_help(args):
        parse(OwnImages, ["--help"], OwnImages(with_learner(image_config(Images()), learner)))
    data, left = parse(ImageData, args)
    config, left = choose_parts(with_learner(image_config(image_source(data)), learner), left)
    settings = parse(OwnImages, left, OwnImages(config))
    folder = settings.out or default_folder("own-images", settings.config)
    kept = without(command, "--resume", "--out")
    done = train_into(settings.config, folder, resume=settings.resume, command=kept)
    return finish(calibrate(load(folder)) if done else None, folder, command)


def finish(run: Run | None, folder: Path, command: str) -> int:
    """Print the result of a training, and return the exit code."""
    if run is None:
        again = f"{without(command, '--resume')} --resume"
        note(f"interrupted, progress is saved; resume with: {again}")
        return STOPPED
    if measured := read_baselines(folder):
        print_baselines(measured)
    if (rows := score_rows(run)) is not None:
        print_rows(rows, TerminalConsole(soft_wrap=True))
    note(f"trained: {folder}; next: metagrove adapt {folder} --support ROWS --out TASK, or metagrove report {folder}")
    return 0


def take_auto(args: list[str]) -> tuple[bool, list[str]]:
    """Return whether `--clusters auto` is among the arguments, and the other arguments."""
    args = [part for arg in args for part in (AUTO if arg == "=".join(AUTO) else [arg])]
    for at in range(len(args) - 1):
        if args[at : at + 2] == AUTO:
            return True, args[:at] + args[at + 2 :]
    return False, args


def asks_help(args: Sequence[str]) -> bool:
    """Return whether the arguments ask for help."""
    return any(arg in ("-h", "--help") for arg in args)


def with_learner(config: Config, learner: str | None) -> Config:
    """Return the config with another learner, if one is named."""
    return config if learner is None else dataclasses.replace(config, learner=default_learner(learner, config))


def without(command: str, *options: str) -> str:
    """Remove options (and the value of --out or --workers) from a command line, to keep what determines the result."""
    words, kept = iter(shlex.split(command)), []
    for word in words:
        if word.partition("=")[0] not in options:
            kept.append(word)
        elif word in ("--out", "--workers"):
            next(words, None)
    return shlex.join(kept)


def image_source(data: ImageData) -> Images:
    """Make a source with no more ways and queries than the pools have classes and images."""
    if not data.pool:
        raise InputError(
            "the pool is missing: --pool NAME; `metagrove data list` shows pools, `metagrove data prepare` makes one"
        )
    size = data.size or common_size(data.pool, Path(data.data))
    pools = [pool.read(name, size, Path(data.data)) for name in data.pool]
    fewest = min(sum(c.split == split for c in one.classes) for one in pools for split in pool.SPLITS)
    smallest = min(c.count for one in pools for c in one.classes)
    if fewest < 2 or smallest <= data.shots:
        needs = f"a split has {fewest} classes and a class {smallest} images"
        raise InputError(f"{' and '.join(data.pool)}: {needs}, tasks need 2 classes and {data.shots + 1} images")
    queries = data.queries or min(QUERIES, smallest - data.shots)
    return Images(
        datasets=data.pool,
        size=size,
        ways=data.ways or min(WAYS, fewest),
        shots=data.shots,
        queries=queries,
        test_queries=queries,
        data=data.data,
    )


def common_size(names: Sequence[str], data: Path) -> int:
    """Return the largest size that all pools have."""
    sizes = [{size for found, size in pool.prepared(data) if found == name} for name in names]
    common = set.intersection(*sizes)
    if not common:
        lacking = [name for name, of_pool in zip(names, sizes, strict=True) if not of_pool]
        what = f"no pool {lacking[0]!r}" if lacking else f"no size that all of {', '.join(names)} have"
        raise InputError(f"{what} in {data}: `metagrove data list` shows the pools, `metagrove data prepare` makes one")
    return max(common)

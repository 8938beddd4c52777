"""The command line, a thin layer over the package."""

import dataclasses
import difflib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from metagrove.cli.adapt import Adapt, Export, Predict
from metagrove.cli.options import choose_parts, modernize, take_option
from metagrove.compilation_cache import enable_compilation_cache
from metagrove.config.config import Config
from metagrove.config.presets import PRESETS, preset
from metagrove.config.registry import CHOICES, classes, learners
from metagrove.config.settings import setting_names
from metagrove.errors import STOPPED, MetagroveError
from metagrove.files import as_json
from metagrove.paper.experiments import BudgetName

Positional = tyro.conf.Positional


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Score a run or a released model on test tasks, after each number of inner steps."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    num_tasks: int = 40_000
    """Number of test tasks; the paper uses 4,000."""
    seed: int = 0
    """Random seed of the test tasks."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __call__(self) -> None:
        from metagrove.evaluation.summaries import evaluate
        from metagrove.serve.run import load
        from metagrove.show.console import print_evaluation

        result = evaluate(load(self.run), num_tasks=self.num_tasks, seed=self.seed)
        print(json.dumps(as_json(result))) if self.json else print_evaluation(result)


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare runs with the first one on the same test tasks, by paired differences."""

    runs: Positional[tuple[str, ...]]
    """Two or more run folders or names of released models."""
    num_tasks: int = 40_000
    """Number of test tasks."""
    seed: int = 0
    """Random seed of the test tasks."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __call__(self) -> None:
        from metagrove.evaluation.summaries import compare
        from metagrove.serve.run import load
        from metagrove.show.console import print_comparison

        result = compare([load(run) for run in self.runs], num_tasks=self.num_tasks, seed=self.seed)
        print(json.dumps(as_json(result))) if self.json else print_comparison(result)


@dataclasses.dataclass(frozen=True)
class List:
    """List presets, learners and released models."""

    def __call__(self) -> None:
        from metagrove.show.console import print_list

        print_list()


@dataclasses.dataclass(frozen=True)
class Show:
    """Draw the figures of a run: training curve, cluster assignments with fitted curves or images, t-SNE."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    compare_with: tuple[str, ...] = ()
    """Other runs to draw too, e.g. the fits of a MAML run, or the t-SNE of a MUMOMAML run."""
    out: Path | None = None
    """Folder of the figures; by default figures/RUN."""
    seed: int = 0
    """Random seed of the tasks that are drawn."""

    def __call__(self) -> None:
        from metagrove.serve.run import load
        from metagrove.show.figures import draw_all

        for path in draw_all(load(self.run), [load(run) for run in self.compare_with], self.out, seed=self.seed):
            print(path)


@dataclasses.dataclass(frozen=True)
class Report:
    """Write one HTML file that explains a run: result, training, clusters, tasks, provenance."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    compare_with: tuple[str, ...] = ()
    """Other runs on the same source, to compare with by paired differences."""
    out: Path = Path("report.html")
    """Path of the page, which is self-contained."""
    num_tasks: int | None = None
    """Number of test tasks; by default 1,000, or those that the baselines of the run were measured on."""
    seed: int | None = None
    """Random seed of the test tasks; by default 0, or that of the baselines."""

    def __call__(self) -> None:
        from metagrove.serve.run import load
        from metagrove.show.report import write_report

        others = [load(run) for run in self.compare_with]
        print(write_report(load(self.run), others, self.out, num_tasks=self.num_tasks, seed=self.seed))


@dataclasses.dataclass(frozen=True)
class Demo:
    """Train HSML and MAML for about a minute, compare them with a released model, draw the figures."""

    out: Path = Path("runs/demo")
    """Folder of the figures."""

    def __call__(self) -> int:
        from metagrove.demo import demo

        return 0 if demo(self.out) else STOPPED


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Run a whole experiment, resuming it if it was interrupted, and write its result file."""

    name: Positional[str | None] = None
    """Name of the experiment."""
    list: bool = False
    """List the experiments and their measured run times."""
    budget: BudgetName = "paper"
    """paper: the paper's number of meta-steps; small: fewer, without a search; quick: a smoke test."""
    size: int | None = None
    """Height and width of images, if not the paper's 84."""
    only: str = "*"
    """Search and train only the rows whose label matches, e.g. "*, 10-shot", and write no result."""
    train: bool = True
    """Search and train what is missing; --no-train writes the result of the rows that are trained so far."""
    out: Path = Path("results")
    """Folder of the result file."""
    release: Path | None = None
    """Also copy the runs selected on validation tasks to this folder of released models."""

    def __call__(self) -> int:
        from metagrove.paper.console import print_experiments, print_results
        from metagrove.paper.reproduce import reproduce

        if self.list or self.name is None:
            print_experiments()
            return 0
        how = {"only": self.only, "train": self.train, "out": self.out, "release": self.release}
        result = reproduce(self.name, budget=self.budget, size=self.size, **how)
        if result is None:
            return STOPPED
        print_results(result)
        return 0


@dataclasses.dataclass(frozen=True)
class Train:
    """Settings of one training."""

    config: Config
    out: Path | None = None
    """Run folder; by default runs/PRESET-LEARNER-sSEED."""
    resume: bool = False
    """Continue from the last checkpoint of the folder."""


COMMANDS = {
    "adapt": Adapt,
    "predict": Predict,
    "export": Export,
    "evaluate": Evaluate,
    "compare": Compare,
    "show": Show,
    "report": Report,
    "list": List,
    "demo": Demo,
    "reproduce": Reproduce,
}
"""Of each command, flags that were renamed; the old ones still work, and help does not show them."""
FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed)
USAGE = """\
metagrove: meta-learning for many small tasks that are not all alike (HSML and the methods it is compared with).

  metagrove train PRESET [--learner NAME] [settings]   train; `metagrove train PRESET --help` lists every setting
  metagrove train own --tasks TABLES --target NAME     train on your own tables; own-images: on a pool of images
  metagrove adapt RUN --support ROWS --out FOLDER      adapt a run to a new task, from a few rows
  metagrove predict FOLDER --input ROWS --out CSV      predict new rows (RUN --support ROWS does both at once)
  metagrove export FOLDER --out MODEL                  export a fitted task for use without this package
  metagrove evaluate RUN                               score a run on test tasks
  metagrove compare RUN RUN ...                        score runs on the same tasks, with paired differences
  metagrove show RUN                                   draw the figures of a run
  metagrove report RUN [--compare-with RUN ...]        write one HTML page that explains a run
  metagrove list                                       list presets, learners and released models
  metagrove demo                                       a demonstration of about two minutes
  metagrove reproduce NAME                             run a whole experiment, resumable
  metagrove data list | prepare | verify               prepare images, official datasets or your own

RUN is a run folder or the name of a released model. --debug shows the traceback of an error.

Exit codes: 0 success, 1 internal error, 2 invalid settings or data, 3 a run folder that is missing, damaged, in use
or cannot be written, 4 training diverged, 130 interrupted by Ctrl-C (resumable).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    enable_compilation_cache()
    try:
        return dispatch([*args[:1], *modernize(args[0], args[1:])] if args else args)
    except MetagroveError as error:
        if debug:
            raise
        print(f"metagrove: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        print(
            f"metagrove: internal error, {type(error).__name__}: {error}; --debug shows the traceback", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("metagrove: interrupted", file=sys.stderr)
        return STOPPED


def dispatch(args: list[str]) -> int:
    """Run the command that the arguments begin with."""
    match args:
        case [] | ["-h" | "--help", *_]:
            print(USAGE)
            return 0
        case ["--version"]:
            from metagrove import __version__

            print(__version__)
            return 0
        case ["train", *rest]:
            return train(rest)
        case ["data", *rest]:
            from metagrove.cli.data import main as data

            return data(rest, FLAT)
        case [command, *rest] if command in COMMANDS:
            return tyro.cli(COMMANDS[command], args=rest, prog=f"metagrove {command}", config=FLAT)() or 0
        case _:
            command = args[0]
            near = difflib.get_close_matches(command, ["train", "data", *COMMANDS], n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            print(f"metagrove: unknown command {command!r}{hint}\n\n{USAGE}", file=sys.stderr)
            return 2


def train(args: list[str]) -> int:
    """metagrove train PRESET [--learner NAME] [settings]."""
    from metagrove.serve.run import default_folder
    from metagrove.training.loop import train as train_into

    learner, rest = take_option(args, "--learner")
    if not rest or rest[0] in ("-h", "--help"):
        print(train_usage())
        return 0 if rest else 2
    name, *rest = rest
    if name in ("own", "own-images"):
        from metagrove.cli.own import main as own

        return own(name, rest, learner, FLAT)
    config, rest = choose_parts(preset(name, learner), rest)
    settings = tyro.cli(
        Train,
        args=rest,
        default=Train(config),
        prog=f"metagrove train {name}",
        description=f"{PRESETS[name].about}.\n\n{choices_of(config)}",
        config=FLAT,
    )
    folder = settings.out or default_folder(name, settings.config)
    again = shlex.join(["metagrove", "train", *(arg for arg in args if arg != "--resume"), "--resume"])
    recorded = [arg for arg in take_option(args, "--out")[1] if arg != "--resume"]  # what determines the result
    command = shlex.join(["metagrove", "train", *recorded])
    done = train_into(settings.config, folder, resume=settings.resume, command=command)
    print(f"trained: {folder}" if done else f"interrupted, progress is saved; resume with: {again}", file=sys.stderr)
    return 0 if done else STOPPED


def choices_of(config: Config) -> str:
    """What else can be chosen beside settings: the learner, and parts of HSML."""
    lines = [f"--learner NAME: {', '.join(learners())}."]
    for kind, names in CHOICES.items():
        if kind in setting_names(config):
            lines.append(f"--{kind} NAME: {', '.join(dict.fromkeys([*names, *classes(kind)]))}.")
    return "\n\n".join(lines)


def train_usage() -> str:
    """List the presets, one line each."""
    lines = [f"  {name:<20} {entry.about}" for name, entry in PRESETS.items()]
    return "\n".join(
        [
            "metagrove train PRESET [--learner NAME] [settings]",
            "",
            *lines,
            f"  {'own':<20} your own tables: --tasks FILE_OR_FOLDER --task-column NAME --target NAME",
            f"  {'own-images':<20} a pool of your own images: --pool NAME",
            "",
            "`metagrove train PRESET --help` lists every setting.",
        ]
    )

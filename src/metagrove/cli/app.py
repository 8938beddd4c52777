"""The command line: a thin layer over `run` and `show`."""

import dataclasses
import difflib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from metagrove.cli.adapt import Adapt, Export, Predict
from metagrove.compilation_cache import enable_compilation_cache
from metagrove.config.config import LEARNERS, Config
from metagrove.config.presets import PRESETS, preset
from metagrove.errors import STOPPED, MetagroveError
from metagrove.paper.experiments import BudgetName

Positional = tyro.conf.Positional


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Score a run, or a released model, on fresh test tasks, after each number of inner steps."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    tasks: int = 40_000
    """Test tasks. The paper's protocol has 4,000."""
    seed: int = 0
    """Decides which tasks."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __call__(self) -> None:
        from metagrove.evaluate.summaries import evaluation
        from metagrove.serve.run import load
        from metagrove.show.console import print_evaluation

        result = evaluation(load(self.run), num_tasks=self.tasks, seed=self.seed)
        print(json.dumps(result)) if self.json else print_evaluation(result)


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare runs with the first one on the same test tasks, by paired differences."""

    runs: Positional[tuple[str, ...]]
    """Two or more run folders or names of released models."""
    tasks: int = 40_000
    """Test tasks."""
    seed: int = 0
    """Decides which tasks."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def __call__(self) -> None:
        from metagrove.evaluate.summaries import comparison
        from metagrove.serve.run import load
        from metagrove.show.console import print_comparison

        result = comparison([load(run) for run in self.runs], num_tasks=self.tasks, seed=self.seed)
        print(json.dumps(result)) if self.json else print_comparison(result)


@dataclasses.dataclass(frozen=True)
class List:
    """Presets, learners and released models, and what each is for."""

    def __call__(self) -> None:
        from metagrove.show.console import print_list

        print_list()


@dataclasses.dataclass(frozen=True)
class Show:
    """Draw a run's figures: training curve, soft assignments beside fitted curves or images, t-SNE of image runs."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    beside: tuple[str, ...] = ()
    """Other runs that are drawn too, e.g. the fits of a MAML run, or the t-SNE of a MUMOMAML run."""
    out: Path | None = None
    """Where the figures go; by default figures/RUN."""
    seed: int = 0
    """Decides which tasks are drawn."""

    def __call__(self) -> None:
        from metagrove.serve.run import load
        from metagrove.show.figures import draw_all

        for path in draw_all(load(self.run), [load(run) for run in self.beside], self.out, seed=self.seed):
            print(path)


@dataclasses.dataclass(frozen=True)
class Report:
    """Write one HTML file that explains a run: result, training, clusters, tasks, provenance."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    beside: tuple[str, ...] = ()
    """Other runs of the same tasks, set beside it by paired differences."""
    out: Path = Path("report.html")
    """Where the page goes; nothing else is written, and it fetches nothing when opened."""
    tasks: int | None = None
    """Test tasks; by default 1,000, or those that the run's baselines were measured on."""
    seed: int | None = None
    """Decides which tasks; likewise."""

    def __call__(self) -> None:
        from metagrove.serve.run import load
        from metagrove.show.report import write_report

        others = [load(run) for run in self.beside]
        print(write_report(load(self.run), others, self.out, num_tasks=self.tasks, seed=self.seed))


@dataclasses.dataclass(frozen=True)
class Demo:
    """Train HSML and MAML for about a minute, compare them with a released model, draw the figures."""

    out: Path = Path("runs/demo")
    """Where the figures go."""

    def __call__(self) -> int:
        from metagrove.demo import demo

        return 0 if demo(self.out) else STOPPED


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Run a whole experiment, going on where it stopped, and write its result file."""

    name: Positional[str | None] = None
    """Which experiment."""
    list: bool = False
    """Show the experiments instead, and how long those took that were timed."""
    budget: BudgetName = "paper"
    """paper: its number of meta-steps; small: fewer, without a search; quick: a look, on fewer test tasks too."""
    size: int | None = None
    """Height and width of images, if not the paper's 84."""
    only: str = "*"
    """Search and train just the rows whose label matches, e.g. "*, 10-shot", and write no result yet."""
    train: bool = True
    """Search and train what is missing. --no-train writes the result of the rows that are trained so far."""
    out: Path = Path("results")
    """Where the result file goes."""
    release: Path | None = None
    """Also copy the runs chosen on validation to this folder of released models."""

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
    """The run folder; by default runs/PRESET-LEARNER-sSEED."""
    resume: bool = False
    """Go on from the folder's last checkpoint."""


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
FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed)
USAGE = """\
metagrove learns how to learn from many small problems that are not all alike.

  metagrove train PRESET [--learner NAME] [settings]   train; `metagrove train PRESET --help` lists every setting
  metagrove train own --tasks TABLES --target NAME     train on your own tables; own-images: on a pool of images
  metagrove adapt RUN --support ROWS --out FOLDER      fit a run to a new task of yours, from a few rows
  metagrove predict FOLDER --input ROWS --out CSV      predict for new rows (RUN --support ROWS does both at once)
  metagrove export FOLDER --out MODEL                  an adapted task for use without this package
  metagrove evaluate RUN                               score a run on fresh tasks
  metagrove compare RUN RUN ...                        the same tasks for each, paired differences
  metagrove show RUN                                   draw its figures
  metagrove report RUN [--beside RUN ...]              one HTML page that explains it
  metagrove list                                       presets, learners and released models
  metagrove demo                                       a tour of about two minutes
  metagrove reproduce NAME                             a whole experiment, resumable
  metagrove data list | prepare | verify               images for the image experiments: bring or fetch them

RUN is a run folder or a released model's name. --debug shows the traceback of an error.

Exit codes: 0 done, 1 a bug of ours, 2 bad settings or data, 3 a run folder that is missing, damaged, in use or
cannot be written, 4 training diverged, 130 stopped by Ctrl-C (resumable).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    enable_compilation_cache()
    try:
        return dispatch(args)
    except MetagroveError as error:
        if debug:
            raise
        print(f"metagrove: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        print(f"metagrove: a bug of ours, {type(error).__name__}: {error}; --debug shows where", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("metagrove: stopped", file=sys.stderr)
        return STOPPED


def dispatch(args: list[str]) -> int:
    """Hand the arguments to the command they begin with."""
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
            print(f"metagrove: no command is called {command!r}{hint}\n\n{USAGE}", file=sys.stderr)
            return 2


def train(args: list[str]) -> int:
    """metagrove train PRESET [--learner NAME] [settings]."""
    from metagrove.serve.run import default_folder
    from metagrove.train.loop import train as train_into

    learner, rest = take_option(args, "--learner")
    if not rest or rest[0] in ("-h", "--help"):
        print(train_usage())
        return 0 if rest else 2
    name, *rest = rest
    if name in ("own", "own-images"):
        from metagrove.cli.own import main as own

        return own(name, rest, learner, FLAT)
    settings = tyro.cli(
        Train,
        args=rest,
        default=Train(preset(name, learner)),
        prog=f"metagrove train {name}",
        description=f"{PRESETS[name].about}. --learner NAME takes another method: {', '.join(LEARNERS)}.",
        config=FLAT,
    )
    folder = settings.out or default_folder(name, settings.config)
    again = shlex.join(["metagrove", "train", *(arg for arg in args if arg != "--resume"), "--resume"])
    kept = [arg for arg in take_option(args, "--out")[1] if arg != "--resume"]  # what decides the numbers
    command = shlex.join(["metagrove", "train", *kept])
    done = train_into(settings.config, folder, resume=settings.resume, command=command)
    print(f"trained: {folder}" if done else f"stopped, nothing lost; go on with: {again}", file=sys.stderr)
    return 0 if done else STOPPED


def take_option(args: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value given as `option VALUE` or `option=VALUE`, if any, and the other arguments."""
    for i, arg in enumerate(args):
        if arg == option and i + 1 < len(args):
            return args[i + 1], args[:i] + args[i + 2 :]
        if arg.startswith(f"{option}="):
            return arg.partition("=")[2], args[:i] + args[i + 1 :]
    return None, args


def train_usage() -> str:
    """The presets, a line each."""
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

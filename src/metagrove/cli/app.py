"""The command line, a thin layer over the package."""

import dataclasses
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from metagrove.cli.adapt import Adapt, DoWork, Export, Predict
from metagrove.cli.measure import BaselinesOf, Calibrate, Compare, Evaluate, Uncertainty
from metagrove.cli.messages import complain, explain, flushed
from metagrove.cli.options import FLAT, modernize
from metagrove.cli.selfcheck import Selfcheck
from metagrove.compilation_cache import enable_compilation_cache
from metagrove.devices import LostProcessError
from metagrove.errors import STOPPED
from metagrove.notes import set_verbosity
from metagrove.paper.experiments import BudgetName
from metagrove.terminal import discard_stdout, prepare_streams, say

Positional = tyro.conf.Positional
GROUPED_TABLES = "grouped-tables"


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
    """Other runs to include in the figures, e.g. the fits of a MAML run, or the t-SNE of a MUMOMAML run."""
    out: Path | None = None
    """Folder of the figures; by default figures/RUN."""
    seed: int = 0
    """Random seed of the tasks that are drawn."""

    def __call__(self) -> None:
        from metagrove.serve.run import load
        from metagrove.show.figures import draw_all

        for path in draw_all(load(self.run), [load(run) for run in self.compare_with], self.out, seed=self.seed):
            say(path)


@dataclasses.dataclass(frozen=True)
class Report:
    """Write one HTML file that explains a run: result, training, clusters, tasks, provenance."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    compare_with: tuple[str, ...] = ()
    """Other runs on the same source, to compare with by paired differences."""
    out: Path | None = None
    """Path of the page, which is self-contained; by default report-RUN.html."""
    num_tasks: int | None = None
    """Number of test tasks; by default 1,000, or those that the baselines of the run were measured on."""
    seed: int | None = None
    """Random seed of the test tasks; by default 0, or that of the baselines."""

    def __call__(self) -> None:
        from metagrove.serve.run import load
        from metagrove.show.report import write_report

        others = [load(run) for run in self.compare_with]
        run = load(self.run)
        out = self.out or Path(f"report-{run.folder.resolve().name}.html")
        say(write_report(run, others, out, num_tasks=self.num_tasks, seed=self.seed))


@dataclasses.dataclass(frozen=True)
class Demo:
    """Find clusters by evidence, train HSML on them and MAML, compare them with a released model, draw the figures."""

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
    all: bool = False
    """Run all experiments whose data is prepared."""
    list: bool = False
    """List the experiments and their measured run times."""
    budget: BudgetName = "paper"
    """paper: the paper's number of meta-steps; studies: 20,000 on functions and 3,000 with cosine decay on images
    (1,500 on MiniImagenet, after a search), without a search; small: 10,000, without a search; trials: 2,500, for
    image-options alone; quick: a few minutes for each row; smoke: 20 meta-steps for each row, to see that everything
    works."""
    workers: int = 1
    """Number of trainings at a time; several are pinned to a core each."""
    cluster: str | None = None
    """Address of a Dask scheduler, e.g. tcp://host:8786, whose workers train instead; they must see the same files."""
    size: int | None = None
    """Height and width of images, if not the paper's 84."""
    only: str = "*"
    """Search and train only the rows whose label matches, e.g. "*, 10-shot", and write no result."""
    train: bool = True
    """Search and train what is missing; --no-train writes the result of the rows that are already trained."""
    out: Path = Path("results")
    """Folder of the result file."""
    release: Path | None = None
    """Also copy the runs selected on validation tasks to this folder of released models."""

    def __call__(self) -> int:
        from metagrove.paper.console import print_experiments, print_results
        from metagrove.paper.experiments import ANALYSES
        from metagrove.paper.reproduce import prepared, reproduce
        from metagrove.workers.pool import open_pool

        if self.list or (self.name is None and not self.all):
            print_experiments(self.out)
            return 0
        if self.name == GROUPED_TABLES:
            return self.grouped_tables()
        analyses = ANALYSES if self.all else {str(self.name)} & ANALYSES.keys()
        for name in analyses:
            from metagrove.paper.analyses import analyse

            analyse(name, self.out, budget=self.budget)
        if analyses and not self.all:
            return 0
        names = prepared(self.budget, self.size) if self.all else (str(self.name),)
        how = {"only": self.only, "train": self.train, "out": self.out, "release": self.release}
        pool = open_pool(self.workers, self.cluster)
        results = reproduce(*names, budget=self.budget, size=self.size, pool=pool, **how)
        if results is None:
            return STOPPED
        for result in results:
            print_results(result)
        return 0

    def grouped_tables(self) -> int:
        """The benchmark on real sets of many small groups."""
        from metagrove.paper.console import print_grouped_tables
        from metagrove.paper.grouped_tables import reproduce_grouped_tables

        result = reproduce_grouped_tables(budget=self.budget, only=self.only, train=self.train, out=self.out)
        if result is None:
            return STOPPED
        print_grouped_tables(result)
        return 0


COMMANDS = {
    "adapt": Adapt,
    "predict": Predict,
    "export": Export,
    "evaluate": Evaluate,
    "compare": Compare,
    "baselines": BaselinesOf,
    "show": Show,
    "report": Report,
    "calibrate": Calibrate,
    "uncertainty": Uncertainty,
    "selfcheck": Selfcheck,
    "list": List,
    "demo": Demo,
    "reproduce": Reproduce,
    "work": DoWork,
}
"""Commands with options of their own and nothing else."""
EVERYWHERE = ("--quiet", "--verbose", "--debug")
"""Flags of every command."""
USAGE = """\
metagrove: meta-learning for many small tasks that are not all alike (HSML and the methods it is compared with).

  metagrove train PRESET [--learner NAME] [settings]   train; `metagrove train PRESET --help` lists every setting
  metagrove train own --tasks TABLES --target NAME     train on your own tables; own-images: on a pool of images
  metagrove adapt RUN --support ROWS --out FOLDER      adapt a run to a new task, from a few rows
  metagrove predict FOLDER --input ROWS --out CSV      predict new rows (RUN --support ROWS does both at once)
  metagrove predict RUN --tasks TABLE --out PARQUET    adapt to all tasks of a table of any size, and predict
  metagrove export FOLDER --out MODEL                  export a fitted task for use without this package
  metagrove evaluate RUN                               score a run on test tasks
  metagrove compare RUN RUN ...                        score runs on the same tasks, with paired differences
  metagrove uncertainty RUN ...                        coverage, calibration error, NLL of predicted uncertainty
  metagrove baselines RUN                              fit baselines on its tasks, compare, recommend
  metagrove show RUN                                   draw the figures of a run
  metagrove report RUN [--compare-with RUN ...]        write one HTML page that explains a run
  metagrove list                                       list presets, learners and released models
  metagrove demo                                       a demonstration, about a minute
  metagrove reproduce NAME                             run a whole experiment, resumable
  metagrove data list | prepare | verify               prepare images, official datasets or your own

  metagrove calibrate RUN                              intervals and index of known tasks, for a run without them
  metagrove selfcheck                                  check devices: a tiny training of each learner
  metagrove completion bash | zsh                      print a completion script for the shell

RUN is a run folder or the name of a released model. With every command: --quiet prints results and errors only,
--verbose every block of a training, --debug the traceback of an error. -V prints the version.

Exit codes: 0 success, 1 internal error, 2 invalid settings or data, 3 a run folder that is missing, damaged, in use
or cannot be written, 4 training diverged, 130 interrupted by Ctrl-C (resumable).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    given = {flag: flag in args for flag in EVERYWHERE}
    args = [arg for arg in args if arg not in EVERYWHERE]
    set_verbosity(quiet=given["--quiet"], verbose=given["--verbose"])
    enable_compilation_cache()
    prepare_streams()
    try:
        code = dispatch([*args[:1], *modernize(args[0], args[1:])] if args else args)
        sys.stdout.flush()
        return code
    except SystemExit as ended:  # the help of a command, or arguments that cannot be parsed
        if isinstance(ended.__context__, BrokenPipeError):  # rich makes it a SystemExit(1)
            return 0
        return ended.code if flushed() and isinstance(ended.code, int) else 0
    except BrokenPipeError:  # the reader of the output, e.g. `head`, has closed the pipe
        discard_stdout()
        return 0
    except LostProcessError as error:
        complain(str(error))
        os._exit(error.exit_code)  # a regular exit would wait for the lost process
    except Exception as error:
        if given["--debug"]:
            raise
        return explain(error)
    except KeyboardInterrupt:
        complain("interrupted")
        return STOPPED


def dispatch(args: list[str]) -> int:
    """Run the command that the arguments begin with."""
    match args:
        case [] | ["-h" | "--help", *_]:
            print(USAGE)
            return 0
        case ["-V" | "--version"]:
            from metagrove import __version__

            print(__version__)
            return 0
        case ["train", *rest]:
            from metagrove.cli.train import main as train

            return train(rest)
        case ["completion", *rest]:
            from metagrove.cli.completion import main as completion

            return completion(rest, {**COMMANDS, "train": None, "data": None, "completion": None})
        case ["data", *rest]:
            from metagrove.cli.data import main as data

            return data(rest, FLAT)
        case [command, *rest] if command in COMMANDS:
            return tyro.cli(COMMANDS[command], args=rest, prog=f"metagrove {command}", config=FLAT)() or 0
        case _:
            command = args[0]
            near = difflib.get_close_matches(command, ["train", "data", "completion", *COMMANDS], n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            print(f"metagrove: unknown command {command!r}{hint}\n\n{USAGE}", file=sys.stderr)
            return 2

"""metagrove evaluate, compare, baselines, calibrate and uncertainty: commands that measure a trained run."""

import dataclasses
import json
import shlex
from pathlib import Path

import tyro

from metagrove.errors import STOPPED
from metagrove.files import as_json
from metagrove.terminal import say

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
class BaselinesOf:
    """Fit baselines on the tasks of a run, compare them with it, recommend one, and serve the winner on validation."""

    run: Positional[str]
    """A run folder."""
    also_train: tuple[str, ...] = ()
    """Other learners to train on the same tasks and compare, e.g. maml grove."""
    serve: bool = True
    """Serve the method that is best on validation tasks; --no-serve keeps the run's own learner."""

    def __call__(self) -> int:
        from metagrove.own.training import measure_baselines, print_note
        from metagrove.serve.run import load
        from metagrove.show.baselines import print_baselines

        result = measure_baselines(load(self.run), self.also_train, serve=self.serve, note=print_note)
        if result is None:
            return STOPPED
        print_baselines(result)
        return 0


@dataclasses.dataclass(frozen=True)
class Calibrate:
    """Index the known tasks of a run and calibrate its intervals or probabilities, as `train own` does at its end."""

    run: Positional[str]
    """A run folder."""

    def __call__(self) -> None:
        from metagrove.serve.calibrate import calibrate

        say(calibrate(self.run).folder / "calibration.json")


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """Measure how well the predicted uncertainty of runs agrees with their errors, on the same test tasks."""

    runs: Positional[tuple[str, ...]]
    """Run folders or names of released models; of regression runs, of grove, bmaml, platipus or llama."""
    num_tasks: int = 2000
    """Number of test tasks."""
    seed: int = 0
    """Random seed of the test tasks."""
    json: bool = False
    """Print one JSON object instead of a table."""
    out: Path | None = None
    """Also write the result to this file."""

    def __call__(self) -> None:
        from metagrove import files
        from metagrove.evaluation.calibration import measure_calibration
        from metagrove.show.console import print_calibrations
        from metagrove.training.folders import provenance

        results = [measure_calibration(run, num_tasks=self.num_tasks, seed=self.seed) for run in self.runs]
        rows = [as_json(one) for one in results]
        if self.out is not None:
            command = shlex.join(["metagrove", "uncertainty", *self.runs, "--num-tasks", str(self.num_tasks)])
            about = {"format": files.FORMAT, "provenance": provenance(f"{command} --seed {self.seed}")}
            files.write_json(self.out, {**about, "rows": rows})
        print(json.dumps({"runs": rows})) if self.json else print_calibrations(results)

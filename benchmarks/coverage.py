"""How often Grove's predictive intervals hold the truth on new tasks: functions with noise, and real tables.

    python benchmarks/coverage.py --out results/coverage.json

The noise is learned; features are Chebyshev polynomials on functions and splines on tables. Each row is measured on the
queries of test tasks that it has never seen (`metagrove uncertainty`): the coverage of the central 50 % and 90 %
intervals of a Gaussian with the predicted mean and standard deviation. The tables need
`pip install 'metagrove[datasets]'`; those that are not installed are left out.
"""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from result import write_result

import metagrove as mg
from metagrove.errors import InputError
from metagrove.files import as_json
from metagrove.paper.grouped_data import SETS, write_set
from metagrove.training.folders import provenance

NOISES = (0.1, 0.3, 1.0)
SHOTS = (5, 10)
TABLES = ("fertility", "italypower", "dietox", "hsb")
"""Regressions of `metagrove reproduce grouped-tables`."""
NUM_TASKS = 2000


def functions(folder: Path, shots: int, noise: float) -> dict:
    """Coverage on functions whose y has Gaussian noise."""
    how = {"noise": noise, "assumed_noise": 0.0, "steps": 0, "validation_tasks": 500}
    run = mg.train(f"toy-{shots}shot-grove", out=folder / f"functions-{shots}-{noise}", **how)
    what = f"functions, noise {noise}, {shots} points"
    return {"what": what, **as_json(mg.measure_calibration(run, num_tasks=NUM_TASKS))}


def table(folder: Path, name: str) -> dict:
    """Coverage on new groups of a real table, five support rows each."""
    from metagrove.own.training import own_config, print_note

    path = folder / f"{name}.csv"
    write_set(name, path)
    config = own_config(SETS[name].settings(path, split_seed=0), "grove", print_note)
    run = mg.train(config, out=folder / name, steps=0, features="spline")
    return {"what": SETS[name].about, **as_json(mg.measure_calibration(run, num_tasks=NUM_TASKS))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        rows += [functions(folder, shots, noise) for shots in SHOTS for noise in NOISES]
        for name in TABLES:
            try:
                rows.append(table(folder, name))
            except InputError as error:
                print(f"left out: {error}", file=sys.stderr)
    about = "coverage of Grove's predictive intervals on new tasks"
    write_result({"about": about, "provenance": provenance(shlex.join(["python", *sys.argv])), "rows": rows}, args.out)


if __name__ == "__main__":
    main()

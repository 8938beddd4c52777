"""Whose statistics normalise: accuracy of runs on images by those of the queries (transductive) and of the support set.

    python benchmarks/image_statistics.py RUN ... --tasks 1000 --out results/image-statistics.json

The same test tasks for both, so that their difference is paired. Rows of other runs in the file stay.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path

from result import write_result

from metagrove import files, load
from metagrove.config.encoding import to_json
from metagrove.evaluation.summaries import image_statistics, learner_name
from metagrove.training.folders import provenance

ABOUT = "accuracy of runs on images, in percent, normalised by the statistics of the queries and of the support set"


def measure(name, num_tasks, seed):
    """One run's row."""
    run, began = load(name), time.monotonic()
    found = files.as_json(image_statistics(run, num_tasks=num_tasks, seed=seed))
    return {
        "run": run.folder.name,
        "learner": learner_name(run),
        "trained_with": to_json(run.config)["learner"]["net"]["statistics"],
        "meta_steps": run.config.training.steps,
        "inner_steps": run.inner_steps,
        "num_tasks": num_tasks,
        "seed": seed,
        **found,
        "seconds": time.monotonic() - began,
        "provenance": provenance(shlex.join(["python", *sys.argv])),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = {row["run"]: row for row in files.read_json(args.out)["rows"]} if args.out and args.out.exists() else {}
    for name in args.runs:
        row = measure(name, args.tasks, args.seed)
        rows[row["run"]] = row
    write_result({"about": ABOUT, "rows": list(rows.values())}, args.out)


if __name__ == "__main__":
    main()

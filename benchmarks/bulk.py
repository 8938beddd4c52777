"""Many tasks and many trainings: a large table, one call for many tasks, trainings side by side; a JSON file.

    python benchmarks/bulk.py --out results/benchmark-bulk.json

    python benchmarks/bulk.py --targets --out results/benchmark-bulk-targets.json

Two idle cores are needed. --targets measures one run of each part, in about ten minutes, and says whether the targets
of docs/scaling.md are met. --small is a quick check that everything runs; its numbers mean nothing.

- `table`: `metagrove predict RUN --tasks FILE --workers 2` on Parquet files of 10⁵ and 10⁶ tasks, from the start of the
  command to the finished file, and the memory of its largest process; on the smaller file also with one worker.
- `many`: 10,000 tasks in one call of `Run.adapt_many` against a loop of single calls.
- `train`: `metagrove train own` on the same files, all rows with a target, kept on disk and the smaller also in memory:
  seconds with sorting and compiling, memory, meta-steps a second, and whether the weights are the same.
- `side-by-side`: two trainings, each pinned to its core, against the same two one after the other.
"""

import argparse
import dataclasses
import hashlib
import json
import shlex
import sys
import tempfile
from pathlib import Path

import own
from own import RUNS, command, timed
from result import write_result

SUPPORT_ROWS, QUERY_ROWS = 5, 5
TASKS_AT_ONCE = 50_000
SETTINGS = {"hsml": ("toy-5shot",), "maml": ("toy-5shot", "--learner", "maml")}


def write_table(path: Path, num_tasks: int, query_rows: int = QUERY_ROWS) -> None:
    """Tasks of 5 rows with a target and others without, a few of them at a time; tasks are in random order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, rows = np.random.default_rng(0), SUPPORT_ROWS + query_rows
    schema = pa.schema([("task", pa.string()), ("x", pa.float64()), ("y", pa.float64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, num_tasks, TASKS_AT_ONCE):
            count = min(TASKS_AT_ONCE, num_tasks - start)
            numbers = np.repeat(start + rng.permutation(count), rows)
            x = rng.uniform(-5, 5, count * rows)
            y = np.sin(x + numbers % 7)
            unknown = np.arange(count * rows) % rows >= SUPPORT_ROWS
            names = pa.array([f"task {number}" for number in numbers])
            writer.write_table(pa.table([names, pa.array(x), pa.array(y, mask=unknown)], schema=schema))


def table(name: str, sizes: list[int]) -> list[dict]:
    """Tasks a second and memory of one command for all tasks of a file."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write_table(path / "warm.parquet", 10)
        timed(predict(name, path / "warm.parquet", path / "out.parquet", 2))  # compiles
        for num_tasks in sizes:
            write_table(path / "tasks.parquet", num_tasks)
            workers = (2, 1) if num_tasks == sizes[0] else (2,)
            digests = set()
            for count in workers:
                used = timed(predict(name, path / "tasks.parquet", path / "out.parquet", count))
                digests.add(hashlib.sha256((path / "out.parquet").read_bytes()).hexdigest())
                rate = num_tasks / used["seconds"]
                found.append({"run": name, "tasks": num_tasks, "workers": count, "tasks_per_second": rate, **used})
            if len(digests) > 1:
                raise SystemExit("one worker and two gave different files")
    return found


def predict(name: str, tasks: Path, out: Path, workers: int) -> list[str]:
    return command("predict", name, "--tasks", tasks, "--out", out, "--workers", workers)


def train(sizes: list[int], steps: int) -> list[dict]:
    """Memory and speed of training on tables whose rows are kept on disk, or in memory."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for num_tasks in sizes:
            write_table(path / "tasks.parquet", num_tasks, query_rows=0)
            weights = set()
            for where in ("disk", "memory") if num_tasks == sizes[0] else ("disk",):
                run = path / f"{where}-{num_tasks}"
                used = timed(train_own(path / "tasks.parquet", where, steps, run))
                last = json.loads((run / "last.json").read_text())
                weights.add(last["sha256"])
                found.append({"tasks": num_tasks, "rows_in": where, "meta_steps": steps, **used})
                found[-1] |= {"meta_steps_per_second": last["steps_per_second"], "same_weights": len(weights) == 1}
    return found


def train_own(tasks: Path, where: str, steps: int, out: Path) -> list[str]:
    data = ("--tasks", tasks, "--task-column", "task", "--target", "y", "--shots", 3, "--keep-rows", where)
    brief = ("--steps", steps, "--validate-every", steps, "--no-baselines")
    return command("train", "own", *data, *brief, "--out", out)


def side_by_side(name: str, steps: int) -> dict:
    """Seconds of two trainings by one worker after the other, and by two workers."""
    import time

    from metagrove.training.jobs import TrainJob
    from metagrove.workers.pool import LocalPool, run_jobs

    def jobs(folder: Path, count: int = steps) -> list[TrainJob]:
        settings = (*SETTINGS[name], "--steps", str(count), "--validate-every", str(count))
        return [TrainJob(f"seed {i}", (*settings, "--seed", str(i)), folder / str(i), count) for i in range(2)]

    found: dict = {"run": name, "meta_steps": steps}
    with tempfile.TemporaryDirectory() as folder:
        run_jobs(jobs(Path(folder) / "warm", 100), LocalPool(1))  # compiles
        for how, workers in (("one_after_the_other", 1), ("side_by_side", 2)):
            began = time.perf_counter()
            if not run_jobs(jobs(Path(folder) / how), LocalPool(workers)):
                raise SystemExit("interrupted")
            found[f"{how}_seconds"] = time.perf_counter() - began
        weights = [
            [json.loads((job.folder / "last.json").read_text())["sha256"] for job in jobs(Path(folder) / how)]
            for how in ("one_after_the_other", "side_by_side")
        ]
    ratio = found["one_after_the_other_seconds"] / found["side_by_side_seconds"]
    return {**found, "ratio": ratio, "same_weights": weights[0] == weights[1]}


@dataclasses.dataclass(frozen=True)
class Sizes:
    tables: list[int]
    many: tuple[int, int, int]
    """Tasks, single calls, rounds."""
    steps: dict[str, int]
    train_steps: int


FULL = Sizes([100_000, 1_000_000], (10_000, 300, 3), {"hsml": 10_000, "maml": 20_000}, 3_000)
TARGETS = Sizes([100_000, 1_000_000], (10_000, 300, 1), {"hsml": 5_000}, 1_000)
SMALL = Sizes([200, 1_000], (300, 10, 1), {"hsml": 100, "maml": 100}, 100)


def goals(result: dict) -> list[dict]:
    """The targets, and whether they are met."""
    found = []

    def goal(what: str, value: float, sign: str, bound: float) -> None:
        met = value >= bound if sign == "≥" else value <= bound
        found.append({"what": what, "goal": f"{sign} {bound:,g}", "value": value, "met": met})

    for part, one in result.items():
        kind, _, name = part.partition(":")
        if kind == "table":
            small, *_, large = (row for row in one if row["workers"] == 2)
            goal(f"{name}: tasks/s, {large['tasks']:,} tasks of one file", large["tasks_per_second"], "≥", 10_000)
            growth = large["peak_memory_mb"] / small["peak_memory_mb"]
            goal(f"{name}: memory with {large['tasks']:,} tasks / with {small['tasks']:,}", growth, "≤", 1.1)
        elif kind == "train":
            small, *_, large = (row for row in one if row["rows_in"] == "disk")
            growth = large["peak_memory_mb"] / small["peak_memory_mb"]
            goal(f"training: memory with {large['tasks']:,} tasks / with {small['tasks']:,}", growth, "≤", 1.1)
        elif kind == "many":
            goal(f"{name}: {one['tasks']:,} tasks in one call / single calls", one["ratio"], "≥", 20)
        elif kind == "side-by-side":
            goal(f"{name}: two trainings side by side / one after the other", one["ratio"], "≥", 1.8)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true", help="sizes for a check, not for numbers")
    parser.add_argument("--targets", action="store_true", help="what docs/scaling.md has targets for, and nothing else")
    parser.add_argument(
        "--only", default="", help="just the parts whose name begins so: table, many, train, side-by-side"
    )
    args = parser.parse_args()

    from metagrove.training.folders import provenance

    sizes = SMALL if args.small else TARGETS if args.targets else FULL
    runs = ("toy-5shot",) if args.targets else RUNS
    parts = {f"table:{name}": lambda name=name: table(name, sizes.tables) for name in runs}
    many_of = runs if args.targets else ("own", "maml", *RUNS)
    parts |= {f"many:{name}": lambda name=name: own.many(name, *sizes.many) for name in many_of}
    parts["train"] = lambda: train(sizes.tables, sizes.train_steps)
    parts |= {
        f"side-by-side:{name}": lambda name=name, steps=steps: side_by_side(name, steps)
        for name, steps in sizes.steps.items()
    }
    result = {
        "about": f"1-40-40-1 net; tables of tasks of {SUPPORT_ROWS} support rows and {QUERY_ROWS} rows to predict",
        "provenance": provenance(shlex.join(["python", *sys.argv])),
        **{name: measure() for name, measure in parts.items() if name.startswith(args.only)},
    }
    write_result(result | ({"goals": goals(result)} if args.targets else {}), args.out)


if __name__ == "__main__":
    main()

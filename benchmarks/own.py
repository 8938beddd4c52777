"""Adapting and predicting on people's own data: latency, many tasks at once, a cold command, memory; a JSON file.

    python benchmarks/own.py --out results/benchmark-own.json

An idle machine is needed. --small is a quick check that everything runs; its numbers mean nothing.

Each part runs in a process of its own, so that what one compiled or kept in memory does not serve another. Parts that
take turns (single calls and one call for all) are measured in some rounds, and the best of each counts.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from result import write_result

RUNS = ("toy-5shot-best", "toy-5shot")
ROWS = 5
OTHER_ROWS = (6, 7, 8)  # padded to the same size as 5


def supports(count: int, rows: int = ROWS):
    import numpy as np

    rng = np.random.default_rng(0)
    return [(rng.uniform(-5, 5, (rows, 1)), rng.normal(size=(rows, 1))) for _ in range(count)]


def learners(name: str):
    """A released model, or a learner as it was drawn: the work is the same as if it were trained.

    own: what `metagrove train own` takes for one input, one target and 300 tasks; maml: with the paper's net.
    """
    import dataclasses

    import jax

    from metagrove import load
    from metagrove.config.own_data import table_config
    from metagrove.config.presets import default_learner
    from metagrove.sources.tables import Tables
    from metagrove.tables.schema import Column, Schema

    run = load("toy-5shot" if name in ("maml", "own") else name)
    if name == "own":
        schema = Schema((Column("x", "number"),), (Column("y", "number"),))
        config = table_config(Tables(tasks="elsewhere", target=("y",), schema=schema), 300)
    elif name == "maml":
        config = dataclasses.replace(run.config, learner=default_learner("maml", run.config))
    else:
        return run
    return dataclasses.replace(run, config=config, meta=config.learner.init(config.source.spec, key=jax.random.key(0)))


def seconds_of(fn) -> float:
    began = time.perf_counter()
    fn()
    return time.perf_counter() - began


def latency(name: str, calls: int) -> dict:
    """Adapt and predict on a warmed process, one task at a time; and what other numbers of rows compile."""
    import jax
    import numpy as np

    run, compiled = learners(name), []

    def listen(event: str, *_, **__) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    def both(rows: int, task: int = 0) -> None:
        x, y = tasks[rows][task]
        run.adapt(x, y).predict(x)

    tasks = {rows: supports(calls, rows) for rows in (ROWS, *OTHER_ROWS)}
    cold = seconds_of(lambda: both(ROWS))
    both(ROWS)
    jax.monitoring.register_event_duration_secs_listener(listen)
    each = np.array([seconds_of(lambda i=i: both(ROWS, i)) for i in range(calls)])
    for rows in OTHER_ROWS:
        both(rows)
    return {
        "run": name,
        "inner_steps": run.inner_steps,
        "first_call_seconds": cold,
        "median_ms": 1e3 * float(np.median(each)),
        "p95_ms": 1e3 * float(np.quantile(each, 0.95)),
        "calls": calls,
        "compilations_for_other_row_counts": len(compiled),
        "row_counts": [ROWS, *OTHER_ROWS],
    }


def many(name: str, tasks: int, singles: int, rounds: int) -> dict:
    """Tasks a second in one call and in a loop of single calls, by turns."""
    import jax

    run, given = learners(name), supports(tasks)

    def loop() -> None:
        for x, y in given[:singles]:
            jax.block_until_ready(run.adapt(x, y).predictor)

    run.adapt_many(given)
    loop()
    at_once, one_by_one = [], []
    for _ in range(rounds):
        at_once.append(tasks / seconds_of(lambda: run.adapt_many(given)))
        one_by_one.append(singles / seconds_of(loop))
    return {
        "run": name,
        "inner_steps": run.inner_steps,
        "tasks": tasks,
        "tasks_per_second_in_one_call": max(at_once),
        "tasks_per_second_in_a_loop": max(one_by_one),
        "ratio": max(at_once) / max(one_by_one),
        "singles_timed": singles,
        "rounds": {"in_one_call": at_once, "in_a_loop": one_by_one},
    }


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "metagrove", *map(str, args)]


def timed(args: list[str]) -> dict:
    """Seconds and peak memory of one command."""
    began = time.perf_counter()
    process = subprocess.Popen(args, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{shlex.join(args)} failed")
    return {"seconds": time.perf_counter() - began, "peak_memory_mb": usage.ru_maxrss / 1024}


def write_rows(path: Path, megabytes: float) -> int:
    """A CSV file of so many megabytes; how many rows it has."""
    import numpy as np

    rng, rows = np.random.default_rng(0), 0
    with path.open("w", encoding="utf-8") as file:
        file.write("x\n")
        while file.tell() < megabytes * 1e6:
            values = rng.uniform(-5, 5, 20_000)
            file.write("".join(f"{value:.15f}\n" for value in values))
            rows += len(values)
    return rows


def cold(rounds: int) -> dict:
    """Seconds from the shell: adapt and predict in one command, and predict with what was adapted before."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "support.csv").write_text("x,y\n-3,-5\n-1,-1\n0.5,2\n2,5\n4,9\n", encoding="utf-8")
        write_rows(path / "rows.csv", 0.001)
        where = ("--input", path / "rows.csv", "--out", path / "p.csv")
        support = ("--support", path / "support.csv")
        found = {}
        for name in RUNS:
            timed(command("adapt", name, *support, "--out", path / name))
            both = [timed(command("predict", name, *support, *where))["seconds"] for _ in range(rounds)]
            adapted = [timed(command("predict", path / name, *where))["seconds"] for _ in range(rounds)]
            found[name] = {
                "adapt_and_predict_seconds": min(both),
                "predict_seconds": min(adapted),
                "rounds": {"adapt_and_predict": both, "predict": adapted},
            }
        return found


def memory(sizes: list[float]) -> list[dict]:
    """Peak memory and rows a second of `metagrove predict` on inputs of these megabytes."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "support.csv").write_text("x,y\n-3,-5\n-1,-1\n0.5,2\n2,5\n4,9\n", encoding="utf-8")
        timed(command("adapt", RUNS[0], "--support", path / "support.csv", "--out", path / "adapted"))
        for megabytes in sizes:
            rows = write_rows(path / "rows.csv", megabytes)
            used = timed(command("predict", path / "adapted", "--input", path / "rows.csv", "--out", path / "p.csv"))
            found.append({"megabytes": megabytes, "rows": rows, **used})
    return found


def in_own_process(part: str, small: bool) -> object:
    args = [sys.executable, __file__, "--part", part, *(["--small"] if small else [])]
    result = subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout.splitlines()[-1])


def measure(part: str, small: bool) -> object:
    kind, _, name = part.partition(":")
    match kind:
        case "latency":
            return latency(name, calls=5 if small else 200)
        case "many":
            return many(name, *((300, 10, 1) if small else (10_000, 300, 3)))
        case "cold":
            return cold(1 if small else 3)
        case _:
            return memory([0.1, 1.0] if small else [10.0, 500.0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true", help="sizes for a check, not for numbers")
    parser.add_argument("--only", default="", help="just the parts whose name begins so: latency, many, cold, memory")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(measure(args.part, args.small)))
        return

    from metagrove.training.folders import provenance

    names = [f"{kind}:{name}" for kind in ("latency", "many") for name in ("own", "maml", *RUNS)] + ["cold", "memory"]
    result = {
        "about": f"1-40-40-1 net, {ROWS} support rows; a cold command starts Python anew; memory of predict on CSV",
        "provenance": provenance(shlex.join(["python", *sys.argv])),
        **{name: in_own_process(name, args.small) for name in names if name.startswith(args.only)},
    }
    write_result(result, args.out)


if __name__ == "__main__":
    main()

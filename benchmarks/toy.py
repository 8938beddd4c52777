"""Meta-steps a second on the toy experiment, ours and our peers', on the same work in one run; a JSON file.

    python benchmarks/toy.py --out results/benchmark-toy.json
    python benchmarks/toy.py --targets --out results/benchmark-toy-targets.json

--targets measures what docs/scaling.md has targets for, and nothing else: the ratios to PyTorch, HSML-A against the
package before tasks were spread over devices (from the repository's history), and the time to the first meta-step.
Each row runs in a process of its own, so that its peak memory is its own. Rows take turns (some rounds, the best
counts), so that a busy moment of the machine does not fall on one of them alone.
"""

import argparse
import contextlib
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from result import write_result

TASKS = 25
INNER = {"inner_lr": 0.001, "inner_steps": 5}
OUTER_LR = 1e-6  # the work does not depend on it, and nothing diverges
OURS = {
    # name: (preset, learner, settings)
    "maml": ("toy-5shot", "maml", {}),
    "maml-first-order": ("toy-5shot", "maml", {"first_order": True}),
    "anil": ("toy-5shot", "maml", {"adapts": "head"}),
    "reptile": ("toy-5shot", "reptile", {}),
    "meta-sgd": ("toy-5shot", "meta-sgd", {}),
    "mt-net": ("toy-5shot", "mt-net", {}),
    "mumomaml": ("toy-5shot", "mumomaml", {}),
    "arml": ("toy-5shot", "arml", {}),
    "bmaml": ("toy-5shot", "bmaml", {}),
    "neural-process": ("toy-5shot", "neural-process", {}),
    "hsml": ("toy-5shot", None, {}),
    "hsml-best": ("toy-5shot-best", None, {}),
    "maml, 2 devices": ("toy-5shot", "maml", {"task_blocks": 2}),
    "hsml, 2 devices": ("toy-5shot", None, {"task_blocks": 2}),
}
ON_TWO = ("maml, 2 devices", "hsml, 2 devices")
BEFORE = "ffe92f6"
"""The commit before tasks were spread over devices."""
GOALS = {"maml / PyTorch loop": 65.0, "hsml / PyTorch loop": 30.0, "hsml-best / before": 1.5}
COLD_GOAL = 6.0
PEERS = ["PyTorch, torch.func vmap", "PyTorch, loop over tasks", "PyTorch, Meta-SGD, loop over tasks"]
SCALES = (25, 100, 400, 1600)


def ours(learner_name: str, tasks: int):
    """A function that makes n meta-steps, and the seconds it took to compile."""
    import dataclasses

    from metagrove.devices import configure_cpu, task_mesh

    name, learner, settings = OURS[learner_name]
    devices = settings.get("task_blocks", 1)
    configure_cpu(devices=devices)  # as `metagrove train` does

    import jax
    import jax.numpy as jnp

    from metagrove.config.presets import preset
    from metagrove.training.block import run_block
    from metagrove.training.phases import init_state

    config = preset(name, learner).with_settings(meta_batch=tasks, outer_lr=OUTER_LR, **settings)
    state, tasks = init_state(config), config.source.schedule(config.training.steps)

    def steps(count: int) -> None:
        start = jnp.asarray(0, jnp.int32)
        fresh = dataclasses.replace(state, step=start)
        after, _ = run_block(config.learner, tasks, config.training, fresh, start + count, mesh=task_mesh(devices))
        assert int(jax.block_until_ready(after).step) == count, "a step that was not finite ended the block"

    began = time.perf_counter()
    steps(1)
    return steps, time.perf_counter() - began


def peers(which: str, tasks: int):
    """The same for a peer; PyTorch does not compile."""
    import jax
    import numpy as np
    from peers import make

    from metagrove import Functions

    drawn = jax.vmap(Functions().sample)(jax.random.split(jax.random.key(0), tasks))
    batch = [np.array(a) for a in (drawn.support.x, drawn.support.y, drawn.query.x, drawn.query.y)]
    step = make(which, batch, outer_lr=OUTER_LR, **INNER)
    step()
    return (lambda count: [step() for _ in range(count)]), 0.0


def measure(what: str, tasks: int, seconds: float) -> dict:
    """In this process: meta-steps a second, compile time and peak memory of one row."""
    steps, compile_seconds = peers(what, tasks) if what.startswith("PyTorch") else ours(what, tasks)
    count = 1
    while True:
        began = time.perf_counter()
        steps(count)
        took = time.perf_counter() - began
        if took > seconds:
            break
        count = max(count + 1, int(count * min(10, 1.2 * seconds / max(took, 1e-4))))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "what": what,
        "tasks": tasks,
        "steps_per_second": count / took,
        "compile_seconds": compile_seconds,
        "peak_memory_mb": peak / 1024,
    }


def in_own_process(what: str, tasks: int, seconds: float, script: str = __file__, **environment: str) -> dict:
    command = [sys.executable, script, "--row", what, "--tasks", str(tasks), "--seconds", str(seconds)]
    print(f"{what}, {tasks} tasks", file=sys.stderr)
    result = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    return json.loads(result.stdout.splitlines()[-1])


@contextlib.contextmanager
def package_before() -> Iterator[Path]:
    """The package and its benchmark as they were at `BEFORE`."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", BEFORE, "src", "benchmarks"], cwd=root, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield Path(folder)


def first_step(learner_name: str) -> None:
    """In this process: everything up to the first meta-step, as in a new training."""
    steps, _ = ours(learner_name, TASKS)
    steps(1)


def cold_seconds(learner_name: str, rounds: int) -> float:
    """Seconds from the start of a process to the end of the first meta-step, nothing being compiled before."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
        subprocess.run([sys.executable, __file__, "--first-step", learner_name], check=True, env=environment)
        found.append(time.perf_counter() - began)
    return min(found)


def targets(seconds: float, rounds: int) -> dict:
    """The rows that have targets, in turns, with the ratios and whether the targets are met."""
    names = ["maml", "hsml", "hsml-best", *ON_TWO, "PyTorch, loop over tasks"]
    with package_before() as before:
        old = {"script": str(before / "benchmarks" / "toy.py"), "PYTHONPATH": str(before / "src")}
        measured: list[dict] = []
        for _ in range(rounds):
            measured += [in_own_process(name, TASKS, seconds) for name in names]
            measured.append(in_own_process("hsml-best", TASKS, seconds, **old) | {"what": "hsml-best, before"})
    rows = {name: best_of([row for row in measured if row["what"] == name]) for name in [*names, "hsml-best, before"]}
    rate = {name: row["steps_per_second"] for name, row in rows.items()}
    peer = rate["PyTorch, loop over tasks"]
    ratios = {
        "maml / PyTorch loop": max(rate["maml"], rate["maml, 2 devices"]) / peer,
        "hsml / PyTorch loop": max(rate["hsml"], rate["hsml, 2 devices"]) / peer,
        "hsml-best / before": rate["hsml-best"] / rate["hsml-best, before"],
    }
    goals = [
        {"what": what, "goal": f"≥ {goal:g} ×", "value": ratios[what], "met": ratios[what] >= goal}
        for what, goal in GOALS.items()
    ]
    cold = cold_seconds("hsml", rounds)
    what = "hsml: seconds from a cold start to the first meta-step"
    goals.append({"what": what, "goal": f"≤ {COLD_GOAL:g} s", "value": cold, "met": cold <= COLD_GOAL})
    return {"goals": goals, "rows": list(rows.values()), "measured": measured}


def best_of(rows: list[dict]) -> dict:
    return max(rows, key=lambda row: row["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each measurement takes")
    parser.add_argument("--rounds", type=int, default=3, help="how often each row is measured; the best counts")
    parser.add_argument("--targets", action="store_true", help="only the rows that have targets")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--first-step", help=argparse.SUPPRESS)
    parser.add_argument("--tasks", type=int, default=TASKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(args.row, args.tasks, args.seconds)))
        return None

    if args.first_step:
        return first_step(args.first_step)

    from metagrove.training.folders import provenance

    about = (
        "second order, 25 tasks, 5 support and 10 query points, 5 inner steps, 1-40-40-1; bmaml has 10 particles, "
        "a step of the follower and one of the leader"
    )
    made = {"about": about, "provenance": provenance(shlex.join(["python", *sys.argv]))}
    if args.targets:
        write_result(made | targets(args.seconds, args.rounds), args.out)
        return None
    names = [name for name in (*OURS, *PEERS) if name not in ON_TWO]
    rounds = [{name: in_own_process(name, TASKS, args.seconds) for name in names} for _ in range(args.rounds)]
    rows = {name: best_of([one[name] for one in rounds]) for name in names}
    rate = {name: row["steps_per_second"] for name, row in rows.items()}
    scale = [
        best_of([in_own_process(name, tasks, args.seconds) for _ in range(2)])
        for name in ("maml", "hsml")
        for tasks in SCALES
    ]
    result = {
        **made,
        "ratios": {
            "maml / PyTorch loop": rate["maml"] / rate["PyTorch, loop over tasks"],
            "maml / torch.func vmap": rate["maml"] / rate["PyTorch, torch.func vmap"],
            "meta-sgd / PyTorch loop": rate["meta-sgd"] / rate["PyTorch, Meta-SGD, loop over tasks"],
            "hsml / maml": rate["hsml"] / rate["maml"],
            "maml / bmaml": rate["maml"] / rate["bmaml"],
        },
        "rows": list(rows.values()),
        "rounds": rounds,
        "scale": scale,
    }
    write_result(result, args.out)
    return None


if __name__ == "__main__":
    main()

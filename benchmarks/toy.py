"""Meta-steps a second on the toy experiment, ours and our peers', on the same work in one run; a JSON file.

    python benchmarks/toy.py --out results/benchmark-toy.json

Each row runs in a process of its own, so that its peak memory is its own. Rows take turns (some rounds, the best
counts), so that a busy moment of the machine does not fall on one of them alone.
"""

import argparse
import json
import resource
import shlex
import subprocess
import sys
import time
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
}
PEERS = ["PyTorch, torch.func vmap", "PyTorch, loop over tasks", "PyTorch, Meta-SGD, loop over tasks"]
SCALES = (25, 100, 400, 1600)


def ours(learner_name: str, tasks: int):
    """A function that makes n meta-steps, and the seconds it took to compile."""
    import dataclasses

    import jax
    import jax.numpy as jnp

    from metagrove.config.presets import preset
    from metagrove.training.block import run_block
    from metagrove.training.phases import init_state

    name, learner, settings = OURS[learner_name]
    config = preset(name, learner).with_settings(meta_batch=tasks, outer_lr=OUTER_LR, **settings)
    state, tasks = init_state(config), config.source.schedule(config.training.steps)

    def steps(count: int) -> None:
        start = jnp.asarray(0, jnp.int32)
        fresh = dataclasses.replace(state, step=start)
        after, _ = run_block(config.learner, tasks, config.training, fresh, start + count)
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


def in_own_process(what: str, tasks: int, seconds: float) -> dict:
    command = [sys.executable, __file__, "--row", what, "--tasks", str(tasks), "--seconds", str(seconds)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])


def best_of(rows: list[dict]) -> dict:
    return max(rows, key=lambda row: row["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each measurement takes")
    parser.add_argument("--rounds", type=int, default=3, help="how often each row is measured; the best counts")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--tasks", type=int, default=TASKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(args.row, args.tasks, args.seconds)))
        return

    from metagrove.training.folders import provenance

    names = [*OURS, *PEERS]
    rounds = [{name: in_own_process(name, TASKS, args.seconds) for name in names} for _ in range(args.rounds)]
    rows = {name: best_of([one[name] for one in rounds]) for name in names}
    rate = {name: row["steps_per_second"] for name, row in rows.items()}
    scale = [
        best_of([in_own_process(name, tasks, args.seconds) for _ in range(2)])
        for name in ("maml", "hsml")
        for tasks in SCALES
    ]
    result = {
        "about": (
            "second order, 25 tasks, 5 support and 10 query points, 5 inner steps, 1-40-40-1; bmaml has 10 particles, "
            "a step of the follower and one of the leader"
        ),
        "provenance": provenance(shlex.join(["python", *sys.argv])),
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


if __name__ == "__main__":
    main()

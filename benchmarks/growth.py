"""What a growth event costs: it replaces a compiled step by another, whose compiling is what it costs.

    python benchmarks/growth.py --out results/benchmark-growth.json

Rows take turns (some rounds, the best counts).
"""

import argparse
import dataclasses
import shlex
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from result import write_result

from metagrove.config.presets import preset
from metagrove.training import folders
from metagrove.training.block import run_block
from metagrove.training.phases import init_state


def stepper(config, state):
    """A function that makes n meta-steps, and the seconds that compiling it took."""
    tasks = config.source.schedule(config.training.steps)

    def steps(count):
        fresh = dataclasses.replace(state, step=jnp.asarray(0, jnp.int32))
        after, _ = run_block(config.learner, tasks, config.training, fresh, jnp.asarray(count, jnp.int32))
        jax.block_until_ready(after)

    began = time.perf_counter()
    steps(1)
    return steps, time.perf_counter() - began


def variants():
    """(what, config, state) of each row."""
    config = preset("continual-toy").with_settings(outer_lr=1e-6)
    state = init_state(config)
    yield "2 clusters", config, state
    key = jax.random.key(0)
    learner, meta, opt_state = config.learner.grow(state.meta, state.opt_state, key=key)
    grown = dataclasses.replace(config, learner=learner)
    yield "grown to 3", grown, dataclasses.replace(state, meta=meta, opt_state=opt_state)
    began = config.with_settings(clusters=(3, 2, 1))
    yield "3 from the start", began, init_state(began)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rows = []
    for what, config, state in variants():
        steps, compiling = stepper(config, state)
        rows.append({"what": what, "compile_seconds": compiling, "steps": steps, "seconds": float("inf")})
    for _ in range(args.rounds):
        for row in rows:
            began = time.perf_counter()
            row["steps"](args.steps)
            row["seconds"] = min(row["seconds"], time.perf_counter() - began)
    results = [
        {
            "what": row["what"],
            "compile_seconds": row["compile_seconds"],
            "steps_per_second": args.steps / row["seconds"],
        }
        for row in rows
    ]
    about = {"rounds": args.rounds, "steps": args.steps}
    provenance = folders.provenance(shlex.join(["python", *sys.argv]))
    write_result({**about, "provenance": provenance, "rows": results}, args.out)


if __name__ == "__main__":
    main()

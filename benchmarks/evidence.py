"""What evidence clusters cost: a step of their fit beside one of HSML, and seconds to the paper's error; a JSON file.

    python benchmarks/evidence.py --out results/benchmark-evidence.json

The fit's step has 100 tasks, 8 clusters and one start, HSML's 25 tasks, both with 5 support and 10 query points. The
seconds are those of two commands, `metagrove train toy-5shot-grove` with a short fit and `metagrove show`, with nothing
compiled before; the error of that run on 4,000 test tasks is measured afterwards.
"""

import argparse
import dataclasses
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from result import write_result

PAPER = 0.856
"""The paper's error at 5 points."""
SHORT_FIT = ("--fit-steps", "300", "--fit-lr", "0.03", "--restarts", "1", "--validation-tasks", "500")


def make_steps(name: str, **settings) -> Callable[[int], None]:
    """A function that makes n steps of a preset from its start."""
    import jax
    import jax.numpy as jnp

    from metagrove.config.presets import preset
    from metagrove.training.block import run_block
    from metagrove.training.phases import first_step, init_state

    config = preset(name).with_settings(**settings)
    begin = first_step(config.learner, config.training)
    state, tasks = init_state(config, begin), config.source.schedule(config.training.steps)

    def steps(count: int) -> None:
        fresh = dataclasses.replace(state, step=jnp.asarray(begin, jnp.int32))
        after, _ = run_block(config.learner, tasks, config.training, fresh, jnp.asarray(begin + count, jnp.int32))
        assert int(jax.block_until_ready(after).step) == begin + count

    return steps


def milliseconds(steps: Callable[[int], None], count: int = 200, rounds: int = 5) -> float:
    """Of one step, the best of some rounds."""
    steps(1)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        steps(count)
        times.append(time.perf_counter() - began)
    return 1000 * min(times) / count


def to_the_paper(folder: Path) -> dict:
    """Seconds of the two commands with an empty compilation cache, and the error of their run."""
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    run, metagrove = folder / "run", [sys.executable, "-m", "metagrove"]
    commands = [
        [*metagrove, "train", "toy-5shot-grove", *SHORT_FIT, "--out", str(run)],
        [*metagrove, "show", str(run), "--out", str(folder / "figures")],
    ]
    seconds = []
    for command in commands:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        seconds.append(time.perf_counter() - began)
    import metagrove as mg

    evaluation = mg.evaluate(mg.load(run), num_tasks=4000)
    return {
        "commands": [shlex.join(["metagrove", "train", "toy-5shot-grove", *SHORT_FIT]), "metagrove show RUN"],
        "seconds_to_train": seconds[0],
        "seconds_to_figure": sum(seconds),
        "mse": evaluation.summary.value,
        "mse_ci95": evaluation.summary.value_ci95,
        "paper": PAPER,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paper = to_the_paper(Path(folder))
    fit = milliseconds(make_steps("toy-5shot-grove", restarts=1))
    hsml = milliseconds(make_steps("toy-5shot"))

    from metagrove.training.folders import provenance

    result = {
        "about": "one step of the fit (100 tasks, 8 clusters) beside one meta-step of HSML (25 tasks), 5 points",
        "provenance": provenance(shlex.join(["python", *sys.argv])),
        "fit_step_ms": fit,
        "hsml_step_ms": hsml,
        "fit / hsml": fit / hsml,
        "to_the_paper": paper,
    }
    write_result(result, args.out)


if __name__ == "__main__":
    main()

"""Where the time of a meta-step goes, and what more devices give: measurements for docs/scaling.md; a JSON file.

    python benchmarks/scaling.py --out results/benchmark-scaling.json

- `peak`: what a core can do, by a product of large matrices on one thread.
- `rows`: seconds of a meta-step that is cut into four blocks of tasks, on 1, 2 and 4 CPU devices, and on 1 device with
  half the tasks; floating-point operations of the meta-step, as XLA counts them, and the number of meta-parameters.
- `model`: from the two rows on 1 device, seconds = a · tasks + u; more devices share the first term and repeat the
  second. What that predicts for 2 and 4 devices stands beside what was measured.

Each row runs in a process of its own. Images are random bytes: no data are needed.
"""

import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import images
import toy
from result import write_result

BLOCKS = 4
SIZE = 28
CASES = {
    # name: (row of the other benchmarks, tasks)
    "MAML, functions": ("maml", 24),
    "HSML, functions": ("hsml", 24),
    "HSML-A, functions": ("hsml-best", 24),
    f"MAML, images, {SIZE} px": ("maml", 8),
}
PLACES = [(1, 1.0), (1, 0.5), (2, 1.0), (4, 1.0)]
"""Devices, and the part of the tasks."""


def config_of(case: str, tasks: int) -> tuple[Any, Any]:
    """The settings of a case, and its tasks."""
    from metagrove.config.presets import preset
    from metagrove.sources.source import Steady

    row, _ = CASES[case]
    if "images" in case:
        settings = {"meta_batch": tasks, "task_blocks": BLOCKS, "task_chunk_size": max(1, tasks // BLOCKS)}
        return images.our_config(row, SIZE, **settings), Steady(images.random_episodes(SIZE))
    name, learner, settings = toy.OURS[row]
    how = {"meta_batch": tasks, "task_blocks": BLOCKS, "outer_lr": toy.OUTER_LR}
    config = preset(name, learner).with_settings(**how, **settings)
    return config, config.source.schedule(config.training.steps)


def measure(case: str, devices: int, tasks: int, seconds: float) -> dict[str, Any]:
    """In this process: seconds of a meta-step, its operations and its meta-parameters."""
    from metagrove.devices import configure_cpu, task_mesh

    configure_cpu(devices=devices, few_passes="images" not in case)

    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from metagrove import inner
    from metagrove.outer import meta_gradient
    from metagrove.training.block import run_block
    from metagrove.training.phases import init_state

    config, schedule = config_of(case, tasks)
    state, mesh = init_state(config), task_mesh(devices)

    def steps(count: int) -> None:
        fresh = dataclasses.replace(state, step=jnp.zeros((), jnp.int32))
        end = jnp.asarray(count, jnp.int32)
        after, _ = run_block(config.learner, schedule, config.training, fresh, end, mesh=mesh)
        assert int(jax.block_until_ready(after).step) == count, "a step that was not finite ended the block"

    steps(1)
    count, took = 1, images.timed(steps, 1)
    while took * count < seconds:
        count = max(count + 1, int(1.2 * seconds / took))
        took = images.timed(steps, count)
    found = {"case": case, "devices": devices, "tasks": tasks, "seconds_per_step": took}
    if devices > 1:
        return found
    inner.MAX_UNROLLED_STEPS = 100  # what XLA counts of a loop is one pass
    drawn = jax.vmap(schedule.at(state.step).sample)(jax.random.split(jax.random.key(0), tasks))
    arrays, static = eqx.partition(state.meta, eqx.is_array)

    def gradient(arrays: Any) -> Any:
        meta = eqx.combine(arrays, static)
        return meta_gradient(config.learner, meta, drawn, key=jax.random.key(0))[2]

    cost: Any = jax.jit(lambda arrays: eqx.filter(gradient(arrays), eqx.is_array)).lower(arrays).cost_analysis()
    numbers = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(state.meta, eqx.is_inexact_array)))
    return found | {"operations": float(cost["flops"]), "meta_parameters": numbers}


def peak() -> float:
    """In this process: floating-point operations a second of a product of large matrices on one thread."""
    from metagrove.devices import configure_cpu

    configure_cpu()

    import jax
    import jax.numpy as jnp

    size, product = 1500, jax.jit(jnp.matmul)
    matrix = jnp.ones((size, size))
    jax.block_until_ready(product(matrix, matrix))
    best = 0.0
    for _ in range(8):
        began = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def in_own_process(*arguments: Any) -> Any:
    print(" ".join(map(str, arguments)), file=sys.stderr)
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def model(rows: list[dict[str, Any]], cores: int) -> list[dict[str, Any]]:
    """The cost model of each case against what was measured."""
    found = []
    for case in CASES:
        mine = [row for row in rows if row["case"] == case]
        whole, half = (row for row in mine if row["devices"] == 1)
        each = max(0.0, whole["seconds_per_step"] - half["seconds_per_step"]) / (whole["tasks"] - half["tasks"])
        update = max(0.0, whole["seconds_per_step"] - each * whole["tasks"])
        for row in mine:
            busy = min(row["devices"], cores)
            predicted = each * row["tasks"] / busy + update * row["devices"] / busy
            found.append({**row, "seconds_per_task": each, "update_seconds": update, "predicted_seconds": predicted})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each measurement takes at least")
    parser.add_argument("--row", nargs=3, metavar=("CASE", "DEVICES", "TASKS"), help=argparse.SUPPRESS)
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        return print(json.dumps(peak()))
    if args.row:
        case, devices, tasks = args.row
        return print(json.dumps(measure(case, int(devices), int(tasks), args.seconds)))

    from metagrove.devices import usable_cores
    from metagrove.training.folders import provenance

    places = [(case, devices, int(part * tasks)) for case, (_, tasks) in CASES.items() for devices, part in PLACES]
    rows = [in_own_process("--row", *place, "--seconds", args.seconds) for place in places]
    result = {
        "about": f"meta-steps cut into {BLOCKS} blocks of tasks; a core's peak is that of a product of large matrices",
        "provenance": provenance(shlex.join(["python", *sys.argv])) | {"load_before": os.getloadavg()[0]},
        "peak_operations_per_second": in_own_process("--peak"),
        "rows": model(rows, usable_cores()),
    }
    return write_result(result, args.out)


if __name__ == "__main__":
    main()

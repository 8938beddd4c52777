"""CPU seconds and memory of a meta-step of every method beside MAML's and ProtoNet's, in one run; a JSON file.

    python benchmarks/methods.py --out results/benchmark-methods.json

Images are random bytes of 32 × 32 pixels: 4 tasks a meta-step, 5 ways, 1 shot, 15 queries a class, one Conv-4 of 32
channels (mAP-DLM: 8 ways; Reptile as published: 15 images a class, minibatches of 10). Some rows are as published, for
which costs were estimated: metric methods and SNAIL with 64 channels, and the meta-learner LSTM at 84 pixels, beside
MAML with as many inner steps. Methods that do not read images are measured on functions, beside MAML on functions.
Every row has a process of its own with one thread, so that its peak memory is its own, and --workers of them run at a
time, each on its own core. CPU seconds are counted, and the best of several rounds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from result import write_result

from metagrove.workers.pool import cores_of_workers

SIZE, TASKS, FILTERS = 32, 4, 32
CLASSES, IMAGES = 20, 20  # of the pool, and of each class
EPISODE = {"ways": 5, "shots": 1, "queries": 15}
INNER = {"inner_lr": 0.05, "inner_steps": 5}
Settings = dict[str, Any]
REPTILE: Settings = {"inner_rule": "adam", "inner_steps": 8, "minibatch": 10, "outer_rule": "sgd", "outer_lr": 1.0}
ON_IMAGES: dict[str, tuple[str, Settings]] = {
    # row: learner, settings
    "protonet": ("protonet", {}),
    "maml": ("maml", INNER),
    "maml, first order": ("maml", {**INNER, "first_order": True}),
    "hsml": ("hsml", INNER),
    "meta-sgd": ("meta-sgd", INNER),
    "mt-net": ("mt-net", INNER),
    "mumomaml": ("mumomaml", INNER),
    "arml": ("arml", INNER),
    "reptile": ("reptile", INNER),
    "reptile, as published": ("reptile", REPTILE),
    "matching-net": ("matching-net", {}),
    "matching-net-fce": ("matching-net-fce", {}),
    "relation-net": ("relation-net", {}),
    "gnn": ("gnn", {}),
    "map-dlm": ("map-dlm", {}),
    "snail": ("snail", {}),
    "meta-lstm": ("meta-lstm", {"inner_steps": 12}),
    "bmaml": ("bmaml", INNER),
    "platipus": ("platipus", INNER),
    "platipus, first-order offsets": ("platipus", {**INNER, "first_order_offsets": True}),
    "llama": ("llama", INNER),
}
LARGE: Settings = {"inner_steps": 12, "size": 84}
ON_IMAGES |= {
    "maml, first order, 12 steps, 84 px": ("maml", {**LARGE, "inner_lr": 0.05, "first_order": True}),
    "meta-lstm, 84 px": ("meta-lstm", LARGE),
}
WIDE: Settings = {"filters": 64}
ON_IMAGES |= {
    f"{name}, 64 channels": (name, WIDE)
    for name in ("protonet", "matching-net-fce", "relation-net", "gnn", "map-dlm", "snail")
}
EIGHT_WAYS = {"ways": 8}
EPISODES = {
    "map-dlm": EIGHT_WAYS,
    "map-dlm, 64 channels": EIGHT_WAYS,
    "reptile, as published": {"queries": 14},
}
ON_FUNCTIONS: dict[str, tuple[str, Settings]] = {
    "maml, functions": ("maml", {}),
    "neural-process": ("neural-process", {}),
    "scratch": ("scratch", {}),
}
ESTIMATES: dict[str, tuple[str, float]] = {
    # row: the row that it is estimated beside, and the estimated ratio of their costs
    "relation-net, 64 channels": ("protonet, 64 channels", 3.5),
    "gnn, 64 channels": ("protonet, 64 channels", 1.3),
    "map-dlm, 64 channels": ("protonet, 64 channels", 1.5),
    "snail, 64 channels": ("protonet, 64 channels", 1.5),
    "matching-net-fce, 64 channels": ("protonet, 64 channels", 2.0),
    "platipus": ("maml", 1.4),
    "platipus, first-order offsets": ("maml", 1.4),
    "reptile, as published": ("maml", 0.6),
    "llama": ("maml", 1.8),
    "meta-lstm": ("maml, first order", 1.0),
    "meta-lstm, 84 px": ("maml, first order, 12 steps, 84 px", 1.0),
}
TOLERANCE = 1.5
ROUNDS = 3
LEAST_SECONDS = 0.7  # CPU seconds of a timed round


def make_steps(row: str) -> Any:
    """A function that makes n meta-steps, as a training does."""
    import dataclasses

    import jax
    import jax.numpy as jnp

    from metagrove.config.presets import preset
    from metagrove.sources.episodes import random_episodes
    from metagrove.sources.source import Steady
    from metagrove.training.block import run_block
    from metagrove.training.phases import init_state

    on_images = row in ON_IMAGES
    learner, own = {**ON_IMAGES, **ON_FUNCTIONS}[row]
    if on_images:
        settings = {"meta_batch": TASKS, "task_chunk_size": 1, "filters": FILTERS, "size": SIZE, **own}
        config = preset("images-1shot", learner).with_settings(**settings)
        episode = {**EPISODE, **EPISODES.get(row, {})}
        tasks = Steady(random_episodes(CLASSES, IMAGES, settings["size"], **episode))
    else:
        config = preset("toy-5shot", learner).with_settings(**own)
        tasks = config.source.schedule(1)
    state = init_state(config)

    def steps(count: int) -> None:
        start = jnp.asarray(0, jnp.int32)
        fresh = dataclasses.replace(state, step=start)
        after, _ = run_block(config.learner, tasks, config.training, fresh, start + count)
        assert int(jax.block_until_ready(after).step) == count, "a step that was not finite ended the block"

    return steps


def measure_here(row: str) -> None:
    """In a process of its own: print what a meta-step of this row costs."""
    steps = make_steps(row)
    began = time.process_time()
    steps(1)
    first = time.process_time() - began
    count, seconds = 1, cpu_seconds(steps, 1)
    while count * seconds < LEAST_SECONDS:
        count *= 2
        seconds = cpu_seconds(steps, count)
    seconds = min(seconds, *(cpu_seconds(steps, count) for _ in range(ROUNDS - 1)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds_per_step": seconds, "first_seconds": first, "peak_memory_mb": memory}))


def cpu_seconds(steps: Any, count: int) -> float:
    """CPU seconds of each of so many meta-steps."""
    began = time.process_time()
    steps(count)
    return (time.process_time() - began) / count


def measure(row: str) -> Settings:
    """Start a process for this row and read what it prints."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    command = [sys.executable, __file__, "--row", row]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{row} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{row}: {found['seconds_per_step']:.4f} s, {found['peak_memory_mb']:.0f} MB", file=sys.stderr, flush=True)
    return found


def measure_all(names: list[str], workers: int) -> dict[str, Settings]:
    """Measure rows, several at a time, each worker on its own core."""
    cores = iter(cores_of_workers(workers))

    def pin() -> None:
        os.sched_setaffinity(0, next(cores))  # of this thread; a process that it starts inherits it

    with ThreadPoolExecutor(workers, initializer=pin) as threads:
        return dict(zip(names, threads.map(measure, names), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], help="print the costs of these rows alone")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        measure_here(args.row)
        return
    from metagrove.training.folders import provenance

    names = args.only or [*ON_IMAGES, *ON_FUNCTIONS]
    best = measure_all(names, args.workers)
    if args.only:
        return
    rows = [{"method": name, **best[name], **beside_maml(name, best)} for name in names]
    goals = [goal(name, best) for name in ESTIMATES]
    about = {"what": __doc__.splitlines()[0], "provenance": provenance("python benchmarks/methods.py")}
    write_result({**about, "rows": rows, "goals": goals}, args.out)


def beside_maml(name: str, best: dict[str, Settings]) -> Settings:
    """Cost and memory as multiples of MAML's on the same kind of tasks."""
    maml = best["maml" if name in ON_IMAGES else "maml, functions"]
    return {
        "seconds_beside_maml": best[name]["seconds_per_step"] / maml["seconds_per_step"],
        "memory_beside_maml": best[name]["peak_memory_mb"] / maml["peak_memory_mb"],
    }


def goal(name: str, best: dict[str, Settings]) -> Settings:
    """The measured ratio beside the estimated one."""
    beside, estimate = ESTIMATES[name]
    ratio = best[name]["seconds_per_step"] / best[beside]["seconds_per_step"]
    within = ratio <= TOLERANCE * estimate
    return {"method": name, "beside": beside, "estimate": estimate, "measured": ratio, "within": within}


if __name__ == "__main__":
    main()

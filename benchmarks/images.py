"""Seconds a meta-step on images, ours and PyTorch's, on the same work in one run; a JSON file.

    python benchmarks/images.py --out results/benchmark-images.json
    python benchmarks/images.py --targets --out results/benchmark-image-targets.json

--targets measures MAML and PyTorch alone, and MAML whose inner steps are computed again in the backward pass.

First both are given the same weights and tasks, in float64, and must agree on the query loss and the meta-gradient.
Then each row has a process of its own, so that its peak memory is its own. It is started twice: the first time it
compiles, the second time it finds what was compiled on disk, as `metagrove` does. Rows that are compared take turns
(some rounds, the best counts), so that a busy moment of the machine does not fall on one of them alone.
Images are random bytes: no data are needed.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from result import write_result
from toy import OUTER_LR

TASKS, FILTERS = 4, 32
EPISODE = {"ways": 5, "shots": 1, "queries": 15}
INNER = {"inner_lr": 0.05, "inner_steps": 5}
CLASSES, PICTURES = 20, 20  # of the pool, and of each class
PEER = "PyTorch, loop over tasks"
PLAIN = "maml, plain convolution after the first block"
SMALL_HSML = {"gate_rank": 16, "gate": "affine", "embed": "mean"}

Row = dict[str, Any]
Settings = dict[str, Any]
OURS: dict[str, tuple[str | None, Settings]] = {
    # name: (learner, settings); without a learner, the preset's own
    "maml": ("maml", INNER),
    "hsml": (None, INNER),
    "hsml, small gate": (None, INNER | SMALL_HSML),
    "maml, 2 tasks in flight": ("maml", INNER | {"task_chunk_size": 2}),
    "maml, 4 tasks in flight": ("maml", INNER | {"task_chunk_size": 4}),
    PLAIN: ("maml", INNER),
    "maml-first-order": ("maml", INNER | {"first_order": True}),
    "anil": ("maml", INNER | {"adapts": "head"}),
    "meta-sgd": ("meta-sgd", {}),
    "mt-net": ("mt-net", {}),
    "mumomaml": ("mumomaml", {}),
    "reptile": ("reptile", {}),
    "arml": ("arml", {}),
    "protonet": ("protonet", {}),
    "matching-net": ("matching-net", {}),
    "bmaml": ("bmaml", {}),
}
RECOMPUTED = "maml, inner steps recomputed"
OURS[RECOMPUTED] = ("maml", INNER | {"recompute_inner_steps": True})
TURNS = ("maml", PEER, "hsml", "hsml, small gate")
TARGETS = ("maml", PEER, RECOMPUTED)
SPEED_TARGETS = {28: 2.7, 84: 2.0}
MEMORY_TARGET = 1.5
IN_FLIGHT = ("maml, 2 tasks in flight", "maml, 4 tasks in flight")
OTHERS = tuple(name for name in OURS if name not in (*TURNS, *IN_FLIGHT))

GOAL_SPEED, GOAL_MEMORY, GOAL_HSML = 1.5, 1.5, 1.4
ABOUT = (
    f"one meta-step: {TASKS} tasks, {EPISODE['ways']}-way {EPISODE['shots']}-shot, {EPISODE['queries']} query "
    f"images a class, Conv-4 with {FILTERS} filters, Adam; MAML and HSML take {INNER['inner_steps']} inner "
    "steps, second order; the others as their presets have them; one task in flight where not said, on as many CPU "
    "devices as there are cores; peak_memory_mb is the whole process's at its first start, when it compiles, "
    "again_memory_mb at a later one, when what was compiled is on disk; imports_mb is what it had before any work"
)
CHECK_SIZE, CHECK_FILTERS, CHECK_TASKS, CHECK_TOLERANCE = 16, 4, 2, 1e-6
BUSY = 0.5  # processes that want a core before the measurement begins


# What is measured


def random_pool(size: int) -> np.ndarray:
    """Images as bytes: (classes, images of each, height, width, 3)."""
    return np.random.default_rng(0).integers(0, 256, (CLASSES, PICTURES, size, size, 3), np.uint8)


def random_episodes(size: int) -> Any:
    """Our tasks, from the same random images."""
    from metagrove.sources import episodes

    return episodes.random_episodes(CLASSES, PICTURES, size, **EPISODE)


def our_config(name: str, size: int, **settings: Any) -> Any:
    """The preset for images with this row's learner."""
    from metagrove.config.presets import preset

    learner, own = OURS[name]
    work = {"meta_batch": TASKS, "task_chunk_size": 1, "filters": FILTERS, "outer_lr": OUTER_LR, "size": size}
    return preset("images-1shot", learner).with_settings(**{**EPISODE, **work, **own, **settings})


def ours(name: str, size: int) -> Callable[[int], None]:
    """A function that makes n meta-steps, as a training does."""
    import dataclasses

    from metagrove.devices import configure_cpu, task_mesh, usable_cores
    from metagrove.training.step import cut_of

    config = our_config(name, size)
    devices = min(cut_of(config.training).blocks, usable_cores())
    configure_cpu(devices=devices, one_thread=devices > 1, few_passes=False)  # as `metagrove train` does

    import jax
    import jax.numpy as jnp

    from metagrove.nets import conv4, convolution
    from metagrove.sources.source import Steady
    from metagrove.training.block import run_block
    from metagrove.training.phases import init_state

    if name == PLAIN:
        conv4.conv = convolution.plain_conv
    tasks, state = Steady(random_episodes(size)), init_state(config)

    def steps(count: int) -> None:
        start = jnp.asarray(0, jnp.int32)
        fresh = dataclasses.replace(state, step=start)
        after, _ = run_block(config.learner, tasks, config.training, fresh, start + count, mesh=task_mesh(devices))
        assert int(jax.block_until_ready(after).step) == count, "a step that was not finite ended the block"

    return steps


def peers(size: int) -> Callable[[int], None]:
    """The same for PyTorch."""
    import torch
    from peers import make_images

    images = torch.from_numpy(random_pool(size)).permute(0, 1, 4, 2, 3).contiguous()
    step = make_images(images, tasks=TASKS, filters=FILTERS, outer_lr=OUTER_LR, episode=EPISODE, inner=INNER)

    def steps(count: int) -> None:
        for _ in range(count):
            step()

    return steps


# A row's own process


def import_all(name: str) -> None:
    if name == PEER:
        import peers  # noqa: F401
    else:
        import metagrove.training.loop  # noqa: F401


def peak_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(steps: Callable[[int], None], count: int) -> float:
    """Seconds a step."""
    began = time.perf_counter()
    steps(count)
    return (time.perf_counter() - began) / count


def serve(name: str, size: int, most_steps: int, seconds: float) -> None:
    """In the row's process: say what the first steps cost, then measure once for each line that comes in."""
    import_all(name)
    imports_mb = peak_memory_mb()
    steps = peers(size) if name == PEER else ours(name, size)
    first, second = timed(steps, 1), timed(steps, 1)
    count = max(1, min(most_steps, int(seconds / second)))
    say(compile_seconds=max(0.0, first - second), imports_mb=imports_mb, peak_memory_mb=peak_memory_mb())
    for _ in sys.stdin:
        say(seconds_per_step=timed(steps, count), steps=count, again_memory_mb=peak_memory_mb())


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


# The parent


class RowError(Exception):
    """A row's process ended before its time; what it said is on standard error."""


def own_command(*arguments: str) -> list[str]:
    return [sys.executable, __file__, *arguments]


@contextlib.contextmanager
def worker(name: str, size: int, args: argparse.Namespace, kept: str) -> Iterator[subprocess.Popen[str]]:
    """A row's process, which keeps what it compiles in that folder; within, it is there and waits."""
    limits = ["--steps", str(args.steps), "--seconds", str(args.seconds)]
    command = own_command("--row", name, "--sizes", str(size), *limits)
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": kept}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.stdin.close()


def hear(process: subprocess.Popen[str], name: str) -> Row:
    line = process.stdout.readline()
    if not line:
        raise RowError(f"{name} ended with code {process.wait()}")
    return json.loads(line)


def take_turns(names: tuple[str, ...], size: int, args: argparse.Namespace) -> dict[str, Row]:
    """Rows that are compared with each other: each is started, then all are started again and measured in turns."""
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(tempfile.TemporaryDirectory())
        workers: dict[str, subprocess.Popen[str]] = {}
        rows: dict[str, Row] = {}
        for name in names:
            print(f"{size} px: {name}", file=sys.stderr)
            with worker(name, size, args, kept) as process:
                rows[name] = {"what": name, "size": size, **hear(process, name), "rounds": []}
        for name in names:
            workers[name] = stack.enter_context(worker(name, size, args, kept))
            rows[name]["again_compile_seconds"] = hear(workers[name], name)["compile_seconds"]
        for _ in range(args.rounds):
            for name, process in workers.items():
                process.stdin.write("go\n")
                process.stdin.flush()
                note(rows[name], hear(process, name))
    return rows


def note(row: Row, measured: Row) -> None:
    """Add a round to a row; the best counts."""
    row["rounds"].append(measured["seconds_per_step"])
    row["seconds_per_step"] = min(row["rounds"])
    row |= {name: measured[name] for name in ("steps", "again_memory_mb")}


def alone(name: str, size: int, args: argparse.Namespace) -> Row:
    """A row of its own; one that fails does not take the others with it."""
    try:
        return take_turns((name,), size, args)[name]
    except RowError as error:
        return {"what": name, "size": size, "error": str(error)}


# Do both do the same?


def to_peer(net: Any) -> list[np.ndarray]:
    """Our weights, or their gradient, in PyTorch's order: channels before height and width, outputs first."""
    blocks = [a for k, b in zip(net.kernels, net.biases, strict=True) for a in (np.transpose(k, (3, 2, 0, 1)), b)]
    side = CHECK_SIZE >> len(net.kernels)
    head = np.reshape(net.head_weight, (side, side, CHECK_FILTERS, -1)).transpose(3, 2, 0, 1)
    return [np.array(a) for a in (*blocks, head.reshape(len(head), -1), net.head_bias)]


def peer_tasks(tasks: Any) -> list[Any]:
    """Our batch of tasks as PyTorch's."""
    import torch

    def images(x: Any) -> Any:
        return torch.from_numpy(np.array(x).transpose(0, 1, 4, 2, 3).copy())

    def labels(y: Any) -> Any:
        return torch.from_numpy(np.array(y).argmax(-1))

    support, query = tasks.support, tasks.query
    return list(zip(images(support.x), labels(support.y), images(query.x), labels(query.y), strict=True))


def differences() -> Row:
    """In float64, with the same weights and tasks: how far the query loss and the meta-gradient are apart."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import torch
    from peers import query_loss

    from metagrove.outer import meta_gradient

    config = our_config("maml", CHECK_SIZE, filters=CHECK_FILTERS)
    meta = config.learner.init(config.source.spec, key=jax.random.key(0))
    tasks = jax.vmap(random_episodes(CHECK_SIZE).sample)(jax.random.split(jax.random.key(1), CHECK_TASKS))
    meta, tasks = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, (meta, tasks)
    )
    gradient = eqx.filter_jit(meta_gradient)
    loss, _, grads = gradient(config.learner, meta, tasks, key=jax.random.key(2), task_chunk_size=1)

    params = [torch.from_numpy(a).requires_grad_() for a in to_peer(meta)]
    peer_loss = sum(query_loss(params, task, **INNER) for task in peer_tasks(tasks)) / CHECK_TASKS
    peer_grads = torch.autograd.grad(peer_loss, params)
    apart = [relative(a, b.numpy()) for a, b in zip(to_peer(grads), peer_grads, strict=True)]
    return {"query_loss": relative(np.array(loss), peer_loss.detach().numpy()), "meta_gradient": max(apart)}


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, in parts of the largest value."""
    assert a.dtype == b.dtype == np.float64, f"expected float64, got {a.dtype} and {b.dtype}"
    assert a.shape == b.shape, f"shapes differ: {a.shape} and {b.shape}"
    return float(np.abs(a - b).max() / np.abs(a).max())


def check() -> Row:
    """Refuse to measure what is not the same."""
    environment = {**os.environ, "JAX_ENABLE_X64": "1"}
    result = subprocess.run(own_command("--check"), check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found = json.loads(result.stdout.splitlines()[-1])
    if not max(found.values()) <= CHECK_TOLERANCE:
        sys.exit(f"PyTorch's MAML and ours are not the same, nothing was measured: {found}, at most {CHECK_TOLERANCE}")
    return found


# The whole


def measure_all(sizes: list[int], args: argparse.Namespace) -> list[Row]:
    """Every row at every size; the other learners and the plain convolution at the smallest alone."""
    rows: list[Row] = []
    for size in sizes:
        rows += take_turns(TURNS, size, args).values()
        rows += [alone(name, size, args) for name in IN_FLIGHT]
    return rows + [alone(name, min(sizes), args) for name in OTHERS]


def compare(rows: list[Row], sizes: list[int]) -> tuple[dict[str, float], list[Row]]:
    """Ratios between rows, and the goals."""
    found = {(row["what"], row["size"]): row for row in rows if "error" not in row}
    ratios: dict[str, float] = {}
    goals: list[Row] = []

    def ratio(what: str, field: str, over: tuple[str, int], under: tuple[str, int]) -> float:
        ratios[what] = found[over][field] / found[under][field]
        return ratios[what]

    def goal(what: str, sign: str, bound: float) -> None:
        met = ratios[what] >= bound if sign == "≥" else ratios[what] <= bound
        goals.append({"what": what, "goal": f"{sign} {bound}", "value": ratios[what], "met": met})

    for size in sizes:
        maml, peer = ("maml", size), (PEER, size)
        speed, memory = f"{size} px: PyTorch's seconds / maml's", f"{size} px: maml's peak memory / PyTorch's"
        ratio(speed, "seconds_per_step", peer, maml)
        goal(speed, "≥", GOAL_SPEED)
        for when, field in ((", first start", "peak_memory_mb"), (", later starts", "again_memory_mb")):
            ratio(memory + when, field, maml, peer)
            goal(memory + when, "≤", GOAL_MEMORY)
        for name, at in found:
            if at == size and name not in ("maml", PEER):
                ratio(f"{size} px: {name}'s seconds / maml's", "seconds_per_step", (name, at), maml)
        for name in ("hsml", "hsml, small gate"):
            goal(f"{size} px: {name}'s seconds / maml's", "≤", GOAL_HSML)
    return ratios, goals


def targets(args: argparse.Namespace) -> Row:
    """The rows that have targets, in turns, and whether the targets are met."""
    rows = [row for size in args.sizes for row in take_turns(TARGETS, size, args).values()]
    found, goals = {(row["what"], row["size"]): row for row in rows}, []

    def goal(what: str, value: float, bound: float, sign: str) -> None:
        met = value >= bound if sign == "≥" else value <= bound
        goals.append({"what": what, "goal": f"{sign} {bound:g} ×", "value": value, "met": met})

    for size in args.sizes:
        maml, peer = found["maml", size], found[PEER, size]
        speed = peer["seconds_per_step"] / maml["seconds_per_step"]
        goal(f"{size} px: PyTorch's seconds / maml's", speed, SPEED_TARGETS.get(size, 2.0), "≥")
    maml, peer = found["maml", args.sizes[0]], found[PEER, args.sizes[0]]
    what = f"{args.sizes[0]} px: maml's peak memory / PyTorch's, first start"
    goal(what, maml["peak_memory_mb"] / peer["peak_memory_mb"], MEMORY_TARGET, "≤")

    from metagrove.training.folders import provenance

    made = provenance(shlex.join(["python", *sys.argv])) | {"torch": torch_version()}
    return {"about": ABOUT, "provenance": made, "goals": goals, "rows": rows}


def report(args: argparse.Namespace) -> Row:
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"the machine is busy (load {load:.1f}): these numbers will say little", file=sys.stderr)
    same = check()
    rows = measure_all(args.sizes, args)
    ratios, goals = compare(rows, args.sizes)

    from metagrove.training.folders import provenance  # now: a row's process would count its parent's memory as its own

    return {
        "about": ABOUT,
        "provenance": provenance(shlex.join(["python", *sys.argv])) | {"torch": torch_version(), "load_before": load},
        "same": {**same, "about": "largest relative difference to PyTorch's, float64, after the inner steps"},
        "goals": goals,
        "ratios": ratios,
        "rows": rows,
    }


def torch_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[28, 84], help="heights of the images, 16 or more")
    parser.add_argument("--rounds", type=int, default=3, help="how often each row is measured; the best counts")
    parser.add_argument("--steps", type=int, default=4, help="most meta-steps of a measurement")
    parser.add_argument("--seconds", type=float, default=6.0, help="about the longest that it takes")
    parser.add_argument("--targets", action="store_true", help="only the rows that have targets")
    parser.add_argument("--row", choices=[PEER, *OURS], help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        return serve(args.row, args.sizes[0], args.steps, args.seconds)
    if args.check:
        return say(**differences())
    write_result(targets(args) if args.targets else report(args), args.out)
    return None


if __name__ == "__main__":
    main()

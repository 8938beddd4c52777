"""Meta-training (paper, algorithm 1): one flat loop around a compiled block of many meta-steps."""

import bisect
import contextlib
import copy
import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from metagrove import files
from metagrove.config.config import Config, Training, check_config, to_json
from metagrove.errors import DivergedError
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta
from metagrove.losses import is_better, metric_of
from metagrove.outer import meta_gradient
from metagrove.sources.source import TaskDraw
from metagrove.sources.stream import Stream, tasks_at
from metagrove.train import checkpoint, folders
from metagrove.train.growth import Watch, as_grown, change_clusters, clusters_of, describe_growth
from metagrove.train.progress import Progress
from metagrove.train.validate import describe, validate

NOTHING_YET: dict[str, Any] = {
    "best": None,
    "seconds": 0.0,
    "steps_per_second": 0.0,
    "peak_memory_mb": 0.0,
    "watch": dataclasses.asdict(Watch()),
}
"""What a new run knows of itself."""


class State(eqx.Module):
    """All that the next meta-step needs."""

    meta: Meta
    opt_state: optax.OptState
    step: Int[Array, ""]


class Block(eqx.Module):
    """What a person wants to see of a block of meta-steps: means over it, and whether it ended well."""

    means: dict[str, Float[Array, ""]]
    finite: dict[str, Bool[Array, ""]]


def init_state(config: Config) -> State:
    """The start of a run, decided by its seed."""
    meta = config.learner.init(config.source.spec, key=key_for("init", config.training.seed))
    opt_state = config.training.optimizer().init(eqx.filter(meta, eqx.is_inexact_array))
    return State(meta, opt_state, jnp.zeros((), jnp.int32))


def started(config: Config, tasks: TaskDraw) -> State:
    """The same, as the learner would have it after a look at training tasks."""
    state, training = init_state(config), config.training
    mix = tasks_at(tasks, state.step, training.steps)
    meta = config.learner.start(state.meta, mix, key=key_for("start", training.seed))
    return dataclasses.replace(state, meta=meta)


NOT_COMPILED = ("seed", "log_every", "validate_every", "validation_tasks", "max_eval_inner_steps")
"""Settings of `Training` that the compiled meta-step does not depend on."""


def run_block(
    learner: Learner, source: TaskDraw, training: Training, state: State, stop: Int[Array, ""]
) -> tuple[State, Block]:
    """Meta-steps up to `stop`, or up to the first that is not finite: its update is not made.

    A step depends on the seed, the state and its own number, never on where blocks begin and end. The seed is data:
    another one compiles nothing anew.
    """
    compiled = dataclasses.replace(training, **{name: getattr(Training(), name) for name in NOT_COMPILED})
    return _run_block(learner, source, compiled, key_for("train", training.seed), state, stop)


@eqx.filter_jit
def _run_block(
    learner: Learner, source: TaskDraw, training: Training, key: PRNGKeyArray, state: State, stop: Int[Array, ""]
) -> tuple[State, Block]:
    optimizer = training.optimizer()
    arrays, static = eqx.partition(state, eqx.is_array)

    @functools.partial(jax.jit, inline=True)  # traced once, though it is asked for twice
    def meta_step(arrays: State) -> tuple[State, dict[str, Array]]:
        state = eqx.combine(arrays, static)
        task_key, learner_key = jax.random.split(jax.random.fold_in(key, state.step))
        mix = tasks_at(source, state.step, training.steps)
        tasks = jax.vmap(mix.sample)(jax.random.split(task_key, training.meta_batch))
        loss, metrics, grads = meta_gradient(
            learner, state.meta, tasks, key=learner_key, task_chunk_size=training.task_chunk_size
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, eqx.filter(state.meta, eqx.is_inexact_array))
        seen = {"loss": loss, "gradient_norm": optax.tree.norm(grads), **metrics}
        after = State(eqx.apply_updates(state.meta, updates), opt_state, state.step + 1)
        return eqx.filter(after, eqx.is_array), seen

    def go_on(carry) -> Array:
        arrays, _, finite = carry
        return (arrays.step < stop) & jnp.stack(list(finite.values())).all()

    def body(carry):
        arrays, sums, _ = carry
        new, seen = meta_step(arrays)
        finite = jax.tree.map(jnp.isfinite, seen)
        ok = jnp.stack(list(finite.values())).all()
        kept = jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, arrays)
        return kept, jax.tree.map(jnp.add, sums, seen), finite

    _, names = jax.eval_shape(meta_step, arrays)
    sums = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), names)
    finite = jax.tree.map(lambda s: jnp.ones(s.shape, bool), names)
    after, sums, finite = jax.lax.while_loop(go_on, body, (arrays, sums, finite))
    count = jnp.maximum(after.step - arrays.step, 1)
    return eqx.combine(after, static), Block(jax.tree.map(lambda s: s / count, sums), finite)


def train(config: Config, folder: Path, *, resume: bool = False, command: str = "") -> bool:
    """Train into `folder`; with `resume`, go on from its last checkpoint. False if a person stopped it."""
    check_config(config)
    training = config.training
    if resume:
        folders.check_same_config(folder, to_json(config))  # first: a folder that is not there is not made
    with folders.locked(folder), interruptible() as interrupted:
        tasks = config.source.split("train")
        config, state, so_far = begin(config, folder, tasks, resume=resume, command=command)
        with Progress(training.steps, start=int(state.step)) as progress:
            while (step := int(state.step)) < training.steps:
                began = time.monotonic()
                state, block = run_block(config.learner, tasks, training, state, next_stop(step, config))
                refuse_nonfinite(block, int(state.step), folder)
                seconds = time.monotonic() - began
                record = {"step": int(state.step), **{name: float(mean) for name, mean in block.means.items()}}
                note_cost(so_far, record["step"] - step, seconds)
                progress.show(record, steps_per_second=(record["step"] - step) / seconds)
                if record["step"] in validations(config):
                    record["validation"] = validate(config, state.meta, record["step"])
                    keep_if_best(folder, config, state.meta, record, so_far)
                    progress.note(f"step {record['step']}: validation {describe(record['validation'])}")
                if training.growth.growth_window:
                    config, state = change_clusters(config, state, tasks, record, so_far["watch"])
                if "growth" in record:
                    progress.note(f"step {record['step']}: {describe_growth(record['growth'])}")
                folders.append_metrics(folder, record)
                stop = interrupted()
                if stop or "validation" in record or "growth" in record:
                    checkpoint.save(folder, "last", state, {"step": record["step"], **so_far, **clusters_of(config)})
                if stop:
                    break
    return int(state.step) == training.steps


def begin(
    config: Config, folder: Path, tasks: TaskDraw, *, resume: bool, command: str
) -> tuple[Config, State, dict[str, Any]]:
    """A new run folder; or of the one there is the config as far as it has grown, the state and the story so far."""
    if not resume or not (folder / "last.json").exists():  # new, or stopped before its first checkpoint
        began = time.monotonic()
        state = started(config, tasks)  # first: what cannot start leaves no folder behind that looks like a run
        if resume:
            folders.cut_metrics(folder, -1)
        else:
            folders.create(folder, to_json(config), command)
        if isinstance(config.source, Stream):  # what the start knows, for transfer to families that come later
            folders.append_metrics(folder, {"step": 0, "validation": validate(config, state.meta, 0)})
        return config, state, {**copy.deepcopy(NOTHING_YET), "seconds": time.monotonic() - began}
    config = as_grown(config, files.read_json(folder / "last.json"))
    state, about = checkpoint.load(folder, "last", eqx.filter_eval_shape(init_state, config))
    folders.cut_metrics(folder, about["step"])
    return config, state, {name: about.get(name, value) for name, value in copy.deepcopy(NOTHING_YET).items()}


def note_cost(so_far: dict[str, Any], num_steps: int, seconds: float) -> None:
    """Seconds in all, the rate of the fastest block (so that compiling is left out), this process's peak memory."""
    so_far["seconds"] += seconds
    so_far["steps_per_second"] = max(so_far["steps_per_second"], num_steps / seconds)
    so_far["peak_memory_mb"] = max(so_far["peak_memory_mb"], folders.peak_memory_mb())


def next_stop(step: int, config: Config) -> Int[Array, ""]:
    """The end of the block: the next logging or validation."""
    log_every = config.training.log_every
    checks = validations(config)
    return jnp.asarray(min((step // log_every + 1) * log_every, checks[bisect.bisect(checks, step)]), jnp.int32)


@functools.lru_cache(maxsize=8)
def validations(config: Config) -> list[int]:
    """Meta-steps after which validation tasks are looked at: regularly, and where a phase of a stream ends."""
    training = config.training
    regular = range(training.validate_every, training.steps, training.validate_every)
    ends = config.source.begins(training.steps)[1:] if isinstance(config.source, Stream) else []
    return sorted({*regular, *ends, training.steps})


def refuse_nonfinite(block: Block, step: int, folder: Path) -> None:
    """Stop a run that has gone astray, naming where and what."""
    bad = sorted(name for name, finite in block.finite.items() if not bool(finite))
    if bad:
        raise DivergedError(
            f"{' and '.join(bad)} is not finite at meta-step {step + 1}: train anew with a lower --inner-lr or "
            f"--outer-lr, or with --clip-norm 1; what {folder} had saved before is kept"
        )


def keep_if_best(folder: Path, config: Config, meta: Meta, record: dict[str, Any], so_far: dict[str, Any]) -> None:
    """Save the model when no earlier one did better on the validation tasks; in a stream, no earlier one of its phase.

    A score on the families of one phase says nothing beside one on those of another.
    """
    value, best, phase = record["validation"]["value"], so_far["best"], 0
    if isinstance(config.source, Stream):
        phase = config.source.phase_at(record["step"] - 1, config.training.steps)
    if (
        best is None
        or best.get("phase", 0) < phase
        or is_better(value, best["validation"]["value"], metric_of(config.learner.loss).name)
    ):
        so_far["best"] = {"step": record["step"], "validation": record["validation"], "phase": phase}
        about = {**so_far["best"], "seconds": so_far["seconds"], **clusters_of(config)}
        checkpoint.save(folder, "best", meta, about)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C (or SIGTERM) sets a flag instead of tearing a step apart; a second one does tear."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: Any) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

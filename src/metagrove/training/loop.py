"""Meta-training (paper, algorithm 1): one flat loop around a compiled block of many meta-steps."""

import bisect
import contextlib
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
from metagrove.config.config import Config, Phase, Training, check_config
from metagrove.config.encoding import to_json
from metagrove.errors import DivergedError
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta
from metagrove.losses import is_better, metric_of
from metagrove.outer import meta_gradient, sample_tasks
from metagrove.sources.source import TaskSchedule
from metagrove.training import checkpoint, folders
from metagrove.training.growth import as_grown, clusters_of, describe_growth, grow_if_called_for
from metagrove.training.progress import Progress
from metagrove.training.records import BestCheckpoint, BlockRecord, TrainingProgress, ValidationRecord
from metagrove.training.validate import describe, validate

Callback = Callable[[BlockRecord], None]
"""Called with the record of each logged block, e.g. to show it in a notebook or to send it to a tracking service."""


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


def started(config: Config, tasks: TaskSchedule) -> State:
    """The same, as the learner would have it after a look at training tasks."""
    state = init_state(config)
    key = key_for("start", config.training.seed)
    meta = config.learner.data_dependent_init(state.meta, tasks.at(state.step), key=key)
    return dataclasses.replace(state, meta=meta)


def run_block(
    learner: Learner, tasks: TaskSchedule, training: Training, state: State, stop: Int[Array, ""]
) -> tuple[State, Block]:
    """Meta-steps up to `stop`, or up to the first that is not finite: its update is not made.

    A step depends on the seed, the state and its own number, never on where blocks begin and end. The seed and the
    number of meta-steps are data, so that a run of another seed or length compiles nothing anew.
    """
    key, steps = key_for("train", training.seed), jnp.asarray(training.steps, jnp.int32)
    phase = training.phase_at(int(state.step)) if training.phases else Phase()
    return _run_block(learner, tasks, compiled_settings(training), phase, key, steps, state, stop)


def compiled_settings(training: Training) -> Training:
    """The settings that the compiled block depends on; the others are as by default, the seed and steps among them."""
    unused = ("seed", "steps", "phases", "log_every", "validate_every", "validation_tasks", "max_eval_inner_steps")
    default = Training()
    return dataclasses.replace(training, **{name: getattr(default, name) for name in unused})


@eqx.filter_jit
def _run_block(
    learner: Learner,
    schedule: TaskSchedule,
    training: Training,
    phase: Phase,
    key: PRNGKeyArray,
    steps: Int[Array, ""],
    state: State,
    stop: Int[Array, ""],
) -> tuple[State, Block]:
    optimizer = training.optimizer(steps)
    arrays, static = eqx.partition(state, eqx.is_array)

    @functools.partial(jax.jit, inline=True)  # traced once, though it is asked for twice
    def meta_step(arrays: State) -> tuple[State, dict[str, Array]]:
        state = eqx.combine(arrays, static)
        task_key, learner_key = jax.random.split(jax.random.fold_in(key, state.step))
        tasks = sample_tasks(schedule.at(state.step), jax.random.split(task_key, training.meta_batch))
        trainable = trained_leaves(learner, state.meta, phase)
        how = {"trainable": trainable, "loss": phase.loss, "task_chunk_size": training.task_chunk_size}
        loss, metrics, grads = meta_gradient(learner, state.meta, tasks, key=learner_key, **how)
        updates, opt_state = optimizer.update(grads, state.opt_state, eqx.filter(state.meta, eqx.is_inexact_array))
        seen = {"loss": loss, "gradient_norm": optax.tree.norm(grads), **metrics}
        after = State(eqx.apply_updates(state.meta, eqx.filter(updates, trainable)), opt_state, state.step + 1)
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


def trained_leaves(learner: Learner, meta: Meta, phase: Phase) -> Any:
    """Which leaves of the meta-parameters a phase trains: a tree of booleans."""
    mask = learner.trainable(meta)
    if not phase.trains:
        return mask
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf and path[0].name in phase.trains, mask)


def train(
    config: Config, folder: Path, *, resume: bool = False, command: str = "", callback: Callback | None = None
) -> bool:
    """Train into a run folder.

    Args:
        config: What to train.
        folder: The run folder.
        resume: Go on from the folder's last checkpoint.
        command: What is recorded as the command that made the run.
        callback: Called with the record of each logged block, after it is written to metrics.jsonl.

    Returns:
        False if a person stopped it; the same call with `resume` goes on.
    """
    check_config(config)
    training = config.training
    if resume:
        folders.check_same_config(folder, to_json(config))  # first: a folder that is not there is not made
    with folders.locked(folder), interruptible() as interrupted:
        tasks = config.source.schedule(training.steps)
        config, state, so_far = begin(config, folder, tasks, resume=resume, command=command)
        with Progress(training.steps, start=int(state.step)) as progress:
            while (step := int(state.step)) < training.steps:
                began = time.monotonic()
                state, block = run_block(config.learner, tasks, training, state, next_stop(step, config))
                refuse_nonfinite(block, int(state.step), folder)
                seconds = time.monotonic() - began
                record = BlockRecord(int(state.step), {name: float(mean) for name, mean in block.means.items()})
                so_far = with_cost(so_far, record.step - step, seconds)
                progress.show(record, steps_per_second=(record.step - step) / seconds)
                if record.step in validations(config):
                    validation = validate(config, state.meta, record.step)
                    record = dataclasses.replace(record, validation=validation)
                    so_far = keep_if_best(folder, config, state.meta, record.step, validation, so_far)
                    progress.note(f"step {record.step}: validation {describe(validation)}")
                if training.growth.growth_window:
                    config, state, so_far, record = grow(config, state, tasks, so_far, record)
                if record.growth is not None:
                    progress.note(f"step {record.step}: {describe_growth(record.growth)}")
                folders.append_metrics(folder, record)
                if callback is not None:
                    callback(record)
                stop = interrupted()
                if stop or record.validation is not None or record.growth is not None:
                    about = {"step": record.step, **files.as_json(so_far), **clusters_of(config)}
                    checkpoint.save(folder, "last", state, about)
                if stop:
                    break
    return int(state.step) == training.steps


def begin(
    config: Config, folder: Path, tasks: TaskSchedule, *, resume: bool, command: str
) -> tuple[Config, State, TrainingProgress]:
    """A new run folder; or of the one there is the config as far as it has grown, the state and the progress so far."""
    if not resume or not (folder / "last.json").exists():  # new, or stopped before its first checkpoint
        began = time.monotonic()
        state = started(config, tasks)  # first: what cannot start leaves no folder behind that looks like a run
        if resume:
            folders.cut_metrics(folder, -1)
        else:
            folders.create(folder, to_json(config), command)
        if config.source.has_phases:  # what the start knows, for transfer to families that come later
            folders.append_metrics(folder, BlockRecord(0, validation=validate(config, state.meta, 0)))
        return config, state, TrainingProgress(seconds=time.monotonic() - began)
    config = as_grown(config, files.read_json(folder / "last.json"))
    state, about = checkpoint.load(folder, "last", eqx.filter_eval_shape(init_state, config))
    folders.cut_metrics(folder, about["step"])
    return config, state, files.from_json(TrainingProgress, about)


def with_cost(so_far: TrainingProgress, num_steps: int, seconds: float) -> TrainingProgress:
    """Seconds in all, the rate of the fastest block (so that compiling is left out), this process's peak memory."""
    return dataclasses.replace(
        so_far,
        seconds=so_far.seconds + seconds,
        steps_per_second=max(so_far.steps_per_second, num_steps / seconds),
        peak_memory_mb=max(so_far.peak_memory_mb, folders.peak_memory_mb()),
    )


def grow(
    config: Config, state: State, tasks: TaskSchedule, so_far: TrainingProgress, record: BlockRecord
) -> tuple[Config, State, TrainingProgress, BlockRecord]:
    """All of training's state after a block, with a cluster more if the block calls for it."""
    grown = grow_if_called_for(config, state.meta, state.opt_state, tasks, record, so_far.watch)
    return (
        grown.config,
        dataclasses.replace(state, meta=grown.meta, opt_state=grown.opt_state),
        dataclasses.replace(so_far, watch=grown.watch),
        dataclasses.replace(record, growth=grown.event),
    )


def next_stop(step: int, config: Config) -> Int[Array, ""]:
    """The end of the block: the next logging or validation."""
    log_every = config.training.log_every
    checks = validations(config)
    return jnp.asarray(min((step // log_every + 1) * log_every, checks[bisect.bisect(checks, step)]), jnp.int32)


@functools.lru_cache(maxsize=8)
def validations(config: Config) -> list[int]:
    """Meta-steps after which the learner is validated: regularly, and where a phase ends (source or training)."""
    training = config.training
    regular = range(training.validate_every, training.steps, training.validate_every)
    ends = training.phase_ends() if training.phases else []
    return sorted({*regular, *ends, *config.source.begins(training.steps)[1:], training.steps})


def refuse_nonfinite(block: Block, step: int, folder: Path) -> None:
    """Stop a run that has gone astray, naming where and what."""
    bad = sorted(name for name, finite in block.finite.items() if not bool(finite))
    if bad:
        raise DivergedError(
            f"{' and '.join(bad)} is not finite at meta-step {step + 1}: train anew with a lower --inner-lr or "
            f"--outer-lr, or with --clip-norm 1; what {folder} had saved before is kept"
        )


def keep_if_best(
    folder: Path, config: Config, meta: Meta, step: int, validation: ValidationRecord, so_far: TrainingProgress
) -> TrainingProgress:
    """Save the model when no earlier one did better on the validation tasks; in a stream, no earlier one of its phase.

    A score on the families of one phase says nothing beside one on those of another.
    """
    best, phase = so_far.best, config.source.phase_at(step - 1, config.training.steps)
    metric = metric_of(config.learner.loss).name
    if best is not None and best.phase >= phase and not is_better(validation.value, best.validation.value, metric):
        return so_far
    so_far = dataclasses.replace(so_far, best=BestCheckpoint(step, validation, phase))
    about = {**files.as_json(so_far.best), "seconds": so_far.seconds, **clusters_of(config)}
    checkpoint.save(folder, "best", meta, about)
    return so_far


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

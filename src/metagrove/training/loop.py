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
from jaxtyping import Array, Int

from metagrove import files
from metagrove.config.config import Config, Training, check_config
from metagrove.config.encoding import to_json
from metagrove.devices import any_process, lost_process_as_error, task_mesh
from metagrove.errors import DivergedError, InputError, RunError
from metagrove.learner import Meta
from metagrove.losses import is_better, metric_of
from metagrove.sources.source import TaskSchedule
from metagrove.training import checkpoint, folders
from metagrove.training.block import run_block
from metagrove.training.growth import as_grown, clusters_of, describe_growth, grow_if_called_for
from metagrove.training.phases import State, end_fit, first_step, fit_ends, init_state, part_at, started
from metagrove.training.progress import Progress
from metagrove.training.records import BestCheckpoint, BlockRecord, TrainingProgress, ValidationRecord
from metagrove.training.step import Block, cut_of
from metagrove.training.validate import describe, validate

Callback = Callable[[BlockRecord], None]
"""Called with the record of each logged block, e.g. to show it in a notebook or to send it to a tracking service."""


def train(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    command: str = "",
    callback: Callback | None = None,
    devices: int | None = None,
) -> bool:
    """Train into a run folder.

    Args:
        config: What to train.
        folder: The run folder.
        resume: Continue from the last checkpoint of the folder.
        command: The command to record in the provenance of the run.
        callback: Called with the record of each logged block, after it is written to metrics.jsonl.
        devices: Devices that share the tasks of a meta-step, which does not change the result; by default all
            devices, at most one for each block of tasks.

    Returns:
        True at the end, after all meta-steps or when `patience` ran out; False if the user stopped it, and the same
        call with `resume` continues it.
    """
    check_config(config)
    training = config.training
    mesh = task_mesh(num_devices(training, devices))
    if resume:
        folders.check_same_config(folder, to_json(config))  # before the lock creates the folder
    with folders.locked(folder), interruptible() as interrupted:
        tasks = config.source.schedule(training.steps)
        with all_or_none():
            config, state, so_far = begin(config, folder, tasks, resume=resume, command=command)
        with Progress(
            training.steps, begin=first_step(config.learner, config.training), start=int(state.step)
        ) as progress:
            while (step := int(state.step)) < training.steps and not out_of_patience(training, so_far):
                began = time.monotonic()
                with lost_process_as_error():
                    state, block = run_block(config.learner, tasks, training, state, next_stop(step, config), mesh=mesh)
                    jax.block_until_ready(block)
                refuse_nonfinite(block, int(state.step), folder)
                rate = (int(state.step) - step) / (time.monotonic() - began)
                record = BlockRecord(int(state.step), named_means(config, block, step))
                progress.show(record, steps_per_second=rate)
                if record.step in fit_ends(config.learner, config.training):
                    config, state = end_fit(config, state, tasks)
                so_far = with_cost(so_far, time.monotonic() - began, rate if step >= 0 else 0.0, mesh.size)
                if record.step >= 0 and record.step in validations(config):
                    validation = validate(config, state.meta, record.step)
                    record = dataclasses.replace(record, validation=validation)
                    so_far = keep_if_best(folder, config, state.meta, record.step, validation, so_far)
                    progress.note(f"step {record.step}: validation {describe(validation)}")
                if training.growth.growth_window and record.step > 0:
                    config, state, so_far, record = grow(config, state, tasks, so_far, record)
                if record.growth is not None:
                    progress.note(f"step {record.step}: {describe_growth(record.growth)}")
                so_far = so_far.logged(folders.append_metrics(folder, record))
                if callback is not None:
                    callback(record)
                stop = any_process(interrupted())
                if stop or record.step in validations(config) or record.growth is not None:
                    so_far = so_far.marked()
                    about = {"step": record.step, **files.as_json(so_far), **clusters_of(config)}
                    checkpoint.save(folder, "last", state, about)
                if stop:
                    break
            if out_of_patience(training, so_far):
                progress.note(f"stopped at step {int(state.step)}: no improvement in {training.patience} validations")
    return int(state.step) == training.steps or out_of_patience(training, so_far)


@contextlib.contextmanager
def all_or_none() -> Iterator[None]:
    """Raise an error in all processes if one of them raises one, so that none waits for the others."""
    try:
        yield
    except Exception:
        any_process(True)
        raise
    if any_process(False):
        raise RunError("another process of the training failed to start: see its error message")


def num_devices(training: Training, devices: int | None) -> int:
    """The number of devices that share a meta-batch: by default all, at most one for each block of tasks."""
    blocks, processes = cut_of(training).blocks, jax.process_count()
    if devices is None and blocks >= processes:
        return min(blocks, len(jax.devices())) // processes * processes
    devices = processes if devices is None else devices
    if devices > blocks:
        raise InputError(
            f"devices must be at most {blocks}, the number of blocks that a meta-batch of {training.meta_batch} is cut "
            f"into, got {devices}: raise --task-blocks (the result depends on the blocks, never on the devices)"
        )
    return devices


def out_of_patience(training: Training, so_far: TrainingProgress) -> bool:
    """Whether training stops early: no improvement in `patience` consecutive validations."""
    return 0 < training.patience <= so_far.not_better


def begin(
    config: Config, folder: Path, tasks: TaskSchedule, *, resume: bool, command: str
) -> tuple[Config, State, TrainingProgress]:
    """Create a run folder, or load the last checkpoint: the config with grown clusters, the state and the progress."""
    if not resume or not (folder / "last.json").exists():  # new, or stopped before its first checkpoint
        began = time.monotonic()
        # first, so that a failed initialisation leaves no folder behind
        state = started(config, tasks)
        so_far = TrainingProgress()
        if resume:
            so_far = folders.cut_metrics(folder, first_step(config.learner, config.training) - 1)
        else:
            folders.create(folder, to_json(config), command)
        if config.source.has_phases and state.step == 0:  # scores at initialisation, for forward transfer
            so_far = so_far.logged(
                folders.append_metrics(folder, BlockRecord(0, validation=validate(config, state.meta, 0)))
            )
        return config, state, dataclasses.replace(so_far, seconds=time.monotonic() - began)
    first = first_step(config.learner, config.training)
    last = folders.read_last(folder, first=first, steps=config.training.steps)
    config = as_grown(config, last.clusters)
    shapes = eqx.filter_eval_shape(lambda: init_state(config, last.step))
    state, about = checkpoint.load(folder, "last", shapes)
    if int(state.step) != last.step:
        raise RunError(
            f"{folder / 'last.json'} is of step {last.step}, its arrays of step {int(state.step)}: copy both"
        )
    checkpoint.remove_superseded(folder, "last", about["weights"])
    return config, state, folders.cut_metrics(folder, last.step, last.progress)


def named_means(config: Config, block: Block, step: int) -> dict[str, float]:
    """The means of a block that began with `step`; those of a fit are prefixed by its name."""
    part = part_at(config.learner, config.training, step)
    prefix = f"{part.phase.loss}_" if part.fits else ""
    return {prefix + name: float(mean) for name, mean in block.means.items()}


def with_cost(so_far: TrainingProgress, seconds: float, rate: float, devices: int) -> TrainingProgress:
    """Add the cost of a block: total seconds, meta-steps per second of the fastest block, and peak memory."""
    return dataclasses.replace(
        so_far,
        seconds=so_far.seconds + seconds,
        steps_per_second=max(so_far.steps_per_second, rate),
        peak_memory_mb=max(so_far.peak_memory_mb, folders.peak_memory_mb()),
        devices=devices,
    )


def grow(
    config: Config, state: State, tasks: TaskSchedule, so_far: TrainingProgress, record: BlockRecord
) -> tuple[Config, State, TrainingProgress, BlockRecord]:
    """The training state after a block, with one more cluster if the detector calls for it."""
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
    """Steps after which the learner is validated: regularly, and where a phase ends (source or training).

    In a fit before the first meta-step nothing is validated: these are its checkpoints.
    """
    training, first = config.training, first_step(config.learner, config.training)
    regular = range(first // training.validate_every * training.validate_every, training.steps, training.validate_every)
    regular = [step for step in regular if first < step and step != 0]
    regular += fit_ends(config.learner, config.training)
    ends = training.phase_ends() if training.phases else []
    return sorted({*regular, *ends, *config.source.begins(training.steps)[1:], training.steps})


def refuse_nonfinite(block: Block, step: int, folder: Path) -> None:
    """Raise a DivergedError if the loss, the gradient or a metric of a block is not finite."""
    bad = sorted(name for name, finite in block.finite.items() if not bool(finite))
    if bad:
        rates = "--inner-lr or --outer-lr, or with --clip-norm 1" if step >= 0 else "--fit-lr"
        raise DivergedError(
            f"{' and '.join(bad)} is not finite at meta-step {step + 1}: train again with a lower {rates}; "
            f"the checkpoints in {folder} are kept"
        )


def keep_if_best(
    folder: Path, config: Config, meta: Meta, step: int, validation: ValidationRecord, so_far: TrainingProgress
) -> TrainingProgress:
    """Save the model if it is the best so far on the validation tasks; in a stream, the best of its phase.

    Scores of different phases are not comparable, since their families differ.
    """
    best, phase = so_far.best, config.source.phase_at(max(0, step - 1), config.training.steps)
    metric = metric_of(config.learner.loss).name
    if best is not None and best.phase >= phase and not is_better(validation.value, best.validation.value, metric):
        return dataclasses.replace(so_far, not_better=so_far.not_better + 1)
    so_far = dataclasses.replace(so_far, not_better=0, best=BestCheckpoint(step, validation, phase))
    about = {**files.as_json(so_far.best), "seconds": so_far.seconds, **clusters_of(config)}
    checkpoint.save(folder, "best", meta, about)
    return so_far


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Set a flag on Ctrl-C, SIGTERM or SIGHUP instead of interrupting a step; a second signal interrupts it."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop.is_set
        return

    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, _: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

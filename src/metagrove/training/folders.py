"""A run folder: run.json (settings and provenance), metrics.jsonl, and the checkpoints `last` and `best`."""

import contextlib
import dataclasses
import errno
import functools
import importlib.metadata
import itertools
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock

from metagrove import files
from metagrove.config.migrate import migrate
from metagrove.config.validate import LAYERS, MOST
from metagrove.devices import is_first_process
from metagrove.errors import InputError, RunError, quoted
from metagrove.files import Json
from metagrove.notes import note
from metagrove.training.records import BestRecord, BlockRecord, LastRecord, LogMark, RunRecord, TrainingProgress
from metagrove.typed_json import raise_type_errors

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy")
MAX_METRICS_BYTES = 1 << 28
"""Maximum size of a metrics.jsonl."""


def shipped() -> dict[str, Path]:
    """The released models, from the installed package or from a checkout of the project."""
    package = Path(__file__).parents[1]
    models = package / "models" if (package / "models").exists() else package.parents[1] / "models"
    return {path.name: path for path in sorted(models.glob("*")) if (path / "run.json").exists()}


def resolve(name: str | Path) -> Path:
    """A run's folder: a path, or the name of a released model, with or without `models/` before it."""
    path = Path(name)
    if (path / "run.json").exists():
        return path
    released = shipped().get(path.name) if path.parent in (Path(), Path("models")) else None
    if released is None:
        known = ", ".join(shipped()) or "none"
        raise RunError(f"{path} is not a run folder (it has no run.json); released models that can be named: {known}")
    return released


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder for one training; the system releases the lock of a process that dies. If several processes
    train together, the first holds the lock."""
    if not is_first_process():
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except filelock.Timeout as error:
        raise RunError(f"another training is writing to {folder}: wait for it, or choose another folder") from error
    except OSError as error:
        raise files.save_error(folder, error) from error
    try:
        files.remove_abandoned(folder)
        for half_written in (*folder.glob(".best*"), *folder.glob(".last*")):  # as version 0.2.0 called them
            half_written.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def create(folder: Path, config: Json, command: str) -> None:
    """Write run.json of a new run; an existing run is never overwritten."""
    if not is_first_process():
        return
    if (folder / "run.json").exists():
        raise InputError(f"{folder} already holds a run: continue it (--resume), or choose another folder (--out)")
    files.write_json(folder / "run.json", {"format": files.FORMAT, "config": config, "provenance": provenance(command)})


def check_same_config(folder: Path, config: Json) -> None:
    """Raise an InputError if a run is resumed with other settings than it was started with."""
    if not (folder / "run.json").exists():
        raise RunError(f"{folder} holds no run to resume: omit --resume to start one")
    stored = read_run(folder / "run.json")
    different = differences(migrate(stored.config, stored.format), config)
    if different:
        raise InputError(
            f"{folder} was started with other settings ({'; '.join(different)}): resume with the same ones"
        )


def differences(stored: Json, now: Json) -> list[str]:
    """List the settings that differ; a setting that is newer than the run is ignored."""
    found = []
    for name, value in now.items():
        if name in stored and isinstance(value, dict) and isinstance(stored[name], dict):
            found += differences(stored[name], value)
        elif name in stored and stored[name] != value:
            found.append(f"{name} was {quoted(stored[name])}, now {quoted(value)}")
    return found


def provenance(command: str) -> Json:
    """Return the provenance of a run: everything needed to reproduce its results."""
    packages = {name: importlib.metadata.version(name) for name in ("metagrove", *PACKAGES)}
    return {"command": command, "versions": {"python": platform.python_version(), **packages}, "hardware": hardware()}


def hardware() -> str:
    """Processor and cores, without names of machines or people."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return f"{cpu}, {os.cpu_count()} cores"


def peak_memory_mb() -> float:
    """Peak memory of this process in MB; 0 where the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def read_run(path: Path) -> RunRecord:
    """Read a run.json.

    Raises:
        RunError: It is missing, damaged, of a newer version or has no config.
    """
    return files.read_record(RunRecord, path, needs=("config",))


def read_best(folder: Path) -> BestRecord:
    """Read the best.json of a run, without its arrays.

    Raises:
        RunError: It is missing, damaged, of a newer version, or has impossible values.
    """
    path = folder / "best.json"
    best = files.read_record(BestRecord, path, needs=("step", "validation", "validation.steps"))
    most = MOST["inner_steps"]
    problems = [] if 0 <= best.validation.steps <= most else [f"validation.steps must be from 0 to {most:,}"]
    raise_type_errors(problems + cluster_errors(best.clusters), path)
    return best


def read_last(folder: Path, *, first: int, steps: int) -> LastRecord:
    """Read the last.json of a run that is resumed, without its arrays.

    Args:
        folder: The run folder.
        first: The meta-step that training begins with.
        steps: The number of meta-steps.

    Raises:
        RunError: It is missing, damaged, of a newer version, or has impossible values.
    """
    path = folder / "last.json"
    last = files.read_record(LastRecord, path, needs=("step",))
    progress, lines = last.progress, [mark.lines for mark in last.progress.marks]
    problems = [] if first <= last.step <= steps else [f"step must be from {first} to {steps}"]
    if not 0 <= progress.not_better <= steps:
        problems += [f"not_better must be from 0 to {steps}"]
    if lines != sorted(lines) or any(line < 0 for line in lines):
        problems += ["marks must have increasing numbers of lines"]
    if any(len(block) != 2 or not block[0] > 0 for block in (*progress.watch.blocks, *progress.watch.before)):
        problems += ["watch.blocks and watch.before must have the meta-steps and the mean of each block"]
    raise_type_errors(problems + cluster_errors(last.clusters), path)
    return last


def cluster_errors(clusters: Sequence[int]) -> list[str]:
    """List errors in the clusters that a checkpoint records."""
    fits = len(clusters) <= LAYERS and all(1 <= count <= MOST["clusters"] for count in clusters)
    return [] if fits else [f"clusters must be at most {LAYERS} numbers from 1 to {MOST['clusters']:,}"]


def append_metrics(folder: Path, record: BlockRecord) -> bytes:
    """Add a line to metrics.jsonl, and return it."""
    line = f"{json.dumps(files.as_json(record))}\n".encode()
    if not is_first_process():
        return line
    path = folder / "metrics.jsonl"
    try:
        with path.open("ab", buffering=0) as file:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise files.save_error(path, error) from error
    return line


def read_metrics(folder: Path) -> list[BlockRecord]:
    """The lines of metrics.jsonl; a last line cut off by a crash is left out."""
    records = []
    for line in metrics_lines(folder):
        with contextlib.suppress(ValueError, RecursionError, RunError):
            record = files.from_json(BlockRecord, json.loads(line))
            records += [record] if isinstance(record.step, int) else []
    return records


def metrics_lines(folder: Path) -> list[bytes]:
    """The lines of metrics.jsonl as bytes with line ends, not parsed; empty if there is no such file."""
    path = folder / "metrics.jsonl"
    try:
        return files.read_plain(path, most=MAX_METRICS_BYTES).splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error


def cut_metrics(folder: Path, step: int, so_far: TrainingProgress | None = None) -> TrainingProgress:
    """Remove lines that were logged after the checkpoint from which training continues.

    If lines differ from those of the checkpoint, the damage is reported, and they are removed back to the last
    checkpoint whose lines are intact. Training does not depend on them.

    Args:
        folder: The run folder.
        step: The checkpoint's meta-step.
        so_far: Progress in the checkpoint; runs of version 0.2.0 and before have no marks in it.

    Returns:
        The progress with the marks of the lines that are left.
    """
    so_far = so_far or TrainingProgress()
    if not so_far.marks:
        lines = [f"{json.dumps(files.as_json(one))}\n".encode() for one in read_metrics(folder) if one.step <= step]
        log = functools.reduce(LogMark.after, lines, LogMark())
    else:
        lines = metrics_lines(folder)
        running = list(itertools.accumulate(lines, LogMark.after, initial=LogMark()))
        marks = list(itertools.takewhile(lambda mark: mark in running, so_far.marks))
        log = marks[-1] if marks else LogMark()
        if lost := so_far.marks[-1].lines - log.lines:
            note(
                f"{folder / 'metrics.jsonl'} was damaged: its checksum differs, and {lost} of the "
                f"{so_far.marks[-1].lines} lines up to meta-step {step} are dropped; training itself is not affected"
            )
        lines, so_far = lines[: log.lines], dataclasses.replace(so_far, marks=tuple(marks))
    if is_first_process():
        files.write_atomically(folder / "metrics.jsonl", b"".join(lines))
    return dataclasses.replace(so_far, log=log)

"""A run folder: run.json (settings and provenance), metrics.jsonl, and the checkpoints `last` and `best`."""

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import filelock

from metagrove import files
from metagrove.config.migrate import migrate
from metagrove.devices import is_first_process
from metagrove.errors import InputError, RunError
from metagrove.files import Json
from metagrove.training.records import BlockRecord

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy")


def shipped() -> dict[str, Path]:
    """The released models, from the installed package or from a checkout of the project."""
    package = Path(__file__).parents[1]
    place = package / "models" if (package / "models").exists() else package.parents[1] / "models"
    return {path.name: path for path in sorted(place.glob("*")) if (path / "run.json").exists()}


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
    """Only one training at a time; the system lifts the lock of a process that died. Of several processes that train
    together, the first has the lock."""
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
        for half_written in (*folder.glob(".best*"), *folder.glob(".last*")):
            half_written.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def create(folder: Path, config: Json, command: str) -> None:
    """Write run.json of a new run; an existing run is never overwritten."""
    if not is_first_process():
        return
    if (folder / "run.json").exists():
        raise InputError(f"{folder} already holds a run: go on with it (--resume), or choose another folder (--out)")
    files.write_json(folder / "run.json", {"format": files.FORMAT, "config": config, "provenance": provenance(command)})


def check_same_config(folder: Path, config: Json) -> None:
    """A run is resumed with the settings it began with."""
    if not (folder / "run.json").exists():
        raise RunError(f"{folder} holds no run to resume: leave --resume out to begin one")
    stored = files.read_json(folder / "run.json")
    different = differences(migrate(stored["config"], stored["format"]), config)
    if different:
        raise InputError(f"{folder} was begun with other settings ({'; '.join(different)}): resume with the same ones")


def differences(stored: Json, now: Json) -> list[str]:
    """Settings that are not what they were; one that is newer than the run had its default."""
    found = []
    for name, value in now.items():
        if name in stored and isinstance(value, dict) and isinstance(stored[name], dict):
            found += differences(stored[name], value)
        elif name in stored and stored[name] != value:
            found.append(f"{name} was {stored[name]!r}, now {value!r}")
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
    """The most memory that this process has had; 0 on a system that does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def append_metrics(folder: Path, record: BlockRecord) -> None:
    """Add a line to metrics.jsonl."""
    if not is_first_process():
        return
    path = folder / "metrics.jsonl"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(files.as_json(record)) + "\n")
    except OSError as error:
        raise files.save_error(path, error) from error


def read_metrics(folder: Path) -> list[BlockRecord]:
    """The lines of metrics.jsonl; a last line cut off by a crash is left out."""
    path, records = folder / "metrics.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            records.append(files.from_json(BlockRecord, json.loads(line)))
    return records


def cut_metrics(folder: Path, step: int) -> None:
    """Drop what was logged after the checkpoint that training goes on from."""
    if not is_first_process():
        return
    kept = [json.dumps(files.as_json(record)) for record in read_metrics(folder) if record.step <= step]
    files.write_atomically(folder / "metrics.jsonl", "".join(f"{line}\n" for line in kept).encode())

"""Devices that share the tasks of a meta-batch: CPU cores, GPUs or TPU cores, in one process or in several."""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from metagrove.errors import InputError, RunError

TASKS_AXIS = "tasks"
"""Name of the mesh axis that the blocks of a meta-batch are distributed over."""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
"""XLA flag: an operation runs on one thread. More threads cost more than they give where operations are small."""
FEW_PASSES = "--xla_backend_optimization_level=1"
"""XLA flag: LLVM makes fewer passes. Programs of small operations compile in less time and are as fast."""
HEARTBEAT_SECONDS = 20
"""A process that is silent for so long is lost; one that dies is noticed at once, by the next exchange of gradients."""


class LostProcessError(RunError):
    """Another process of the training has ended unexpectedly."""


# Before JAX starts its backend


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def configure_cpu(*, devices: int = 1, one_thread: bool = True, few_passes: bool = True) -> None:
    """Set up CPU devices; without effect after JAX has started its backend, as is what the user has set in XLA_FLAGS.

    Args:
        devices: The number of CPU devices of this process.
        one_thread: Whether an operation runs on one thread, as is best where operations are small.
        few_passes: Whether programs are compiled with fewer passes, as is best where operations are very small.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for flag, wanted in ((ONE_THREAD, one_thread), (FEW_PASSES, few_passes and runs_on_cpu_alone())):
        if wanted and flag.split("=")[0] not in flags:
            flags = f"{flags} {flag}".strip()
    os.environ["XLA_FLAGS"] = flags
    if devices > 1 and "xla_force_host_platform_device_count" not in flags:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", devices)


def runs_on_cpu_alone() -> bool:
    """Whether no plugin for other devices is installed, or JAX_PLATFORMS excludes them.

    FEW_PASSES holds for all backends, and that of GPUs does not support it.
    """
    return os.environ.get("JAX_PLATFORMS") == "cpu" or importlib.util.find_spec("jax_plugins") is None


def join_processes(coordinator: str, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Make this process one of several that train together.

    Args:
        coordinator: host:port at which process 0 is reached; "auto" under Slurm, Open MPI or Kubernetes, which tell.
        num_processes: The number of processes.
        process_id: The number of this process, from 0.

    Raises:
        InputError: If a value is missing, or the processes cannot be joined.
    """
    known: dict[str, Any] = {
        "coordinator_address": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    if coordinator != "auto" and (num_processes is None or process_id is None):
        raise InputError("--coordinator HOST:PORT needs --num-processes and --process-id; or use --coordinator auto")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            **({} if coordinator == "auto" else known),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the processes cannot be joined at {coordinator}: {str(error).splitlines()[0]}") from error


# Processes


def is_first_process() -> bool:
    """Whether this process is the one that writes and prints."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether a flag is set in any process; all of them must ask."""
    if jax.process_count() == 1:
        return flag
    with lost_process_as_error():
        return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


@contextlib.contextmanager
def lost_process_as_error() -> Iterator[None]:
    """Raise a `LostProcessError` if an exchange fails because another process is gone."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if jax.process_count() == 1 or not (isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)):
            raise
        raise LostProcessError(
            "another process of the training has ended; the last checkpoint is kept: restart all with --resume"
        ) from error


# The mesh


def task_mesh(devices: int) -> Mesh:
    """The mesh of so many devices, equally many of each process.

    Raises:
        InputError: If there are not so many.
    """
    found, processes = jax.devices(), jax.process_count()
    if not 1 <= devices <= len(found) or devices % processes:
        there = f"the {found[0].platform} devices there are" + (
            ", equally many of each process" if processes > 1 else ""
        )
        raise InputError(f"devices must be {processes} to {len(found)}, {there}, got {devices}")
    each = devices // processes
    of_process = [[device for device in found if device.process_index == p][:each] for p in range(processes)]
    return Mesh(np.array(of_process).flatten(), (TASKS_AXIS,))


def local_places(mesh: Mesh) -> dict[int, Any]:
    """The devices of the mesh that belong to this process, by their place in it."""
    mine = jax.process_index()
    return {place: device for place, device in enumerate(mesh.devices.flat) if device.process_index == mine}


def shares(num_blocks: int, devices: int) -> list[range]:
    """The blocks of each device: runs of equal length, the last ones shorter or empty."""
    each = -(-num_blocks // devices)
    return [range(min(i * each, num_blocks), min((i + 1) * each, num_blocks)) for i in range(devices)]


def gather_rows(rows: dict[int, Float[Array, "blocks n"]], mesh: Mesh) -> dict[int, Float[Array, "blocks n"]]:
    """Of each device the rows of its own blocks (see `shares`), gathered: all rows on every device.

    Nothing is computed here, values are moved alone.
    """
    if mesh.size == 1:
        return rows
    num_blocks, size = next(iter(rows.values())).shape
    sharding = NamedSharding(mesh, PartitionSpec(TASKS_AXIS))
    whole = jax.make_array_from_single_device_arrays((mesh.size * num_blocks, size), sharding, list(rows.values()))
    found = {shard.device: shard.data for shard in _gather(mesh, num_blocks)(whole).addressable_shards}
    return {place: found[mesh.devices.flat[place]] for place in rows}


@functools.lru_cache(maxsize=8)
def _gather(mesh: Mesh, num_blocks: int) -> Any:
    each = -(-num_blocks // mesh.size)

    def gather(rows: Float[Array, "blocks n"]) -> Float[Array, "blocks n"]:
        first = jax.lax.axis_index(TASKS_AXIS) * each
        own = rows[jnp.minimum(first + jnp.arange(each), num_blocks - 1)]
        return jax.lax.all_gather(own, TASKS_AXIS, tiled=True)[:num_blocks]

    how = {"in_specs": PartitionSpec(TASKS_AXIS), "out_specs": PartitionSpec(), "check_vma": False}
    return jax.jit(jax.shard_map(gather, mesh=mesh, **how))

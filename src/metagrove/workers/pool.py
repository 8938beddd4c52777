"""Run jobs in parallel: on the cores of this machine, or on a Dask cluster that shares its files."""

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from metagrove.errors import STOPPED, InputError
from metagrove.workers.job import Job, execute
from metagrove.workers.table import JobTable

SECONDS_BETWEEN_LOOKS = 0.2
Then = Callable[[Job, int], Sequence[Job]]
"""Called with a job that has ended and its exit code; returns jobs that can start then."""


@runtime_checkable
class Pool(Protocol):
    """Interface of executors of jobs."""

    @property
    def size(self) -> int:
        """Number of workers."""
        ...

    def submit(self, job: Job) -> Any:
        """Execute a job as soon as there is a free worker; return a future of its exit code."""
        ...

    def stop(self) -> None:
        """Let running jobs save their state and end, and start no others."""
        ...

    def close(self) -> None:
        """Free the workers."""
        ...


class LocalPool:
    """Worker threads, each of which starts its jobs on its own core (if the system supports it)."""

    def __init__(self, workers: int):
        if workers < 1:
            raise InputError(f"workers must be at least 1, got {workers}")
        self.size = workers
        self.stopped = threading.Event()
        self.cores = queue.SimpleQueue[set[int]]()
        for cores in cores_of_workers(workers):
            self.cores.put(cores)
        self.threads = ThreadPoolExecutor(workers, initializer=self._pin)

    def _pin(self) -> None:
        cores = self.cores.get()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)  # of this thread alone; a process that it starts inherits it

    def submit(self, job: Job) -> Any:
        """Execute a job as soon as there is a free worker."""
        return self.threads.submit(execute, job, Path.cwd(), self.stopped.is_set)

    def stop(self) -> None:
        """Let running jobs save their state and end, and start no others."""
        self.stopped.set()

    def close(self) -> None:
        """End the worker threads."""
        self.stop()
        self.threads.shutdown()


def cores_of_workers(workers: int) -> list[set[int]]:
    """The cores of each worker: a single worker has all that this process may use, several have one each in turn."""
    if not hasattr(os, "sched_getaffinity"):
        return [set()] * workers
    cores = os.sched_getaffinity(0)
    return [cores] if workers == 1 else [{core} for core in itertools.islice(itertools.cycle(sorted(cores)), workers)]


def open_pool(workers: int, cluster: str | None = None) -> Pool:
    """Make a pool of workers on this machine, or of the workers of a Dask cluster."""
    if cluster is None:
        return LocalPool(workers)
    from metagrove.workers.cluster import ClusterPool

    return ClusterPool(cluster)


def run_jobs(jobs: Iterable[Job], pool: Pool, then: Then = lambda *_: ()) -> bool:
    """Run jobs and their successors, and show them in a table.

    Args:
        jobs: The jobs to begin with.
        pool: Executes them.
        then: Called with each job that has ended and its exit code; the jobs that it returns are run as well.

    Returns:
        False if interrupted by Ctrl-C; running jobs have saved their state.
    """
    running: dict[Any, Job] = {}
    interrupted = False
    with JobTable() as table, contextlib.closing(pool):

        def submit(more: Iterable[Job]) -> None:
            for job in more:
                table.add(job)
                running[pool.submit(job)] = job

        submit(jobs)
        while running:
            try:
                for future in [one for one in running if one.done()]:
                    job, code = running.pop(future), future.result()
                    table.end(job, code)
                    interrupted |= code == STOPPED
                    submit(() if interrupted else then(job, code))
                table.refresh()
                time.sleep(SECONDS_BETWEEN_LOOKS)
            except KeyboardInterrupt:
                table.note("interrupted: running jobs save their state")
                interrupted = True
            if interrupted:
                pool.stop()
    return not interrupted

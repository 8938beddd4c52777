"""Jobs on a Dask cluster; a job whose worker has died is repeated on another worker."""

import uuid
from pathlib import Path
from typing import Any

from metagrove.errors import InputError
from metagrove.workers.job import Job, execute


class ClusterPool:
    """The workers of a Dask cluster, which see the same files at the same paths as this process."""

    def __init__(self, address: str):
        try:
            from distributed import Client, Event
        except ImportError as error:
            raise InputError("--cluster needs dask and distributed: pip install 'metagrove[cluster]'") from error
        try:
            self.client = Client(address, timeout=10)
        except (OSError, ValueError) as error:
            raise InputError(f"no Dask scheduler answers at {address}: start one with `dask scheduler`") from error
        self.name = f"metagrove-stop-{uuid.uuid4().hex}"
        self.stopped = Event(self.name, client=self.client)

    @property
    def size(self) -> int:
        """Current number of threads of the workers; at least 1."""
        if self.client.status == "closed":
            return 1
        cores: Any = self.client.ncores()
        return max(1, sum(cores.values()))

    def submit(self, job: Job) -> Any:
        """Execute a job as soon as there is a free worker."""
        return self.client.submit(execute_remotely, job, Path.cwd(), self.name, pure=False)

    def stop(self) -> None:
        """Let running jobs save their state and end, and start no others."""
        self.stopped.set()

    def close(self) -> None:
        """Disconnect from the cluster, which keeps running."""
        self.stop()
        self.client.close()


def execute_remotely(job: Job, cwd: Path, stop_event: str) -> int:
    """Execute a job on a worker of the cluster."""
    from distributed import Event

    stopped: Any = Event(stop_event).is_set
    return execute(job, cwd, stopped)

"""Jobs: commands of metagrove that resume when they are repeated, and their execution."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from metagrove.errors import STOPPED

RETRIES = 2
"""Number of times that a job is repeated if its process is killed."""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
"""XLA flag of every job: a job has one core, and threads within an operation would only cost time."""
ONE_CORE = {"NPROC": "1"}
"""The number of cores that XLA compiles for, which affects rounding: the same for every pinning of a worker."""
SECONDS_BETWEEN_LOOKS = 0.1


@runtime_checkable
class Job(Protocol):
    """A job. Paths are relative to the working directory of the submitter."""

    @property
    def label(self) -> str:
        """Display name of the job."""
        ...

    @property
    def total(self) -> int:
        """Number of steps of the job."""
        ...

    @property
    def log(self) -> Path:
        """File of the command's output."""
        ...

    def command(self, cwd: Path) -> list[str]:
        """Arguments of `metagrove`, which continue earlier work in `cwd`."""
        ...

    def done(self) -> int:
        """Number of steps that are done."""
        ...


def execute(job: Job, cwd: Path, stopped: Callable[[], bool]) -> int:
    """Run the command of a job in a subprocess; repeat it if the process is killed.

    Args:
        job: The job.
        cwd: Working directory.
        stopped: Returns whether the job must save its state and end.

    Returns:
        Exit code of the command, `STOPPED` if it was stopped.
    """
    code = STOPPED
    for _ in range(1 + RETRIES):
        if stopped():
            return STOPPED
        code = _execute_once(job, cwd, stopped)
        if code >= 0:  # not killed by a signal
            return code
    return code


def _execute_once(job: Job, cwd: Path, stopped: Callable[[], bool]) -> int:
    command = [sys.executable, "-m", "metagrove.workers.child", *job.command(cwd)]
    log = cwd / job.log
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        how = {"stdin": subprocess.PIPE, "stdout": output, "stderr": output, "start_new_session": True}
        with subprocess.Popen(command, cwd=cwd, env=environment(), **how) as process:
            stop_requested = False
            while process.poll() is None:
                if stopped() and not stop_requested:
                    process.terminate()
                    stop_requested = True
                try:
                    process.wait(SECONDS_BETWEEN_LOOKS)
                except subprocess.TimeoutExpired:
                    continue
            return STOPPED if stop_requested and process.returncode else process.returncode


def environment() -> dict[str, str]:
    """Environment of the process of a job."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {**os.environ, **ONE_CORE, "XLA_FLAGS": flags if ONE_THREAD in flags else f"{flags} {ONE_THREAD}".strip()}


def last_lines(job: Job, count: int = 5) -> str:
    """The last lines that a job printed, for an error message."""
    if not job.log.exists():
        return ""
    return "\n".join(job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])

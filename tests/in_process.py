"""A pool without processes: jobs are commands in this one."""

import contextlib
from concurrent.futures import Future
from pathlib import Path

from metagrove.cli.app import main


class InThisProcess:
    """Executes jobs as they are submitted, and keeps them."""

    def __init__(self, size=1):
        self.size = size
        self.jobs = []
        self.run = main

    @property
    def folders(self):
        return [str(job.folder) for job in self.jobs]

    def stop(self):
        pass

    def close(self):
        pass

    def submit(self, job):
        self.jobs.append(job)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        future = Future()
        with job.log.open("w") as log, contextlib.redirect_stderr(log):
            future.set_result(self.run(job.command(Path.cwd())))
        return future

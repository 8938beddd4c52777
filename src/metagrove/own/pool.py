"""Trainings on own data: one after another in this process, or in parallel in separate processes."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from metagrove.config.config import Config
from metagrove.errors import DivergedError, RunError
from metagrove.training.jobs import TrainJob, config_job
from metagrove.training.loop import train
from metagrove.workers.job import Job, last_lines
from metagrove.workers.pool import LocalPool, run_jobs


@dataclasses.dataclass(frozen=True)
class Training:
    """A config to train into a folder; a training that was started is resumed."""

    label: str
    config: Config
    folder: Path
    command: str = "metagrove train own"
    """The command to record in the provenance of the run."""


def train_all(trainings: Sequence[Training], workers: int) -> bool:
    """Train configs; return False if interrupted.

    Args:
        trainings: What to train.
        workers: Number of trainings at a time. A single one trains in this process.

    Raises:
        DivergedError: If a training diverges.
        RunError: If a training fails otherwise.
    """
    if workers == 1:
        return all(train_here(one) for one in trainings)
    failures: list[tuple[Job, int]] = []

    def after(job: Job, code: int) -> Sequence[TrainJob]:
        failures.extend([(job, code)] if code else [])
        return ()

    jobs = [config_job(one.label, one.config, one.folder, one.command) for one in trainings]
    done = run_jobs(jobs, LocalPool(min(workers, len(jobs))), after)
    for job, code in failures if done else ():
        error = DivergedError if code == DivergedError.exit_code else RunError
        raise error(f"{job.label} failed with code {code}:\n{last_lines(job)}")
    return done


def train_here(one: Training) -> bool:
    """Train in this process; return False if interrupted."""
    there = (one.folder / "run.json").exists()
    return train(one.config, one.folder, resume=there, command=one.command)

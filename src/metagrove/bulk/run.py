"""`metagrove adapt` and `metagrove predict` with --tasks: all tasks of a table, in parallel processes."""

import dataclasses
from pathlib import Path

from metagrove.bulk.work import Work, WorkFolder, begin, do_parts, join_results
from metagrove.errors import InputError, RunError
from metagrove.workers.job import Job, last_lines
from metagrove.workers.pool import Pool, run_jobs

__all__ = ["ShareJob", "do_share", "run_work"]


@dataclasses.dataclass(frozen=True)
class ShareJob:
    """A share of the parts of a work, for `workers.pool.run_jobs`: every n-th part.

    Args:
        folder: The folder of the work.
        share: Number of the share, from 0.
        num_shares: Number of shares.
        num_parts: Number of parts.
    """

    folder: Path
    share: int
    num_shares: int
    num_parts: int

    @property
    def label(self) -> str:
        """Display name of the job."""
        return f"parts {self.share + 1}, {self.share + 1 + self.num_shares}, ..."

    @property
    def parts(self) -> range:
        """Numbers of the parts."""
        return range(self.share, self.num_parts, self.num_shares)

    @property
    def total(self) -> int:
        """Number of parts."""
        return len(self.parts)

    @property
    def log(self) -> Path:
        """File of what the command prints."""
        return self.folder / f"share-{self.share}.log"

    def command(self, cwd: Path) -> list[str]:
        """Arguments of `metagrove`."""
        del cwd
        return ["work", str(self.folder), "--share", str(self.share), "--num-shares", str(self.num_shares)]

    def done(self) -> int:
        """Number of parts that have a result."""
        return WorkFolder(self.folder).count_done(self.parts)


def run_work(work: Work, out: Path, pool: Pool) -> int | None:
    """Adapt to all tasks of a table and write one Parquet file, continuing earlier work.

    The parts of the table, and the batches within a part, do not depend on the number of workers, and neither does the
    result.

    Args:
        work: Description of the work.
        out: The result, a Parquet file.
        pool: Executes the work.

    Returns:
        Number of rows of the result; None if interrupted.

    Raises:
        InputError: If the table cannot be used; the message names file, row and column.
        RunError: If a worker fails otherwise.
    """
    if out.suffix.lower() not in (".parquet", ".pq"):
        raise InputError(f"{out} must end in .parquet: the result for many tasks is written as Parquet")
    if out.exists() and out.samefile(work.tasks):
        raise InputError(f"{out} is the table itself: choose another file for the result")
    folder = WorkFolder(out.with_name(f"{out.name}.work"))
    num_parts = begin(work, folder)
    shares = min(pool.size, num_parts)
    jobs = [ShareJob(folder.path, share, shares, num_parts) for share in range(shares)]
    failed: list[tuple[Job, int]] = []

    def after(job: Job, code: int) -> tuple[Job, ...]:
        failed.extend([(job, code)] if code else [])
        return ()

    if not run_jobs(jobs, pool, after):
        return None
    for job, code in failed:
        message = last_lines(job, 1).removeprefix("metagrove: ")
        raise InputError(message) if code == InputError.exit_code else RunError(f"{job.label} failed: {message}")
    return join_results(folder, num_parts, out)


def do_share(folder: Path, share: int, num_shares: int) -> None:
    """Do a share of the parts of a work, in this process."""
    _, num_parts = WorkFolder(folder).read()
    do_parts(WorkFolder(folder), ShareJob(folder, share, num_shares, num_parts).parts)

"""The order of the trainings of experiments: a row after its search, everything else in parallel."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from metagrove.errors import DivergedError, MetagroveError, RunError
from metagrove.paper.experiments import Row, Search
from metagrove.paper.trainings import ExperimentContext, needs_search, row_jobs, search_file, trial_jobs, write_search
from metagrove.training.jobs import TrainJob
from metagrove.workers.job import Job, last_lines
from metagrove.workers.pool import Pool, run_jobs

Wanted = Sequence[tuple[Row, ExperimentContext]]


def train_rows(wanted: Wanted, pool: Pool) -> bool:
    """Search and train what is missing of some rows.

    Args:
        wanted: The rows, with their experiments.
        pool: Executes the trainings.

    Returns:
        False if interrupted.

    Raises:
        DivergedError: If a row, or every candidate of its search, diverged before its first checkpoint; the other rows
            are trained.
        RunError: If a training failed; the other rows are trained.
    """
    schedule = Schedule()
    if not run_jobs(schedule.first(wanted), pool, schedule.after):
        return False
    if schedule.failures:
        first, *_ = schedule.failures
        raise type(first)("\n".join(str(one) for one in schedule.failures))
    return True


@dataclasses.dataclass(frozen=True)
class OpenSearch:
    """A search that is not complete, and the rows that wait for it."""

    search: Search
    context: ExperimentContext
    rows: list[tuple[Row, ExperimentContext]]
    left: set[Path]
    """Folders of the candidates that are not trained."""
    diverged: set[Path] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Trainings in progress, and those that can start when one has ended."""

    searches: dict[Path, OpenSearch] = dataclasses.field(default_factory=dict)
    folders: set[Path] = dataclasses.field(default_factory=set)
    """Folders of all scheduled trainings, since rows may share one."""
    failures: list[MetagroveError] = dataclasses.field(default_factory=list)

    def first(self, wanted: Wanted) -> list[TrainJob]:
        """The candidates of the searches, and the rows that wait for no search."""
        jobs: list[TrainJob] = []
        for row, context in wanted:
            if row.search is None or not needs_search(row, context):
                jobs += self._new(row_jobs(row, context))
                continue
            path = search_file(row.search, context)
            if path in self.searches:
                self.searches[path].rows.append((row, context))
                continue
            trials = self._new(trial_jobs(row.search, context))
            self.searches[path] = OpenSearch(row.search, context, [(row, context)], {job.folder for job in trials})
            jobs += trials
        return jobs + [job for one in self.searches.values() if not one.left for job in self._complete(one)]

    def after(self, job: Job, code: int) -> list[TrainJob]:
        """The rows whose search a training has completed."""
        assert isinstance(job, TrainJob)
        search = next((one for one in self.searches.values() if job.folder in one.left), None)
        if code == DivergedError.exit_code:
            self._diverged(job, search)
        elif code != 0:
            self.failures.append(RunError(f"{job.label} failed with code {code}:\n{last_lines(job)}"))
        if search is None or code not in (0, DivergedError.exit_code):
            return []
        search.left.remove(job.folder)
        return [] if search.left else self._complete(search)

    def _diverged(self, job: TrainJob, search: OpenSearch | None) -> None:
        if search is not None:
            search.diverged.add(job.folder)
        elif not (job.folder / "best.json").exists():  # otherwise its best checkpoint before that is used
            self.failures.append(DivergedError(f"{job.label} diverged:\n{last_lines(job)}"))

    def _complete(self, one: OpenSearch) -> list[TrainJob]:
        try:
            write_search(one.search, one.context, one.diverged)
        except DivergedError as error:
            self.failures.append(error)
            return []
        return [job for row, context in one.rows for job in self._new(row_jobs(row, context))]

    def _new(self, jobs: Iterable[TrainJob]) -> list[TrainJob]:
        new = [job for job in jobs if job.folder not in self.folders]
        self.folders.update(job.folder for job in new)
        return new

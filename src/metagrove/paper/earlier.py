"""Earlier results: a seed that a result has with the same settings and test tasks is not trained again."""

import dataclasses
import statistics
from pathlib import Path

from metagrove import files
from metagrove.config.encoding import from_json, to_json
from metagrove.files import Json
from metagrove.paper.experiments import Row
from metagrove.paper.results import ExperimentResult, RowResult, SearchRecord, SeedResult, Trial, read_result
from metagrove.paper.trainings import ExperimentContext, finished, finished_trials, plain_data, run_of, search_file


@dataclasses.dataclass(frozen=True)
class EarlierResult:
    """The rows of an earlier result of an experiment at the same budget."""

    context: ExperimentContext
    rows: dict[str, RowResult]
    """By label, with configs in the current format."""
    trials: dict[str, list[Trial]]
    """Finished trials of rows that were not trained, by label."""

    @classmethod
    def read(cls, path: Path, context: ExperimentContext) -> "EarlierResult":
        """Read a result file, if there is one, and restore the records of its searches."""
        stored: Json = read_result(path) if path.exists() else {"format": files.FORMAT, "rows": []}
        result = files.from_json(ExperimentResult, stored) if path.exists() else None
        rows = [in_current_format(row, stored["format"]) for row in result.rows] if result else []
        earlier = cls(context, {row.label: row for row in rows}, result.trials if result else {})
        for row in context.experiment.rows:
            earlier._restore_search(row)
        return earlier

    def missing(self, row: Row) -> list[Row]:
        """The row with the seeds that are neither in the result nor trained here; empty if there are none."""
        seeds = tuple(seed for seed in row.seeds if self._of_seed(row, seed) is None)
        return [dataclasses.replace(row, seeds=seeds)] if seeds else []

    def merge(self, rows: list[Row], evaluated: list[RowResult], *, complete: bool) -> list[RowResult]:
        """The rows of an experiment in its order: newly evaluated seeds, otherwise those of the earlier result.

        Args:
            rows: Rows of the experiment.
            evaluated: Newly evaluated rows, with the seeds that were evaluated.
            complete: Whether all rows are trained. If not, results with other settings stay until they are replaced.
        """
        new = {row.label: row for row in evaluated}
        merged = []
        for row in rows:
            fresh = {one.seed: one for one in new[row.label].seeds} if row.label in new else {}
            seeds = [one for seed in row.seeds if (one := fresh.get(seed) or self._of_seed(row, seed)) is not None]
            if seeds:
                merged.append(with_seeds(new.get(row.label) or self.rows[row.label], seeds))
            elif not complete and row.label in self.rows:
                merged.append(self.rows[row.label])
        labels = {row.label for row in rows}
        return merged + [one for label, one in self.rows.items() if not (complete or label in labels)]

    def trials_of(self, rows: list[Row], trained: list[RowResult]) -> dict[str, list[Trial]]:
        """The candidates of the rows that are not trained: those trained here, otherwise those of the result."""
        labels = {row.label for row in trained}
        trials = {
            row.label: finished_trials(row, self.context) or self.trials.get(row.label, [])
            for row in rows
            if row.label not in labels
        }
        return {label: finished for label, finished in trials.items() if finished}

    def _of_seed(self, row: Row, seed: int) -> SeedResult | None:
        """The stored result of a seed, if its settings and its test tasks are the same."""
        stored = next((one for one in self._seeds(row) if one.seed == seed), None)
        if stored is None or not self._searched(row):
            return None
        tasks = min(self.context.experiment.tasks, self.context.budget.tasks)
        if (stored.test_seed, stored.evaluation.num_tasks) != (self.context.experiment.test_seed, tasks):
            return None
        config, folder, _ = run_of(row, seed, self.context)
        same = from_json(stored.config, file_format=files.FORMAT) == config
        return stored if same and not finished(folder, config) else None

    def _seeds(self, row: Row) -> list[SeedResult]:
        return self.rows[row.label].seeds if row.label in self.rows else []

    def _searched(self, row: Row) -> bool:
        """Whether the settings of a row are known without a search."""
        return row.search is None or self.context.budget.trial is None or search_file(row.search, self.context).exists()

    def _restore_search(self, row: Row) -> None:
        """Write the record of a search that is in the result but not in the folder of runs."""
        record = self.rows[row.label].search if row.label in self.rows else None
        if row.search is None or record is None or self.context.budget.trial is None or self._searched(row):
            return
        requested = [row.search.preset, row.search.base, self.context.budget.trial, list(row.search.candidates)]
        if plain_data(requested) == plain_data(stored_search(record)):
            path = search_file(row.search, self.context)
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, {"format": files.FORMAT, **files.as_json(record)})


def in_current_format(row: RowResult, file_format: int) -> RowResult:
    """The row with its configs in the current file format, in which the result will be written."""
    if file_format == files.FORMAT:
        return row
    seeds = [
        dataclasses.replace(one, config=to_json(from_json(one.config, file_format=file_format))) for one in row.seeds
    ]
    return dataclasses.replace(row, seeds=seeds)


def stored_search(record: SearchRecord) -> list:
    """Identity of a search: preset, settings of all candidates, of their trainings, and the candidates."""
    return [record.preset, record.base, record.trial, [one.settings for one in record.candidates]]


def with_seeds(row: RowResult, seeds: list[SeedResult]) -> RowResult:
    """The row with these seeds, and the mean and standard deviation over them."""
    values = [one.evaluation.value for one in seeds]
    std = statistics.stdev(values) if len(values) > 1 else None
    return dataclasses.replace(row, seeds=seeds, mean_over_seeds=statistics.fmean(values), sd_over_seeds=std)

"""Results of experiments, as stored in results/*.json."""

import dataclasses
import functools
import json
from pathlib import Path

from metagrove.evaluation.hierarchy import HierarchyMeasures
from metagrove.evaluation.summaries import StreamSummary
from metagrove.files import FLAT, OMIT_NONE, Json, from_json
from metagrove.losses import best_of
from metagrove.training.records import ValidationRecord
from metagrove.training.scores import PairedComparison, Summary


@dataclasses.dataclass(frozen=True)
class Trial:
    """A candidate of a search after a short training."""

    settings: Json
    validation: ValidationRecord | None = None
    """None if it diverged."""
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """Candidates and selection of a search."""

    preset: str
    base: Json
    """Settings of all candidates."""
    trial: Json
    """Settings of the short training."""
    candidates: list[Trial]
    chosen: int
    """Index of the selected candidate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DifferenceTo(PairedComparison):
    """A paired difference with the label of the row it is to."""

    to: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedResult:
    """Evaluation of one run of a row on test tasks, and its training cost."""

    seed: int
    test_seed: int
    evaluation: Summary
    evaluation_4000: Summary
    """The same on the first 4,000 tasks, as in the paper."""
    paired_difference: DifferenceTo
    """Difference to the first row of the same source."""
    median: float | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Median over tasks: if errors vary widely, a few tasks dominate the mean."""
    scores: dict[str, str] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Score of each test task by family, if the experiment stores them."""
    data: dict[str, str] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Checksums of the stored data."""
    stream: StreamSummary | None = dataclasses.field(metadata=FLAT)
    hierarchy: HierarchyMeasures | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Whether the clusters matter, of a learner with clusters."""
    checkpoint: Json
    parameters: int
    meta_steps: int
    diverged: bool = False
    training_seconds: float
    steps_per_second: float | None
    peak_memory_mb: float | None
    curve: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    """(meta-step, score) of each validation."""
    final_training: dict[str, float] = dataclasses.field(default_factory=dict)
    """Mean loss and accuracy of the last meta-steps."""
    config: Json
    provenance: Json


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowResult:
    """A row of an experiment, over its seeds."""

    label: str
    preset: str
    paper: str | None
    """Value in the paper, if there is one."""
    mean_over_seeds: float
    sd_over_seeds: float | None
    search: SearchRecord | None = None
    seeds: list[SeedResult]

    @property
    def chosen(self) -> SeedResult:
        """The seed with the best validation score."""
        metric = self.seeds[0].evaluation.metric
        return best_of(self.seeds, lambda one: one.checkpoint["validation"]["value"], metric)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """Result of an experiment."""

    experiment: str
    about: str
    remark: str = ""
    provenance: Json
    rows: list[RowResult]
    trials: dict[str, list[Trial]] = dataclasses.field(default_factory=dict)
    """Candidates trained so far of rows that are not trained yet, by label."""


def read_result(path: Path) -> Json:
    """Read a result of any version, without checking its format and checksum."""
    result = json.loads(path.read_text(encoding="utf-8"))
    for row in result.get("rows", []):
        for seed in row.get("seeds") or []:
            complete(seed)
    return result


def read_experiment(path: Path) -> ExperimentResult:
    """Read the result of an experiment, of any version; once for all tables that are made of it."""
    return _read_experiment(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read_experiment(path: Path, changed: int) -> ExperimentResult:
    del changed
    return from_json(ExperimentResult, read_result(path))


def complete(seed: Json) -> None:
    """Add a field that the first results lack: the value of each family after the chosen number of inner steps."""
    for name in ("evaluation", "evaluation_4000"):
        steps = seed.get(name, {}).get("steps")
        for family in seed.get(name, {}).get("by_family", {}).values():
            if "value" not in family:
                family |= {"value": family["by_step"][steps], "value_ci95": family["ci95"][steps]}

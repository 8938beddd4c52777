"""Results of whole experiments, as results/*.json holds them."""

import dataclasses

from metagrove.evaluate.summaries import StreamStory
from metagrove.files import FLAT, OMIT_NONE, Json
from metagrove.losses import best_of
from metagrove.train.records import ValidationRecord
from metagrove.train.scores import PairedComparison, Summary


@dataclasses.dataclass(frozen=True)
class Trial:
    """A candidate of a search, trained for a while."""

    settings: Json
    validation: ValidationRecord | None = None
    """None if it diverged."""
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """What a search tried and chose."""

    preset: str
    base: Json
    """Settings of all candidates."""
    trial: Json
    """Settings of the short training."""
    candidates: list[Trial]
    chosen: int
    """The candidate that was chosen, by number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DifferenceTo(PairedComparison):
    """A paired difference, and to which row."""

    to: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One run of a row on the test tasks, and what its training took."""

    seed: int
    test_seed: int
    evaluation: Summary
    evaluation_4000: Summary
    """The same on the first 4,000 tasks, as in the paper."""
    paired_difference: DifferenceTo
    """Less the first row of the same source."""
    scores: dict[str, str] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Every task's score by family, where an experiment keeps them."""
    data: dict[str, str] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Checksums of the stored data."""
    stream: StreamStory | None = dataclasses.field(metadata=FLAT)
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
    """The paper's number, if it has one."""
    mean_over_seeds: float
    sd_over_seeds: float | None
    search: SearchRecord | None = None
    seeds: list[SeedResult]

    @property
    def chosen(self) -> SeedResult:
        """The seed that did best on the validation tasks."""
        metric = self.seeds[0].evaluation.metric
        return best_of(self.seeds, lambda one: one.checkpoint["validation"]["value"], metric)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """A whole experiment."""

    experiment: str
    about: str
    remark: str = ""
    provenance: Json
    rows: list[RowResult]

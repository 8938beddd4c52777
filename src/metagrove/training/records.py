"""Records of training: a line of metrics.jsonl for each block, and the progress in last.json."""

import dataclasses
import hashlib
import math
from typing import Any, Literal

from metagrove.files import FLAT, OMIT_NONE, json_key
from metagrove.learner import GrowthStart


@dataclasses.dataclass(frozen=True)
class ValidationRecord:
    """Scores on the validation tasks, after the number of inner steps that did best."""

    value: float
    """Their mean, over the families that have arrived."""
    ci95: float
    steps: int
    """The number of inner steps."""
    by_family: dict[str, float] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Means of all families, where there are several."""
    nmi: float | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Normalised mutual information of the strongest clusters and the families."""
    shares: list[float] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Mean share of each first-level cluster."""


@dataclasses.dataclass(frozen=True)
class GrowthCause:
    """Why a cluster is added: two windows of training compared."""

    watched: str | None
    """The compared quantity: loss, accuracy or embedding; None in results of version 0.1."""
    last_window: float
    this_window: float
    detector: str
    ratio: float | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """this_window / last_window, of the detector `ratio`."""
    t: float | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """Welch's t statistic, of the detector `novelty`."""


@dataclasses.dataclass(frozen=True)
class GrowthEvent:
    """A cluster that was added."""

    before: tuple[int, ...] = dataclasses.field(metadata=json_key("from"))
    """Clusters of each level before."""
    clusters: tuple[int, ...]
    """Clusters of each level now."""
    cause: GrowthCause
    start: GrowthStart
    changed: float
    """Relative root mean square change of predictions by the new cluster, over validation tasks."""


@dataclasses.dataclass(frozen=True)
class BlockRecord:
    """A line of metrics.jsonl: a block of meta-steps. The start of a stream has a line with its validation alone."""

    step: int
    """The last meta-step of the block; of a fit before the first meta-step, a number below 0, or 0 at its end."""
    means: dict[str, float] = dataclasses.field(default_factory=dict, metadata=FLAT)
    """Means over the block of the loss, the norm of the gradient and the learner's own metrics; of a fit, with its name
    first, e.g. evidence_loss."""
    validation: ValidationRecord | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    growth: GrowthEvent | None = dataclasses.field(default=None, metadata=OMIT_NONE)

    @property
    def loss(self) -> float:
        """The mean of the loss that the block trained."""
        own = (mean for name, mean in self.means.items() if name.endswith("_loss"))
        return self.means["loss"] if "loss" in self.means else next(own, math.nan)

    @property
    def fitted(self) -> bool:
        """Whether the block belongs to a fit before the first meta-step."""
        return bool(self.means) and "loss" not in self.means

    @property
    def watched(self) -> Literal["accuracy", "loss"]:
        """The metric of training progress: the accuracy of a classifier, otherwise the loss."""
        return "accuracy" if "accuracy" in self.means else "loss"


@dataclasses.dataclass(frozen=True)
class BestCheckpoint:
    """The validation that chose the checkpoint `best`."""

    step: int
    validation: ValidationRecord
    phase: int = 0
    """Of a stream, the phase that it was made in: only checkpoints of the last phase compete."""


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Everything needed to reproduce the results."""

    command: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: str = "not recorded"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """run.json: the settings of a run, as plain data, and its provenance."""

    format: int
    config: dict[str, Any]
    provenance: Provenance = Provenance()


@dataclasses.dataclass(frozen=True)
class WeightsRecord:
    """Record of the file of arrays in the JSON file of a checkpoint."""

    format: int
    weights: str
    """The name of the file, in the same folder."""
    sha256: str
    bytes: int | None = None
    """Its size; None in files of version 0.2.0 and before."""


@dataclasses.dataclass(frozen=True)
class BestRecord:
    """best.json without the record of its arrays."""

    step: int
    validation: ValidationRecord
    phase: int = 0
    seconds: float = math.nan
    clusters: tuple[int, ...] = ()
    """Clusters of each level, of a learner that has some."""


@dataclasses.dataclass(frozen=True)
class LogMark:
    """A running checksum of metrics.jsonl: each line's is that of the one before it and of the line."""

    lines: int = 0
    sha256: str = ""

    def after(self, line: bytes) -> "LogMark":
        """The mark with one more line, which ends in a line break."""
        return LogMark(self.lines + 1, hashlib.sha256(self.sha256.encode() + line).hexdigest())


@dataclasses.dataclass(frozen=True)
class GrowthState:
    """State of a growth detector between blocks."""

    blocks: tuple[tuple[float, ...], ...] = ()
    """(meta-steps, mean) of each block of the window that is being filled."""
    before: tuple[tuple[float, ...], ...] = ()
    """The same of the last window."""
    last_growth: int = 0
    last_step: int = 0
    """The last meta-step that the detector observed."""


@dataclasses.dataclass(frozen=True)
class TrainingProgress:
    """Training progress, stored with the last checkpoint."""

    best: BestCheckpoint | None = None
    not_better: int = 0
    """Consecutive validations without improvement."""
    seconds: float = 0.0
    """Time in training."""
    steps_per_second: float = 0.0
    """Meta-steps per second of the fastest block, which excludes compilation."""
    peak_memory_mb: float = 0.0
    """Peak memory of the process that writes the run, over all resumes."""
    devices: int = 1
    """Number of devices that shared the tasks of the last meta-steps."""
    watch: GrowthState = GrowthState()
    log: LogMark = LogMark()
    """Mark of all lines of metrics.jsonl."""
    marks: tuple[LogMark, ...] = ()
    """Marks of all checkpoints so far; empty in runs of version 0.2.0 and before."""

    def logged(self, line: bytes) -> "TrainingProgress":
        """The progress with one more line of metrics.jsonl."""
        return dataclasses.replace(self, log=self.log.after(line))

    def marked(self) -> "TrainingProgress":
        """The progress of a checkpoint, with a mark of the lines so far."""
        return dataclasses.replace(self, marks=(*self.marks, self.log))


@dataclasses.dataclass(frozen=True)
class LastRecord:
    """last.json without the record of its arrays."""

    step: int
    progress: TrainingProgress = dataclasses.field(metadata=FLAT)
    clusters: tuple[int, ...] = ()

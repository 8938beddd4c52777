"""What a run is: a source, a learner and the settings of its training."""

import bisect
import dataclasses
import itertools
from typing import Any, Literal

import optax
import tyro
from jaxtyping import ArrayLike

from metagrove.adam import cosine_decay, scale_by_aged_adam
from metagrove.config.settings import replace_settings
from metagrove.errors import InputError, check_at_least_one
from metagrove.learner import GrowthStart, Learner
from metagrove.losses import metric_of
from metagrove.sources.source import Source

__all__ = ["Config", "Growth", "Phase", "Training", "check_config"]


@dataclasses.dataclass(frozen=True)
class Growth:
    """When a hierarchy gains a cluster, and how the cluster is initialised (HSML-D)."""

    growth_window: int = 0
    """Q: meta-steps whose mean loss (accuracy, of a classifier) is set against the window's before; 0: never grow."""
    growth_threshold: float = 1.25
    """μ: grow when the loss is more than so many times the last window's, or the accuracy less, for a μ below 1."""
    growth_cooldown: int = 8000
    """Meta-steps after the start, and after a growth, in which nothing grows."""
    growth_detector: Literal["ratio", "novelty"] = "ratio"
    """How two windows are compared: the paper's ratio; novelty, the t statistic of the embeddings of tasks drawn as now
    and as at the last look, where they differ most."""
    growth_t: float = 5.0
    """With novelty, the least t for which a cluster is added."""
    growth_probe: int = 600
    """With novelty, tasks that are drawn as they come now, and as many as they came at the last look."""
    growth_start: GrowthStart = "random"
    """A new cluster: random as in the paper; warm, at the tasks that fit worst."""
    most_clusters: int = 16
    """Clusters of the first level beyond which nothing grows."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of the training with a loss of its own, in which some of the meta-parameters are trained."""

    steps: int = 0
    """Meta-steps of the phase; 0 for all that are left."""
    trains: tuple[str, ...] = ()
    """Fields of the meta-parameters that are trained, e.g. embed; all, if none is named."""
    loss: str = "query"
    """The loss: query, or another one that the learner has, e.g. HSML's reconstruction."""


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings of the outer loop: meta-steps, optimiser, validation, growth and phases.

    Example:
        >>> import metagrove as mg
        >>> training = mg.Training(steps=1000, schedule="cosine", warmup_steps=100)
    """

    steps: int = 70_000
    """Number of meta-steps."""
    meta_batch: int = 25
    """Number of tasks per meta-step."""
    task_chunk_size: int = 400
    """Most tasks worked on at once; a larger meta-batch goes group by group, in less memory and the same result."""
    outer_lr: float = 0.001
    """Outer learning rate (β) of Adam."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of β: constant, or cosine decay to 0."""
    warmup_steps: int = 0
    """Linear warmup steps of β."""
    clip_norm: float = 0.0
    """Clip the meta-gradient to this global norm; 0 disables clipping."""
    seed: int = 0
    """Random seed."""
    log_every: int = 100
    """Meta-steps in one compiled call, and between two lines of metrics.jsonl."""
    validate_every: int = 1000
    """Meta-steps between two validations, each followed by a checkpoint."""
    validation_tasks: int = 2000
    """Validation tasks; they choose the best checkpoint and the number of inner steps at test."""
    max_eval_inner_steps: int = 10
    """Largest number of inner steps scored in validation and evaluation."""
    growth: Growth = Growth()
    """When clusters are added."""
    phases: tyro.conf.Suppress[tuple[Phase, ...]] = ()
    """Phases of the training, in order; without any, all is trained by the query loss from first to last."""

    def phase_ends(self) -> list[int]:
        """Return the meta-step at which each phase ends; the last phase takes all remaining meta-steps.

        Returns:
            A meta-step for each phase.
        """
        ends = list(itertools.accumulate(phase.steps for phase in self.phases))
        return [*ends[:-1], self.steps]

    def phase_at(self, step: int) -> Phase:
        """Return the phase that a meta-step belongs to.

        Args:
            step: The meta-step, from 0.

        Returns:
            The phase.
        """
        return self.phases[bisect.bisect(self.phase_ends()[:-1], step)]

    def optimizer(self, steps: ArrayLike | None = None) -> optax.GradientTransformation:
        """Create the optimiser: Adam with the learning rate schedule and gradient clipping of these settings.

        Where clusters are added during training, each has its own step count in Adam's bias correction.

        Args:
            steps: Number of meta-steps of the schedule, if it is data of a compiled function; by default `self.steps`.

        Returns:
            An optax gradient transformation.
        """
        rate = optax.constant_schedule(self.outer_lr)
        if self.schedule == "cosine":
            rate = cosine_decay(self.outer_lr, (self.steps if steps is None else steps) - self.warmup_steps)
        if self.warmup_steps:
            rise = optax.linear_schedule(0.0, self.outer_lr, self.warmup_steps)
            rate = optax.join_schedules([rise, rate], [self.warmup_steps])
        clip = [optax.clip_by_global_norm(self.clip_norm)] if self.clip_norm else []
        adam = scale_by_aged_adam() if self.growth.growth_window else optax.scale_by_adam()
        return optax.chain(*clip, optax.chain(adam, optax.scale_by_learning_rate(rate)))


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that determines a run: a source of tasks, a learner and the settings of training.

    Args:
        source: Source of tasks.
        learner: The method.
        training: Settings of the outer loop.

    Example:
        >>> import metagrove as mg
        >>> config = mg.Config(mg.Functions(), mg.MAML()).with_settings(steps=100, inner_lr=0.01)
        >>> config.training.steps
        100
    """

    source: Source
    learner: Learner
    training: Training = Training()

    def with_settings(self, **settings: Any) -> "Config":
        """The same with some settings changed, whichever part they belong to.

        Args:
            **settings: Settings by name, e.g. `steps=100, hidden=(20,), clusters=(6, 3, 1)`; a part of HSML by the
                name of a choice, e.g. `embed="attention", gate="affine"`.

        Returns:
            The changed config.

        Raises:
            InputError: No part has a setting of that name; the message has the nearest one.
        """
        return replace_settings(self, settings)


def check_config(config: Config) -> None:
    """Refuse settings that cannot work, all of them at once."""
    net: Any = getattr(config.learner, "net", None)
    problems = training_errors(config.training) + config.source.validation_errors() + config.learner.validation_errors()
    problems += net.validation_errors() if hasattr(net, "validation_errors") else []
    problems += [] if problems else growth_errors(config)
    if problems:
        raise InputError("; ".join(problems))
    config.source.begins(config.training.steps)  # refuses a timetable that does not fit the number of meta-steps


def training_errors(training: Training) -> list[str]:
    """What is wrong with the outer loop's settings, a line each."""
    counts = ("steps", "meta_batch", "task_chunk_size", "log_every", "validate_every", "max_eval_inner_steps")
    problems = check_at_least_one(training, *counts)
    if training.validation_tasks < 2:
        problems += [f"validation_tasks must be at least 2, got {training.validation_tasks}"]
    if min((phase.steps for phase in training.phases[:-1]), default=1) < 1:
        problems += ["every phase but the last must have at least one meta-step"]
    elif training.phases and sum(phase.steps for phase in training.phases[:-1]) >= training.steps:
        problems += [f"phases must end before the last of {training.steps} meta-steps"]
    rates = ("outer_lr", "warmup_steps", "clip_norm")
    return problems + [
        f"{name} must be 0 or more, got {value}" for name in rates if not (value := getattr(training, name)) >= 0
    ]


def growth_errors(config: Config) -> list[str]:
    """What keeps this learner from growing as asked."""
    growth, learner = config.training.growth, config.learner
    if not growth.growth_window:
        return []
    problems = learner.growth_errors()
    if not learner.clusters:
        return problems
    problems += check_at_least_one(growth, "growth_window")
    if not growth.growth_threshold > 0:
        problems += [f"growth_threshold must be positive, got {growth.growth_threshold}"]
    if growth.growth_detector == "ratio" and metric_of(learner.loss).higher_is_better and growth.growth_threshold >= 1:
        problems += [f"growth_threshold must be below 1 for an accuracy, got {growth.growth_threshold}"]
    if growth.growth_window % config.training.log_every:
        problems += [f"growth_window must be a multiple of log_every, got {growth.growth_window}"]
    if growth.growth_probe < 4:
        problems += [f"growth_probe must be at least 4, got {growth.growth_probe}"]
    return problems

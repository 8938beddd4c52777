"""The configuration of a run: a source, a learner and the settings of its training."""

import bisect
import dataclasses
import itertools
from typing import Any, Literal

import optax
import tyro
from jaxtyping import ArrayLike

from metagrove.adam import clip_by_norm, cosine_decay, linear_decay, scale_by_aged_adam
from metagrove.config.phases import read_phases
from metagrove.config.settings import replace_settings
from metagrove.config.validate import part_errors, setting_errors
from metagrove.errors import InputError, check_at_least_one
from metagrove.learner import GrowthStart, Learner, Phase
from metagrove.losses import metric_of
from metagrove.sources.source import Source

__all__ = ["Config", "Growth", "Phase", "Training", "check_config"]


@dataclasses.dataclass(frozen=True)
class Growth:
    """When a hierarchy gains a cluster, and how the cluster is initialised (HSML-D)."""

    growth_window: int = 0
    """Q: meta-steps of two windows whose mean losses (accuracies of classifiers) are compared; 0 disables growth."""
    growth_threshold: float = 1.25
    """μ: add a cluster when the mean loss exceeds μ times that of the last window (accuracy: falls below, μ < 1)."""
    growth_cooldown: int = 8000
    """Meta-steps after the start, and after each new cluster, in which none is added."""
    growth_detector: Literal["ratio", "novelty", "evidence"] = "ratio"
    """How a change of the tasks is detected: ratio of the losses of two windows, as in the paper; novelty, a t test of
    task embeddings now and at the last check; evidence (learner grove), the share of tasks that belong to none of the
    known clusters."""
    growth_t: float = 5.0
    """With novelty, the t statistic above which a cluster is added."""
    growth_probe: int = 600
    """With novelty and evidence, the number of current tasks drawn for each check."""
    growth_start: GrowthStart = "random"
    """Initialisation of a new cluster: random as in the paper, or warm, at the tasks with the largest loss."""
    most_clusters: int = 16
    """Maximum number of first-level clusters."""


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings of the outer loop: meta-steps, optimiser, validation, growth and phases.

    Example:
        >>> import metagrove as mg
        >>> training = mg.Training(steps=1000, schedule="cosine", warmup_steps=100)
    """

    steps: int = 70_000
    """Number of meta-steps, not counting those of a fit before them; 0 for a learner that is only fitted."""
    meta_batch: int = 25
    """Number of tasks per meta-step."""
    task_chunk_size: int = 400
    """Maximum number of tasks computed at once; a larger meta-batch is processed in chunks, in less memory."""
    task_blocks: int = 1
    """Minimum number of equal blocks that a meta-batch is cut into; there are more if task_chunk_size requires it. At
    most one device per block. The result depends on the blocks (by rounding), never on the number of devices."""
    outer_lr: float = 0.001
    """Outer learning rate (β)."""
    outer_rule: Literal["adam", "sgd"] = "adam"
    """Outer optimiser: Adam, or plain gradient descent (Reptile as published)."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Schedule of β: constant, or cosine or linear decay to 0."""
    warmup_steps: int = 0
    """Linear warmup steps of β."""
    clip_norm: float = 0.0
    """Clip the meta-gradient to this global norm; 0 disables clipping."""
    seed: int = 0
    """Random seed."""
    log_every: int = 100
    """Number of meta-steps per compiled call, and per line of metrics.jsonl."""
    validate_every: int = 1000
    """Number of meta-steps between validations, each followed by a checkpoint."""
    validation_tasks: int = 2000
    """Number of validation tasks, which select the best checkpoint and the number of inner steps at test."""
    patience: int = 0
    """Stop after this many consecutive validations without improvement; 0 disables early stopping."""
    max_eval_inner_steps: int = 10
    """Maximum number of inner steps scored in validation and evaluation."""
    growth: Growth = Growth()
    """When clusters are added."""
    pretrain_steps: int = 0
    """Number of supervised pretraining steps before the first meta-step: the base net classifies the images of training
    tasks among all training classes, by a linear layer that is then removed; 0 disables pretraining."""
    phases: tyro.conf.Suppress[tuple[Phase, ...]] = ()
    """Training phases in order; if empty, all meta-parameters are trained by the query loss."""

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
        """Create the outer optimiser with the learning rate schedule and gradient clipping of these settings.

        Where clusters are added during training, each has its own step count in Adam's bias correction.

        Args:
            steps: Number of meta-steps of the schedule, if it is data of a compiled function; by default `self.steps`.

        Returns:
            An optax gradient transformation.
        """
        rate, steps = optax.constant_schedule(self.outer_lr), self.steps if steps is None else steps
        if self.schedule != "constant":
            decay = cosine_decay if self.schedule == "cosine" else linear_decay
            rate = decay(self.outer_lr, steps - self.warmup_steps)
        if self.warmup_steps:
            rise = optax.linear_schedule(0.0, self.outer_lr, self.warmup_steps)
            rate = optax.join_schedules([rise, rate], [self.warmup_steps])
        clip = [clip_by_norm(self.clip_norm)] if self.clip_norm else []
        adam = scale_by_aged_adam() if self.growth.growth_window else optax.scale_by_adam()
        rule = optax.identity() if self.outer_rule == "sgd" else adam
        return optax.chain(*clip, optax.chain(rule, optax.scale_by_learning_rate(rate)))


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
                name of a choice, e.g. `embed="attention", gate="affine"`; phases in words, e.g.
                `phases="1/4: embed by reconstruction; net cluster gate"`.

        Returns:
            The changed config.

        Raises:
            InputError: No part has a setting of that name; the message has the nearest one.
        """
        if isinstance(words := settings.get("phases"), str):
            steps = settings.get("steps", self.training.steps)
            settings = {**settings, "phases": tuple(read_phases(words, steps))}
        return replace_settings(self, settings)


def check_config(config: Config) -> None:
    """Raise an InputError that lists all settings that cannot work."""
    if errors := setting_errors(Training, config.training, "training") + parts_errors(config):
        raise InputError("; ".join(errors))
    net: Any = getattr(config.learner, "net", None)
    problems = (
        training_errors(config.training, fitted=bool(config.learner.phases()))
        + config.source.validation_errors()
        + config.learner.validation_errors()
    )
    problems += net.validation_errors() if hasattr(net, "validation_errors") else []
    problems += ways_errors(config)
    problems += [] if problems else growth_errors(config)
    if problems:
        raise InputError("; ".join(problems))
    config.source.begins(config.training.steps)  # refuses a timetable that does not fit the number of meta-steps


def parts_errors(config: Config) -> list[str]:
    """List errors in the types and bounds of the settings of source and learner, unless they are a user's own."""
    parts = (("source", Source, config.source), ("learner", Learner, config.learner))
    return [line for kind, base, part in parts for line in part_errors(kind, base, part, kind) or []]


def ways_errors(config: Config) -> list[str]:
    """List what prevents this learner from training on tasks with another number of classes than at test."""
    train, test = config.source.train_spec.y_dim, config.source.spec.y_dim
    if train == test or config.learner.any_ways:
        return []
    return [f"train_ways must be 0 for {type(config.learner).__name__}: what it learns serves {test} ways, not {train}"]


def training_errors(training: Training, *, fitted: bool = False) -> list[str]:
    """List problems of the outer loop's settings; a learner with a fit needs no meta-steps after it."""
    counts = (
        *(() if fitted and training.steps == 0 else ("steps",)),
        "meta_batch",
        "task_chunk_size",
        "task_blocks",
        "log_every",
        "validate_every",
        "max_eval_inner_steps",
    )
    problems = check_at_least_one(training, *counts)
    if training.validation_tasks < 2:
        problems += [f"validation_tasks must be at least 2, got {training.validation_tasks}"]
    if min((phase.steps for phase in training.phases[:-1]), default=1) < 1:
        problems += ["every phase but the last must have at least one meta-step"]
    elif training.phases and sum(phase.steps for phase in training.phases[:-1]) >= training.steps:
        problems += [f"phases must end before the last of {training.steps} meta-steps"]
    rates = ("outer_lr", "warmup_steps", "clip_norm", "patience", "pretrain_steps")
    return problems + [
        f"{name} must be 0 or more, got {value}" for name in rates if not (value := getattr(training, name)) >= 0
    ]


def growth_errors(config: Config) -> list[str]:
    """List what prevents this learner from growing as configured."""
    growth, learner = config.training.growth, config.learner
    if not growth.growth_window:
        return []
    problems = learner.growth_errors()
    if not learner.clusters:
        return problems
    problems += check_at_least_one(growth, "growth_window")
    if config.training.outer_rule != "adam":
        problems += ["outer_rule must be adam where clusters are added"]
    if not growth.growth_threshold > 0:
        problems += [f"growth_threshold must be positive, got {growth.growth_threshold}"]
    if growth.growth_detector == "ratio" and metric_of(learner.loss).higher_is_better and growth.growth_threshold >= 1:
        problems += [f"growth_threshold must be below 1 for an accuracy, got {growth.growth_threshold}"]
    if growth.growth_window % config.training.log_every:
        problems += [f"growth_window must be a multiple of log_every, got {growth.growth_window}"]
    if growth.growth_detector == "evidence" and not learner.judges_novelty:
        problems += ["growth_detector evidence needs clusters found by evidence: use --learner grove"]
    if growth.growth_probe < 4:
        problems += [f"growth_probe must be at least 4, got {growth.growth_probe}"]
    return problems

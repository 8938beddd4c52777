"""What a run is: a source, a learner and the settings of its training; to JSON and back."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import optax
from jaxtyping import ArrayLike

from metagrove.adam import cosine_decay, scale_by_aged_adam
from metagrove.errors import InputError, check_at_least_one
from metagrove.hsml.learner import HSML
from metagrove.learner import GrowthStart, Learner
from metagrove.losses import cross_entropy, metric_of, mse
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.mlp import MLPNet
from metagrove.rivals.arml import ARML
from metagrove.rivals.bmaml import BMAML
from metagrove.rivals.maml import MAML
from metagrove.rivals.matching_net import MatchingNet
from metagrove.rivals.meta_sgd import MetaSGD
from metagrove.rivals.mt_net import MTNet
from metagrove.rivals.mumomaml import MUMOMAML
from metagrove.rivals.neural_process import NeuralProcess
from metagrove.rivals.protonet import ProtoNet
from metagrove.rivals.reptile import Reptile
from metagrove.rivals.scratch import Scratch
from metagrove.sources.functions import Functions
from metagrove.sources.images import Images
from metagrove.sources.source import Source
from metagrove.sources.stream import Stream
from metagrove.sources.tables import Tables
from metagrove.tables.schema import Schema

LEARNERS: dict[str, type[Learner]] = {
    "hsml": HSML,
    "maml": MAML,
    "meta-sgd": MetaSGD,
    "mt-net": MTNet,
    "bmaml": BMAML,
    "mumomaml": MUMOMAML,
    "arml": ARML,
    "reptile": Reptile,
    "protonet": ProtoNet,
    "matching-net": MatchingNet,
    "neural-process": NeuralProcess,
    "scratch": Scratch,
}
SOURCES: dict[str, type[Source]] = {"functions": Functions, "images": Images, "tables": Tables, "stream": Stream}
NETS: dict[str, type] = {"mlp": MLPNet, "conv4": Conv4Net}
LOSSES: dict[str, Callable] = {"mse": mse, "cross_entropy": cross_entropy}


@dataclasses.dataclass(frozen=True)
class Growth:
    """When a hierarchy gains a cluster, and how it starts (HSML-D)."""

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
class Training:
    """How the outer loop goes."""

    steps: int = 70_000
    """Meta-steps."""
    meta_batch: int = 25
    """Tasks a meta-step."""
    task_chunk_size: int = 400
    """Most tasks worked on at once; a larger meta-batch goes group by group, in less memory and the same result."""
    outer_lr: float = 0.001
    """β, Adam's step size."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How β changes: not at all, or down to 0 along a half cosine."""
    warmup_steps: int = 0
    """Meta-steps in which β rises from 0."""
    clip_norm: float = 0.0
    """Largest norm of the whole meta-gradient; 0 leaves it as it is."""
    seed: int = 0
    """Decides the start and every task."""
    log_every: int = 100
    """Meta-steps in one compiled call, and between two lines of metrics.jsonl."""
    validate_every: int = 1000
    """Meta-steps between two looks at the validation tasks, each followed by a checkpoint."""
    validation_tasks: int = 2000
    """Validation tasks; they choose the best checkpoint and the number of inner steps at test."""
    max_eval_inner_steps: int = 10
    """Most inner steps looked at in validation and evaluation."""
    growth: Growth = Growth()
    """When clusters are added."""

    def optimizer(self, steps: ArrayLike | None = None) -> optax.GradientTransformation:
        """Adam, with the schedule and clipping asked for; where clusters are born later, each counts its own steps.

        `steps` is the number of meta-steps, if it is not this setting but data of a compiled function.
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
    """Everything that decides a run."""

    source: Source
    learner: Learner
    training: Training = Training()

    def with_settings(self, **settings: Any) -> "Config":
        """The same with some settings changed, whichever part they belong to, e.g. `steps=100, hidden=(20,)`."""
        known = settings_of(self)
        unknown = [name_it(key, known) for key in settings if key not in known]
        if unknown:
            raise InputError("; ".join(unknown))
        return replace_deep(self, settings)


def settings_of(part: Any) -> list[str]:
    """Names of a dataclass's fields, and of the dataclasses in it."""
    names = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        names += [field.name] + (settings_of(value) if has_settings(value) else [])
    return names


def has_settings(value: Any) -> bool:
    """Is this a part with settings of its own?"""
    return dataclasses.is_dataclass(value) and not isinstance(value, Schema)


def replace_deep(part: Any, settings: Mapping[str, Any]) -> Any:
    """A copy of a dataclass with the fields of these names changed, however deep they are."""
    changed = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name in settings:
            changed[field.name] = settings[field.name]
        elif has_settings(value):
            changed[field.name] = replace_deep(value, settings)
    return dataclasses.replace(part, **changed)


def name_it(key: str, known: Iterable[str], what: str = "setting") -> str:
    """One line about an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f"no {what} is called {key!r}" + (f": did you mean {near[0]!r}?" if near else f", only {', '.join(known)}")


def check_config(config: Config) -> None:
    """Refuse settings that cannot work, all of them at once."""
    net: Any = getattr(config.learner, "net", None)
    problems = training_errors(config.training) + config.source.validation_errors() + config.learner.validation_errors()
    problems += net.validation_errors() if hasattr(net, "validation_errors") else []
    problems += [] if problems else growth_errors(config)
    if problems:
        raise InputError("; ".join(problems))
    if isinstance(config.source, Stream):
        config.source.begins(config.training.steps)


def training_errors(training: Training) -> list[str]:
    """What is wrong with the outer loop's settings, a line each."""
    counts = ("steps", "meta_batch", "task_chunk_size", "log_every", "validate_every", "max_eval_inner_steps")
    problems = check_at_least_one(training, *counts)
    if training.validation_tasks < 2:
        problems += [f"validation_tasks must be at least 2, got {training.validation_tasks}"]
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


def to_json(config: Config) -> dict[str, Any]:
    """Plain data from which `from_json` makes an equal config. A person's own function is named, not stored."""
    return {
        "source": _encode(config.source, SOURCES),
        "learner": _encode(config.learner, LEARNERS),
        "training": dataclasses.asdict(config.training),
    }


def from_json(data: Mapping[str, Any], *, source: Source | None = None, learner: Learner | None = None) -> Config:
    """The config. A run with a person's own source, net or loss needs that source or learner passed in."""
    return Config(
        source=source or _decode(data["source"], SOURCES, "source"),
        learner=learner or _decode(data["learner"], LEARNERS, "learner"),
        training=_build(Training, {**data["training"], "growth": _build(Growth, data["training"].get("growth", {}))}),
    )


def learner_from_json(data: Mapping[str, Any]) -> Learner:
    """The learner alone."""
    return _decode(data, LEARNERS, "learner")


def _encode(part: Any, classes: Mapping[str, type]) -> dict[str, Any]:
    name = next((name for name, cls in classes.items() if type(part) is cls), None)
    kind = {"name": name} if name else {"custom": qualified(part)}
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    return kind | {field.name: _encode_value(getattr(part, field.name)) for field in fields}


def _encode_value(value: Any) -> Any:
    if type(value) in NETS.values():
        return _encode(value, NETS)
    if isinstance(value, Source):
        return _encode(value, SOURCES)
    if isinstance(value, Schema):
        return value.to_json()
    if callable(value):
        return next((name for name, fn in LOSSES.items() if fn is value), {"custom": qualified(value)})
    if isinstance(value, tuple):
        return [_encode_value(one) for one in value]
    return value if isinstance(value, bool | int | float | str | None) else repr(value)


def qualified(thing: Any) -> str:
    """The name of a function or class, or of a thing's class."""
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _decode(data: Mapping[str, Any], classes: Mapping[str, type], what: str) -> Any:
    own = [
        one["custom"]
        for one in (data, *(data.get(part) for part in ("net", "loss", "source")))
        if isinstance(one, dict) and "custom" in one
    ]
    if own:
        raise InputError(f"this run was made with its own {what} ({own[0]}): pass it, e.g. load(folder, {what}=...)")
    if data.get("name") not in classes:
        raise InputError(name_it(str(data.get("name")), classes, what))
    values = {key: value for key, value in data.items() if key != "name"}
    if "net" in values:
        values["net"] = _decode(values["net"], NETS, what)
    if "source" in values:
        values["source"] = _decode(values["source"], SOURCES, what)
    if "schema" in values:
        values["schema"] = Schema.from_json(values["schema"])
    if "loss" in values:
        values["loss"] = LOSSES[values["loss"]]
    return _build(classes[data["name"]], values)


def _build(cls: type, values: Mapping[str, Any]) -> Any:
    known = {field.name for field in dataclasses.fields(cls)}
    if unknown := sorted(set(values) - known):
        raise InputError(f"{cls.__name__} has no setting {', '.join(unknown)}: was this made by a newer metagrove?")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})

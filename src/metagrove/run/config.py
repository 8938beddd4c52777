"""What a run is: a source, a learner and the settings of its training; to JSON and back."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import optax

from metagrove.errors import InputError, too_few
from metagrove.hsml.learner import HSML
from metagrove.learner import Learner
from metagrove.losses import cross_entropy, mse
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.mlp import MLPNet
from metagrove.own.schema import Schema
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
from metagrove.sources import Source
from metagrove.sources.functions import Functions
from metagrove.sources.images import Images
from metagrove.sources.tables import Tables

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
SOURCES: dict[str, type[Source]] = {"functions": Functions, "images": Images, "tables": Tables}
NETS: dict[str, type] = {"mlp": MLPNet, "conv4": Conv4Net}
LOSSES: dict[str, Callable] = {"mse": mse, "cross_entropy": cross_entropy}


@dataclasses.dataclass(frozen=True)
class Training:
    """How the outer loop goes."""

    steps: int = 70_000
    """Meta-steps."""
    meta_batch: int = 25
    """Tasks a meta-step."""
    tasks_in_flight: int = 400
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
    test_steps: int = 10
    """Most inner steps looked at in validation and evaluation."""

    def optimizer(self) -> optax.GradientTransformation:
        """Adam, with the schedule and clipping asked for."""
        rate = optax.constant_schedule(self.outer_lr)
        if self.schedule == "cosine":
            rate = optax.cosine_decay_schedule(self.outer_lr, max(1, self.steps - self.warmup_steps))
        if self.warmup_steps:
            rise = optax.linear_schedule(0.0, self.outer_lr, self.warmup_steps)
            rate = optax.join_schedules([rise, rate], [self.warmup_steps])
        clip = [optax.clip_by_global_norm(self.clip_norm)] if self.clip_norm else []
        return optax.chain(*clip, optax.adam(rate))


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
    problems = training_problems(config.training) + config.source.problems() + config.learner.problems()
    problems += net.problems() if hasattr(net, "problems") else []
    if problems:
        raise InputError("; ".join(problems))


def training_problems(training: Training) -> list[str]:
    """What is wrong with the outer loop's settings, a line each."""
    counts = ("steps", "meta_batch", "tasks_in_flight", "log_every", "validate_every", "test_steps")
    problems = too_few(training, *counts)
    if training.validation_tasks < 2:
        problems += [f"validation_tasks must be at least 2, got {training.validation_tasks}"]
    rates = ("outer_lr", "warmup_steps", "clip_norm")
    return problems + [
        f"{name} must be 0 or more, got {value}" for name in rates if not (value := getattr(training, name)) >= 0
    ]


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
        training=_build(Training, data["training"]),
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
        one["custom"] for one in (data, data.get("net"), data.get("loss")) if isinstance(one, dict) and "custom" in one
    ]
    if own:
        raise InputError(f"this run was made with its own {what} ({own[0]}): pass it, e.g. load(folder, {what}=...)")
    if data.get("name") not in classes:
        raise InputError(name_it(str(data.get("name")), classes, what))
    values = {key: value for key, value in data.items() if key != "name"}
    if "net" in values:
        values["net"] = _decode(values["net"], NETS, what)
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

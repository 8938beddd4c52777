"""What a run is: a source, a learner and the settings of its training; to JSON and back."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import optax

from metagrove.errors import InputError
from metagrove.hsml.learner import HSML
from metagrove.learner import Learner
from metagrove.losses import mse
from metagrove.nets.mlp import MLPNet
from metagrove.rivals.maml import MAML
from metagrove.sources import Source
from metagrove.sources.functions import Functions

LEARNERS: dict[str, type[Learner]] = {"hsml": HSML, "maml": MAML}
SOURCES: dict[str, type[Source]] = {"functions": Functions}
NETS: dict[str, type] = {"mlp": MLPNet}
LOSSES: dict[str, Callable] = {"mse": mse}


@dataclasses.dataclass(frozen=True)
class Training:
    """How the outer loop goes."""

    steps: int = 70_000
    """Meta-steps."""
    meta_batch: int = 25
    """Tasks a meta-step."""
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
        """The same with some settings changed, whichever part they belong to, e.g. `steps=100, shots=10`."""
        parts = {name: getattr(self, name) for name in ("source", "learner", "training")}
        known = {field.name: name for name, part in parts.items() for field in dataclasses.fields(part)}
        unknown = [name_it(key, known) for key in settings if key not in known]
        if unknown:
            raise InputError("; ".join(unknown))
        for key, value in settings.items():
            parts[known[key]] = dataclasses.replace(parts[known[key]], **{key: value})
        return Config(**parts)


def name_it(key: str, known: Mapping[str, Any], what: str = "setting") -> str:
    """One line about an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"no {what} is called {key!r}" + (f": did you mean {near[0]!r}?" if near else f", only {', '.join(known)}")


def check_config(config: Config) -> None:
    """Refuse settings that cannot work, all of them at once."""
    training = config.training
    at_least_one = ("steps", "meta_batch", "log_every", "validate_every", "validation_tasks", "test_steps")
    problems = [
        f"{name} must be at least 1, got {value}" for name in at_least_one if (value := getattr(training, name)) < 1
    ]
    problems += [
        f"{name} must not be negative, got {value}"
        for name in ("outer_lr", "warmup_steps", "clip_norm")
        if (value := getattr(training, name)) < 0
    ]
    problems += config.source.problems() + config.learner.problems()
    if problems:
        raise InputError("; ".join(problems))


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


def _encode(part: Any, classes: Mapping[str, type]) -> dict[str, Any]:
    name = next((name for name, cls in classes.items() if type(part) is cls), None)
    if name is None:
        return {"custom": type(part).__qualname__}
    data: dict[str, Any] = {"name": name}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name == "net":
            value = _encode(value, NETS)
        elif field.name == "loss":
            value = next((n for n, fn in LOSSES.items() if fn is value), {"custom": getattr(value, "__qualname__", "")})
        data[field.name] = list(value) if isinstance(value, tuple) else value
    return data


def _decode(data: Mapping[str, Any], classes: Mapping[str, type], what: str) -> Any:
    if "custom" in data or "custom" in str(data.get("net")) or "custom" in str(data.get("loss")):
        raise InputError(
            f"this run was made with its own {what} ({data}): pass it again, e.g. load(folder, {what}=...)"
        )
    if data.get("name") not in classes:
        raise InputError(name_it(str(data.get("name")), classes, what))
    values = {key: value for key, value in data.items() if key != "name"}
    if "net" in values:
        values["net"] = _decode(values["net"], NETS, "learner")
    if "loss" in values:
        values["loss"] = LOSSES[values["loss"]]
    return _build(classes[data["name"]], values)


def _build(cls: type, values: Mapping[str, Any]) -> Any:
    known = {field.name for field in dataclasses.fields(cls)}
    if unknown := sorted(set(values) - known):
        raise InputError(f"{cls.__name__} has no setting {', '.join(unknown)}: was this made by a newer metagrove?")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})

"""Named starting points. What differs between experiments is here, as data."""

import dataclasses

from metagrove.errors import InputError
from metagrove.hsml.learner import HSML
from metagrove.learner import Learner
from metagrove.nets.mlp import MLPNet
from metagrove.run.config import LEARNERS, Config, Training, name_it
from metagrove.sources.functions import Functions


@dataclasses.dataclass(frozen=True)
class Preset:
    """A config and what it is for."""

    about: str
    config: Config


BEST = HSML(
    net=MLPNet(init_sd=0.2),
    aggregator="attention",
    example_dim=64,
    task_dim=64,
    attention_layers=4,
    input_scale=0.2,
    scales=(0.7,),
    reconstruction_weight=0.0,
    gate="affine",
)
COSINE = Training(schedule="cosine", warmup_steps=500, clip_norm=1.0)
QUICK = Training(steps=6000, schedule="cosine", warmup_steps=200, clip_norm=1.0)

PRESETS: dict[str, Preset] = {
    "toy-quick": Preset(
        "the demo: four families of functions from 5 points, a minute", Config(Functions(), BEST, QUICK)
    ),
    "toy-5shot": Preset("the paper's protocol, table 1, 5 points", Config(Functions(), HSML())),
    "toy-10shot": Preset("the paper's protocol, table 1, 10 points", Config(Functions(shots=10), HSML())),
    "toy-5shot-sorted": Preset(
        "the paper's protocol but for one thing: rows are sorted in training too",
        Config(Functions(), HSML(row_order="sorted")),
    ),
    "toy-5shot-best": Preset("the same budget, our best learner, 5 points", Config(Functions(), BEST, COSINE)),
    "toy-10shot-best": Preset(
        "the same budget, our best learner, 10 points", Config(Functions(shots=10), BEST, COSINE)
    ),
}


def preset(name: str, learner: str | None = None) -> Config:
    """The preset's config, with another learner's defaults in place of its own if asked for."""
    if name not in PRESETS:
        raise InputError(name_it(name, PRESETS, "preset"))
    config = PRESETS[name].config
    return config if learner is None else dataclasses.replace(config, learner=default_learner(learner, config))


def default_learner(name: str, config: Config) -> Learner:
    """A learner by name, with the settings that the preset changed for its own and that this one has too."""
    if name not in LEARNERS:
        raise InputError(name_it(name, LEARNERS, "learner"))
    cls, own = LEARNERS[name], config.learner
    names = {field.name for field in dataclasses.fields(cls)}
    changed = {f.name: getattr(own, f.name) for f in dataclasses.fields(own) if getattr(own, f.name) != f.default}
    return cls(**{key: value for key, value in changed.items() if key in names})

"""Presets: named configs. Differences between experiments are data in this module."""

import dataclasses
import math

from metagrove.config.config import Config, Growth, Training
from metagrove.config.mini_imagenet import PUBLISHED
from metagrove.config.registry import CHOICES, class_named, unknown_name
from metagrove.config.settings import changed_settings
from metagrove.errors import InputError
from metagrove.grove import Grove
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.embed import AttentionEmbedding, NoEmbedding, RecurrentEmbedding
from metagrove.hsml.evidence import EvidenceClusters
from metagrove.hsml.found import FoundClusters
from metagrove.hsml.gate import NodeGate, ParameterGate
from metagrove.hsml.learner import HSML
from metagrove.learner import Learner
from metagrove.losses import cross_entropy
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.mlp import MLPNet
from metagrove.sources.functions import Functions
from metagrove.sources.images import Images
from metagrove.sources.stream import Stream

__all__ = ["IMAGE_HSML", "PRESETS", "SMALL_TRAINING", "default_learner", "preset"]


@dataclasses.dataclass(frozen=True)
class Preset:
    """A config and what it is for."""

    about: str
    config: Config


HSML_A = HSML(
    net=MLPNet(init_sd=0.2),
    embed=AttentionEmbedding(example_dim=64, task_dim=64, attention_layers=4, input_scale=0.2),
    cluster=DistanceClusters(scales=(0.7,)),
    gate=ParameterGate(gate_form="affine"),
    reconstruction_weight=0.0,
)
"""HSML with an attention embedding and an affine gate, for functions."""
EVIDENCE = EvidenceClusters(assumed_noise=0.003)
"""Clusters found by evidence, for functions without noise."""
ONE_CLUSTER = dataclasses.replace(EVIDENCE, clusters=(1,), degree=33, rank=34)
"""One prior of full rank in their place, whose gate has as many parameters as one for five clusters of rank 6."""
ONE_PRIOR = dataclasses.replace(EVIDENCE, clusters=(1,), rank=13)
"""One prior of full rank on the same features: a meta-learned Bayesian linear model."""
HSML_E = HSML(
    net=MLPNet(init_sd=0.4),
    embed=NoEmbedding(),
    cluster=EVIDENCE,
    gate=NodeGate(),
    inner_lr=0.003,
    inner_steps=1,
    inner_clip=10.0,
    reconstruction_weight=0.0,
)
"""HSML on evidence clusters with a gate per node, for functions."""
HSML_E_CONTROL = dataclasses.replace(HSML_E, cluster=ONE_CLUSTER)
TAILORED = Training(
    steps=50_000,
    outer_lr=0.003,
    schedule="cosine",
    warmup_steps=500,
    clip_norm=1.0,
    task_chunk_size=500,
    validate_every=2000,
)
"""For HSML-E, selected in short trainings on validation tasks."""
TAILORED_10 = dataclasses.replace(TAILORED, outer_lr=0.001, clip_norm=0.1)
"""The same with 10 points."""
FITTED = Training(steps=0, task_chunk_size=500)
"""No meta-steps after the fit."""
COSINE = Training(schedule="cosine", warmup_steps=500, clip_norm=1.0)
QUICK = Training(steps=6000, schedule="cosine", warmup_steps=200, clip_norm=1.0)

IMAGE_HSML = HSML(
    loss=cross_entropy,
    net=Conv4Net(),
    inner_lr=0.05,
    embed=RecurrentEmbedding(example_dim=64, task_dim=128),
    cluster=DistanceClusters(scales=(math.sqrt(10), 1.0)),
    reconstruction_weight=2e-4,
)
HSML_F = dataclasses.replace(
    IMAGE_HSML,
    embed=AttentionEmbedding(example_dim=64, task_dim=128, attention_layers=2, image_features="moments"),
    cluster=FoundClusters(scales=(0.7, 1.0), start_tasks=2000, projection_scale=0.03),
    gate=ParameterGate(gate_form="affine", gate_rank=16, gate_inputs=("task", "root", "assignment")),
    reconstruction_weight=0.0,
)
"""HSML with clusters that are found before training, for images."""
IMAGE_TRAINING = Training(
    steps=60_000, meta_batch=4, task_chunk_size=1, validate_every=1000, validation_tasks=200, max_eval_inner_steps=10
)
FIVE_SHOT_TRAINING = dataclasses.replace(IMAGE_TRAINING, steps=50_000)
SMALL_TRAINING = dataclasses.replace(IMAGE_TRAINING, steps=10_000)
BEST_SMALL_TRAINING = dataclasses.replace(SMALL_TRAINING, schedule="cosine")
CONTINUAL_HSML = HSML(embed=RecurrentEmbedding(row_order="sorted"), cluster=DistanceClusters(clusters=(2, 2, 1)))
CONTINUAL_IMAGE_HSML = dataclasses.replace(
    IMAGE_HSML, cluster=DistanceClusters(clusters=(2, 2, 1), scales=(math.sqrt(10), 1.0))
)
CONTINUAL_IMAGE_TRAINING = dataclasses.replace(
    IMAGE_TRAINING,
    steps=40_000,
    log_every=20,
    growth=Growth(growth_window=100, growth_threshold=0.85, growth_cooldown=8000),
)
GROWING = Training(growth=Growth(growth_window=1000))
RETURNING = ("0: sinusoid line", "1/4: quadratic cubic", "1/2: sinusoid line", "3/4: *")


PRESETS: dict[str, Preset] = {
    "toy-quick": Preset(
        "HSML-A, four families of functions, 5 points, 6,000 meta-steps: about a minute",
        Config(Functions(), HSML_A, QUICK),
    ),
    "toy-5shot": Preset("HSML, functions, 5 points: the paper's protocol (table 1)", Config(Functions(), HSML())),
    "toy-10shot": Preset(
        "HSML, functions, 10 points: the paper's protocol (table 1)", Config(Functions(shots=10), HSML())
    ),
    "toy-5shot-sorted": Preset(
        "HSML, same budget, 5 points, rows sorted in training too",
        Config(Functions(), HSML(embed=RecurrentEmbedding(row_order="sorted"))),
    ),
    "toy-5shot-best": Preset("HSML-A, same budget, 5 points", Config(Functions(), HSML_A, COSINE)),
    "toy-10shot-best": Preset("HSML-A, same budget, 10 points", Config(Functions(shots=10), HSML_A, COSINE)),
    "toy-5shot-grove": Preset(
        "Grove, 5 points: evidence clusters that predict in closed form, fitted in about half a minute",
        Config(Functions(), Grove(cluster=EVIDENCE), FITTED),
    ),
    "toy-10shot-grove": Preset("Grove, 10 points", Config(Functions(shots=10), Grove(cluster=EVIDENCE), FITTED)),
    "toy-5shot-grove-one-cluster": Preset(
        "control of Grove, 5 points: one cluster of full rank, a meta-learned Bayesian linear model (ALPaCA)",
        Config(Functions(), Grove(cluster=ONE_PRIOR), FITTED),
    ),
    "toy-10shot-grove-one-cluster": Preset(
        "control of Grove, 10 points: one cluster of full rank",
        Config(Functions(shots=10), Grove(cluster=ONE_PRIOR), FITTED),
    ),
    "toy-5shot-evidence": Preset(
        "HSML-E, 50,000 meta-steps, 5 points: clusters found by evidence, a gate per node",
        Config(Functions(), HSML_E, TAILORED),
    ),
    "toy-10shot-evidence": Preset(
        "HSML-E, 50,000 meta-steps, 10 points", Config(Functions(shots=10), HSML_E, TAILORED_10)
    ),
    "toy-5shot-one-cluster": Preset(
        "control of HSML-E, 5 points: one cluster of full rank, as many gate parameters",
        Config(Functions(), HSML_E_CONTROL, TAILORED),
    ),
    "toy-10shot-one-cluster": Preset(
        "control of HSML-E, 10 points: one cluster of full rank, as many gate parameters",
        Config(Functions(shots=10), HSML_E_CONTROL, TAILORED_10),
    ),
    "images-1shot": Preset(
        "HSML, images of four datasets, 84 px, 1 shot: the paper's protocol (table 2), for a GPU",
        Config(Images(), IMAGE_HSML, IMAGE_TRAINING),
    ),
    "images-5shot": Preset(
        "HSML, images of four datasets, 84 px, 5 shots: the paper's protocol (table 2), for a GPU",
        Config(Images(shots=5), IMAGE_HSML, FIVE_SHOT_TRAINING),
    ),
    "images-32-1shot": Preset(
        "HSML, the same datasets, 32 px, 1 shot, 10,000 meta-steps, augmented: without a GPU",
        Config(Images(size=32, queries=5, augment=True), IMAGE_HSML, SMALL_TRAINING),
    ),
    "images-32-1shot-best": Preset(
        "HSML-F, same budget, 32 px, 1 shot: clusters found before training",
        Config(Images(size=32, queries=5, augment=True), HSML_F, BEST_SMALL_TRAINING),
    ),
    "mini-imagenet-1shot": Preset(
        "HSML, MiniImagenet, 84 px, 5 ways, 1 shot (appendix D), for a GPU",
        Config(Images(datasets=("mini-imagenet",)), IMAGE_HSML, IMAGE_TRAINING),
    ),
    **{
        f"mini-imagenet-{name}": Preset(
            f"{type(config.learner).__name__} as published, MiniImagenet, for a GPU", config
        )
        for name, config in PUBLISHED.items()
    },
    "continual-toy": Preset(
        "HSML-D on a stream: sinusoids and lines, then quadratics, then cubics (figure 4)",
        Config(Stream(), CONTINUAL_HSML, GROWING),
    ),
    "continual-toy-return": Preset(
        "HSML-D on a stream whose families leave and return, to measure forgetting",
        Config(Stream(timetable=RETURNING), CONTINUAL_HSML, GROWING),
    ),
    "continual-images": Preset(
        "HSML-D on a stream of images: birds and textures, then aircraft, then fungi (figure 7), for a GPU",
        Config(
            Stream(Images(), ("0: bird texture", "3/8: bird texture aircraft", "5/8: *")),
            CONTINUAL_IMAGE_HSML,
            CONTINUAL_IMAGE_TRAINING,
        ),
    ),
}


def preset(name: str, learner: str | None = None) -> Config:
    """Return the config of a preset.

    Args:
        name: Name of the preset; `metagrove list` shows all of them.
        learner: Name of a learner that replaces the preset's own, with its default settings.

    Returns:
        The config.

    Raises:
        InputError: If there is no such preset or learner.

    Example:
        >>> import metagrove as mg
        >>> mg.preset("toy-10shot").source.shots
        10
    """
    if name not in PRESETS:
        raise InputError(unknown_name(name, PRESETS, "preset"))
    config = PRESETS[name].config
    if learner is None:
        return config
    method = default_learner(learner, config)
    training = dataclasses.replace(config.training, growth=Growth()) if method.growth_errors() else config.training
    source = config.source if method.any_ways else config.source.with_test_ways()
    return Config(source, method, training)


def default_learner(name: str, config: Config) -> Learner:
    """A learner by name, with the settings that the config's own learner has changed and that this one has too."""
    cls = class_named("learner", name)
    names = {field.name for field in dataclasses.fields(cls)}
    names -= set() if isinstance(config.learner, cls) else set(CHOICES)  # parts of one method do not fit another
    return cls(**{key: value for key, value in changed_settings(config.learner).items() if key in names})

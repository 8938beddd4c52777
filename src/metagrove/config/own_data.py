"""A config for a user's own data: base net and clusters sized to the number of tasks and columns."""

import dataclasses

from metagrove.config.config import Config, Training
from metagrove.config.presets import IMAGE_HSML, SMALL_TRAINING, Preset
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.embed import AttentionEmbedding
from metagrove.hsml.learner import HSML
from metagrove.losses import cross_entropy, mse
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.mlp import MLPNet
from metagrove.sources.images import Images
from metagrove.sources.tables import Tables
from metagrove.tables.schema import Column, Schema

TRAINING = Training(
    steps=3000,
    schedule="cosine",
    warmup_steps=200,
    clip_norm=1.0,
    validate_every=500,
    validation_tasks=500,
    max_eval_inner_steps=15,
)
INNER_CLIP = 10.0
"""Inner gradients are clipped to this value, since outliers would make the first meta-steps diverge."""


def table_config(source: Tables, num_tasks: int) -> Config:
    """The default config of HSML for tables, by the number of training tasks."""
    wide = source.schema.x_dim > 20
    classifies = source.schema.classifies
    net = MLPNet(hidden=(80, 80) if wide else (40, 40), init_sd=0.2 if wide else 0.4, classifies=classifies)
    learner = HSML(
        loss=cross_entropy if classifies else mse,
        net=net,
        embed=AttentionEmbedding(example_dim=32, task_dim=32, attention_layers=2),
        cluster=DistanceClusters(clusters=fitting_clusters(num_tasks), scales=(0.7,)),
        inner_lr=0.05,
        inner_clip=INNER_CLIP,
        reconstruction_weight=0.0,
    )
    return Config(source, learner, TRAINING)


def fitting_clusters(num_tasks: int) -> tuple[int, ...]:
    """Default numbers of clusters: at least about thirty training tasks per first-level cluster."""
    if num_tasks < 60:
        return (2, 1)
    return (4, 2, 1) if num_tasks < 1000 else (8, 4, 1)


def cluster_candidates(num_tasks: int) -> tuple[tuple[int, ...], ...]:
    """Return the candidates of `--clusters auto`, from few clusters to many."""
    few = ((2, 1), (4, 2, 1))
    return few if num_tasks < 200 else (*few, (8, 4, 1))


def image_config(source: Images) -> Config:
    """HSML for a pool of images; a shallower net where images are small."""
    blocks = max(1, min(4, source.size.bit_length() - 1))
    learner = dataclasses.replace(IMAGE_HSML, net=Conv4Net(blocks=blocks))
    return Config(source, learner, SMALL_TRAINING)


EXAMPLE = Tables(schema=Schema((Column("x", "number"),), (Column("y", "number"),)))
"""A source whose config shows the default settings."""
OWN_DATA: dict[str, Preset] = {
    "own": Preset(
        "your own tables: a folder with one file per task, or one long table with a task column",
        table_config(EXAMPLE, 100),
    ),
    "own-images": Preset("a pool of your own images, prepared by `metagrove data prepare`", image_config(Images())),
}
"""What `metagrove train` accepts in place of a preset for a user's own data, with a config of the default settings."""

"""Published protocols of further methods on MiniImagenet: 84 px, 5 ways, 1 shot, for a GPU.

Steps, batches, nets and learning rates are those of each method's paper or code. Where a learning rate was halved in
stages, it has cosine decay here.
"""

from typing import Any

from metagrove.config.config import Config, Training
from metagrove.learner import Learner
from metagrove.losses import cross_entropy
from metagrove.nets.conv4 import Conv4Net
from metagrove.rivals.gnn import GNN
from metagrove.rivals.llama import LLAMA
from metagrove.rivals.map_dlm import MAPDLM
from metagrove.rivals.matching_net_fce import MatchingNetFCE
from metagrove.rivals.meta_lstm import MetaLSTM
from metagrove.rivals.platipus import PLATIPUS
from metagrove.rivals.relation_net import RelationNet
from metagrove.rivals.reptile import Reptile
from metagrove.rivals.snail import SNAIL
from metagrove.sources.images import Images

LIKE_MAML = {"loss": cross_entropy, "inner_lr": 0.01, "inner_steps": 5}


def published(
    learner: Learner, *, steps: int, meta_batch: int, images: Images | None = None, **training: Any
) -> Config:
    """A config of 84 px tasks with few validations; settings of training by name."""
    about = {"task_chunk_size": 1, "validate_every": 1000, "validation_tasks": 200, **training}
    source = Images(datasets=("mini-imagenet",)) if images is None else images
    return Config(source, learner, Training(steps=steps, meta_batch=meta_batch, **about))


EIGHT_WAYS = Images(datasets=("mini-imagenet",), train_ways=8)
FIFTEEN_SHOTS = Images(datasets=("mini-imagenet",), queries=14)
"""With the support, 15 images of each class."""
WIDE = Conv4Net(widths=(64, 96, 128, 256))

PUBLISHED: dict[str, Config] = {
    "relation-net": published(
        RelationNet(padding=False), steps=500_000, meta_batch=1, clip_norm=0.5, schedule="cosine"
    ),
    "gnn": published(GNN(net=WIDE, nearest_init=False), steps=80_000, meta_batch=2, schedule="cosine"),
    "map-dlm": published(MAPDLM(), steps=25_000, meta_batch=1, images=EIGHT_WAYS, schedule="cosine"),
    "snail": published(SNAIL(loss=cross_entropy, nearest_init=False), steps=60_000, meta_batch=1, outer_lr=1e-4),
    "matching-net-fce": published(MatchingNetFCE(), steps=75_000, meta_batch=1, outer_lr=1e-4, clip_norm=0.25),
    "platipus": published(PLATIPUS(net=Conv4Net(), **LIKE_MAML), steps=60_000, meta_batch=4),
    "llama": published(LLAMA(net=Conv4Net(filters=64), **LIKE_MAML), steps=60_000, meta_batch=4),
    "meta-lstm": published(
        MetaLSTM(net=Conv4Net(), loss=cross_entropy, step_bias=-6.1),  # the code divides σ(-4.5) by the batch size
        steps=75_000,
        meta_batch=1,
        clip_norm=0.25,
        max_eval_inner_steps=12,
    ),
    "reptile": published(
        Reptile(
            net=Conv4Net(),
            loss=cross_entropy,
            inner_rule="adam",
            inner_lr=0.001,
            inner_steps=8,
            minibatch=10,
            test_minibatch=5,
        ),
        steps=100_000,
        meta_batch=5,
        images=FIFTEEN_SHOTS,
        outer_rule="sgd",
        outer_lr=1.0,
        schedule="linear",
        max_eval_inner_steps=50,
    ),
}
"""The config of each learner's published protocol."""

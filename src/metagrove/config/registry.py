"""Registries of everything that a config refers to by name: learners, sources, base nets, parts of HSML, losses.

Other packages add learners, sources and parts through the entry point groups of `GROUPS`.
"""

import dataclasses
import difflib
import functools
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from metagrove.baselines.blend import Blend
from metagrove.baselines.gaussian_process import SharedGP, TaskGP
from metagrove.baselines.logistic import LogisticMixedModel
from metagrove.baselines.mixed_model import MixedModel
from metagrove.baselines.support_mean import SupportMean
from metagrove.baselines.trees import BoostedTrees
from metagrove.errors import InputError
from metagrove.grove import Grove
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.embed import AttentionEmbedding, NoEmbedding, PoolingEmbedding, RecurrentEmbedding
from metagrove.hsml.evidence import EvidenceClusters
from metagrove.hsml.found import FoundClusters
from metagrove.hsml.gate import FiLMGate, NodeGate, NoGate, ParameterGate
from metagrove.hsml.learner import HSML
from metagrove.hsml.no_clusters import NoClusters
from metagrove.hsml.relative import RelativeClusters
from metagrove.hsml.small_gate import SmallGate
from metagrove.learner import Learner
from metagrove.losses import cross_entropy, mse
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.mlp import MLPNet
from metagrove.rivals.arml import ARML
from metagrove.rivals.bmaml import BMAML
from metagrove.rivals.gnn import GNN
from metagrove.rivals.llama import LLAMA
from metagrove.rivals.maml import MAML
from metagrove.rivals.map_dlm import MAPDLM
from metagrove.rivals.matching_net import MatchingNet
from metagrove.rivals.matching_net_fce import MatchingNetFCE
from metagrove.rivals.meta_lstm import MetaLSTM
from metagrove.rivals.meta_sgd import MetaSGD
from metagrove.rivals.mt_net import MTNet
from metagrove.rivals.mumomaml import MUMOMAML
from metagrove.rivals.neural_process import NeuralProcess
from metagrove.rivals.platipus import PLATIPUS
from metagrove.rivals.protonet import ProtoNet
from metagrove.rivals.relation_net import RelationNet
from metagrove.rivals.reptile import Reptile
from metagrove.rivals.scratch import Scratch
from metagrove.rivals.snail import SNAIL
from metagrove.sources.functions import Functions
from metagrove.sources.images import Images
from metagrove.sources.stream import Stream
from metagrove.sources.tables import Tables

__all__ = [
    "CHOICES",
    "GROUPS",
    "LEARNER_GROUPS",
    "LOSSES",
    "choose_part",
    "class_named",
    "classes",
    "learners",
    "name_of",
    "unknown_name",
]

LEARNER_GROUPS: dict[str, dict[str, type[Learner]]] = {
    "gradient-based": {
        "hsml": HSML,
        "maml": MAML,
        "meta-sgd": MetaSGD,
        "mt-net": MTNet,
        "mumomaml": MUMOMAML,
        "arml": ARML,
        "reptile": Reptile,
    },
    "metric": {
        "protonet": ProtoNet,
        "matching-net": MatchingNet,
        "matching-net-fce": MatchingNetFCE,
        "relation-net": RelationNet,
        "gnn": GNN,
        "map-dlm": MAPDLM,
    },
    "recurrent": {"snail": SNAIL, "meta-lstm": MetaLSTM},
    "Bayesian": {"grove": Grove, "bmaml": BMAML, "platipus": PLATIPUS, "llama": LLAMA},
    "baselines": {"neural-process": NeuralProcess, "scratch": Scratch},
}
"""The package's learners by name, in the groups in which `metagrove list` shows them."""
BUILT_IN: dict[str, dict[str, type]] = {
    "learner": {name: cls for group in LEARNER_GROUPS.values() for name, cls in group.items()},
    "baseline": {
        "support-mean": SupportMean,
        "mixed-model": MixedModel,
        "logistic-mixed-model": LogisticMixedModel,
        "gaussian-process": TaskGP,
        "shared-gaussian-process": SharedGP,
        "boosted-trees": BoostedTrees,
        "blend": Blend,
    },
    "source": {"functions": Functions, "images": Images, "tables": Tables, "stream": Stream},
    "net": {"mlp": MLPNet, "conv4": Conv4Net},
    "embed": {
        "recurrent": RecurrentEmbedding,
        "pooling": PoolingEmbedding,
        "attention": AttentionEmbedding,
        "none": NoEmbedding,
    },
    "cluster": {
        "distance": DistanceClusters,
        "relative": RelativeClusters,
        "found": FoundClusters,
        "evidence": EvidenceClusters,
        "none": NoClusters,
    },
    "gate": {"parameter": ParameterGate, "film": FiLMGate, "node": NodeGate, "small": SmallGate, "none": NoGate},
}
GROUPS = {kind: f"metagrove.{kind}s" for kind in BUILT_IN}
"""The entry point group of each kind: metagrove.learners, metagrove.sources, metagrove.nets, metagrove.embeds, ..."""
LOSSES: dict[str, Callable] = {"mse": mse, "cross_entropy": cross_entropy}
CHOICES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    # kind of part: choice on the command line -> class, and the settings that it implies
    "embed": {
        "gru": ("recurrent", {"cell": "gru"}),
        "lstm": ("recurrent", {"cell": "lstm"}),
        "mean": ("pooling", {"pool": "mean"}),
        "max": ("pooling", {"pool": "max"}),
    },
    "gate": {form: ("parameter", {"gate_form": form}) for form in ("sigmoid", "affine", "direct")},
    "cluster": {"none": ("none", {"clusters": (1,)})},
}


@functools.cache
def classes(kind: str) -> Mapping[str, type]:
    """The classes of a kind by name: the package's own, and those that installed packages provide.

    Args:
        kind: learner, source, net, embed, cluster or gate.

    Returns:
        The classes by the name that a config and the command line use.

    Raises:
        InputError: An installed package provides a name that is taken.
    """
    found = dict(BUILT_IN[kind])
    for entry in importlib.metadata.entry_points(group=GROUPS[kind]):
        if entry.name in found:
            raise InputError(f"{entry.value} provides the {kind} {entry.name!r}, which already exists: rename it")
        found[entry.name] = entry.load()
    return found


def learners() -> Mapping[str, type[Learner]]:
    """Every learner by name."""
    return classes("learner")


def class_named(kind: str, name: str) -> type:
    """The class of that kind and name.

    Raises:
        InputError: There is none; the message has the nearest name.
    """
    if name not in classes(kind):
        raise InputError(unknown_name(name, classes(kind), kind))
    return classes(kind)[name]


def name_of(kind: str, part: Any) -> str | None:
    """The name of a part's class; None for a class that is not registered."""
    return next((name for name, cls in classes(kind).items() if type(part) is cls), None)


def kind_of(value: Any) -> str | None:
    """Which kind of part a value is, if any."""
    return next((kind for kind in BUILT_IN if name_of(kind, value) is not None), None)


def choose_part(kind: str, choice: str, current: Any) -> Any:
    """The part of that name, with the settings of the current one that it has too.

    Args:
        kind: embed, cluster or gate.
        choice: A class's name, or one of `CHOICES`, e.g. lstm or affine.
        current: The part to be replaced.

    Returns:
        The new part.

    Raises:
        InputError: No part of this kind has that name.
    """
    known = {**{name: (name, {}) for name in classes(kind)}, **CHOICES[kind]}
    if choice not in known:
        raise InputError(unknown_name(choice, known, kind))
    name, settings = known[choice]
    cls = class_named(kind, name)
    names = {field.name for field in dataclasses.fields(cls)}
    shared = {f.name: getattr(current, f.name) for f in dataclasses.fields(current) if f.name in names}
    return cls(**{**shared, **settings})


def unknown_name(name: str, known: Iterable[str], what: str = "setting") -> str:
    """One line about an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"no {what} is called {name!r}" + (f": did you mean {near[0]!r}?" if near else f", only {', '.join(known)}")

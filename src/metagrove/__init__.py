"""metagrove: learn how to learn from many small problems that are not all alike."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from metagrove.config.config import Config, Growth, Training
from metagrove.config.presets import preset
from metagrove.errors import DivergedError, InputError, MetagroveError, RunError
from metagrove.grove import Grove
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.clustering import Clustering
from metagrove.hsml.embed import AttentionEmbedding, Embedding, NoEmbedding, PoolingEmbedding, RecurrentEmbedding
from metagrove.hsml.evidence import EvidenceClusters
from metagrove.hsml.found import FoundClusters
from metagrove.hsml.gate import FiLMGate, NodeGate, NoGate, ParameterGate
from metagrove.hsml.learner import HSML
from metagrove.hsml.no_clusters import NoClusters
from metagrove.hsml.relative import RelativeClusters
from metagrove.hsml.small_gate import SmallGate
from metagrove.inner import GradientLearner
from metagrove.learner import Info, Learner, Phase
from metagrove.losses import cross_entropy, mse
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.mlp import MLPNet
from metagrove.nets.per_example import per_example
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
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.fitted_tasks import FittedTasks
from metagrove.serve.run import Run, load
from metagrove.serve.train import train
from metagrove.sources.functions import Functions
from metagrove.sources.images import Images
from metagrove.sources.source import Source
from metagrove.sources.stream import Stream
from metagrove.sources.tables import Tables, open_tables
from metagrove.tables.settings import TableData
from metagrove.task import Examples, Spec, Task

if TYPE_CHECKING:
    from metagrove.evaluation.calibration import measure_calibration
    from metagrove.evaluation.summaries import compare, evaluate
    from metagrove.own.training import train_own
    from metagrove.serve.adapt import adapt
    from metagrove.serve.calibrate import calibrate
    from metagrove.serve.estimators import FewShotClassifier, FewShotRegressor
    from metagrove.serve.export import export
    from metagrove.serve.saved import load_fitted

__version__ = importlib.metadata.version("metagrove")
__all__ = [
    "ARML",
    "BMAML",
    "GNN",
    "HSML",
    "LLAMA",
    "MAML",
    "MAPDLM",
    "MUMOMAML",
    "PLATIPUS",
    "SNAIL",
    "AttentionEmbedding",
    "Clustering",
    "Config",
    "Conv4Net",
    "DistanceClusters",
    "DivergedError",
    "Embedding",
    "EvidenceClusters",
    "Examples",
    "FewShotClassifier",
    "FewShotRegressor",
    "FiLMGate",
    "FittedTask",
    "FittedTasks",
    "FoundClusters",
    "Functions",
    "GradientLearner",
    "Grove",
    "Growth",
    "Images",
    "Info",
    "InputError",
    "Learner",
    "MLPNet",
    "MTNet",
    "MatchingNet",
    "MatchingNetFCE",
    "MetaLSTM",
    "MetaSGD",
    "MetagroveError",
    "NeuralProcess",
    "NoClusters",
    "NoEmbedding",
    "NoGate",
    "NodeGate",
    "ParameterGate",
    "Phase",
    "PoolingEmbedding",
    "ProtoNet",
    "RecurrentEmbedding",
    "RelationNet",
    "RelativeClusters",
    "Reptile",
    "Run",
    "RunError",
    "Scratch",
    "SmallGate",
    "Source",
    "Spec",
    "Stream",
    "TableData",
    "Tables",
    "Task",
    "Training",
    "adapt",
    "calibrate",
    "compare",
    "cross_entropy",
    "evaluate",
    "export",
    "load",
    "load_fitted",
    "measure_calibration",
    "mse",
    "open_tables",
    "per_example",
    "preset",
    "train",
    "train_own",
]
LAZY = {
    # name: its module, imported when the name is first used (the estimators import scikit-learn)
    "FewShotClassifier": "metagrove.serve.estimators",
    "FewShotRegressor": "metagrove.serve.estimators",
    "adapt": "metagrove.serve.adapt",
    "calibrate": "metagrove.serve.calibrate",
    "measure_calibration": "metagrove.evaluation.calibration",
    "compare": "metagrove.evaluation.summaries",
    "evaluate": "metagrove.evaluation.summaries",
    "export": "metagrove.serve.export",
    "load_fitted": "metagrove.serve.saved",
    "train_own": "metagrove.own.training",
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'metagrove' has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

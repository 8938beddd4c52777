"""metagrove: learn how to learn from many small problems that are not all alike."""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from metagrove.hsml.learner import HSML
from metagrove.learner import Info, Learner
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.mlp import MLPNet
from metagrove.nets.per_example import per_example
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
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.fitted_tasks import FittedTasks
from metagrove.serve.run import Run, load, train
from metagrove.sources.functions import Functions
from metagrove.sources.images import Images
from metagrove.sources.source import Source
from metagrove.sources.stream import Stream
from metagrove.task import Examples, Spec, Task

if TYPE_CHECKING:
    from metagrove.own.training import train_own
    from metagrove.serve.adapt import adapt
    from metagrove.serve.estimators import FewShotClassifier, FewShotRegressor
    from metagrove.serve.export import export
    from metagrove.serve.saved import load_fitted

__version__ = importlib.metadata.version("metagrove")
__all__ = [
    "ARML",
    "BMAML",
    "HSML",
    "MAML",
    "MUMOMAML",
    "Conv4Net",
    "Examples",
    "FewShotClassifier",
    "FewShotRegressor",
    "FittedTask",
    "FittedTasks",
    "Functions",
    "Images",
    "Info",
    "Learner",
    "MLPNet",
    "MTNet",
    "MatchingNet",
    "MetaSGD",
    "NeuralProcess",
    "ProtoNet",
    "Reptile",
    "Run",
    "Scratch",
    "Source",
    "Spec",
    "Stream",
    "Task",
    "adapt",
    "export",
    "load",
    "load_fitted",
    "per_example",
    "train",
    "train_own",
]
LATER = {
    # name: its module, opened when the name is first asked for (the first two open scikit-learn)
    "FewShotClassifier": "metagrove.serve.estimators",
    "FewShotRegressor": "metagrove.serve.estimators",
    "adapt": "metagrove.serve.adapt",
    "export": "metagrove.serve.export",
    "load_fitted": "metagrove.serve.saved",
    "train_own": "metagrove.own.training",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'metagrove' has no attribute {name!r}")
    return getattr(importlib.import_module(LATER[name]), name)

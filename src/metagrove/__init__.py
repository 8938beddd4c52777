"""metagrove: learn how to learn from many small problems that are not all alike."""

from metagrove.hsml.learner import HSML
from metagrove.learner import Info, Learner
from metagrove.nets.mlp import MLPNet
from metagrove.nets.own import per_example
from metagrove.rivals.maml import MAML
from metagrove.run.api import Adapted, Run, load, train
from metagrove.sources import Source
from metagrove.sources.functions import Functions
from metagrove.task import Examples, Spec, Task

__version__ = "0.1.0"
__all__ = [
    "HSML",
    "MAML",
    "Adapted",
    "Examples",
    "Functions",
    "Info",
    "Learner",
    "MLPNet",
    "Run",
    "Source",
    "Spec",
    "Task",
    "load",
    "per_example",
    "train",
]

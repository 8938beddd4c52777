"""The one contract between a method and everything else: training, evaluation, command line, figures.

A learner is a frozen dataclass of hyperparameters with a few pure functions:

    init(spec, *, key) -> meta                                everything the outer loop trains, the paper's Θ
    adapt(meta, support, *, key=None, steps=None) -> predictor, info
    meta_loss(meta, task, *, key) -> loss, info               by default adapt's query loss + info.penalty

Always one task, no task axis: `outer` maps over tasks; only `data_dependent_init`, before the first meta-step, sees
many. A learner with clusters also takes `adapt(..., assignment=p)`, the first level's assignment decided from outside
(an oracle's, or one permuted over tasks); `family` reaches `adapt` in no other way, and never by default.
"""

from metagrove.learner.contract import Learner
from metagrove.learner.info import (
    ClusterFunctions,
    GrowthStart,
    Info,
    Meta,
    NetFn,
    Phase,
    Predictor,
    num_parameters,
)

__all__ = [
    "ClusterFunctions",
    "GrowthStart",
    "Info",
    "Learner",
    "Meta",
    "NetFn",
    "Phase",
    "Predictor",
    "num_parameters",
]

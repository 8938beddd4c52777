"""All baselines by name, from the simplest to the most flexible, and fitting one."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from metagrove.baselines.baseline import Fitted
from metagrove.baselines.data import Data
from metagrove.baselines.gaussian_process import fit_shared_gp, fit_task_gp
from metagrove.baselines.logistic import fit_logistic, fit_pooled_logistic, fit_task_logistic
from metagrove.baselines.mixed_model import fit_mixed_model, fit_pooled_linear, fit_ridge
from metagrove.baselines.support_mean import fit_support_mean
from metagrove.baselines.trees import fit_pooled_trees, fit_support_trees

__all__ = ["Entry", "baselines_for"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A baseline: its display name, and the function that fits it."""

    label: str
    fit: Callable[[Data], Fitted]


REGRESSION: Mapping[str, Entry] = {
    "support-mean": Entry("mean of the support rows", fit_support_mean),
    "pooled-linear": Entry("linear model of all tasks", fit_pooled_linear),
    "ridge": Entry("ridge, each task alone", fit_ridge),
    "mixed-model": Entry("mixed model", fit_mixed_model),
    "gaussian-process": Entry("Gaussian process, each task alone", fit_task_gp),
    "shared-gaussian-process": Entry("shared Gaussian process", fit_shared_gp),
    "mixture": Entry("mixture of mixed models", functools.partial(fit_mixed_model, kinds=(2, 4))),
    "pooled-trees": Entry("boosted trees of all tasks", fit_pooled_trees),
    "support-trees": Entry("boosted trees on support features", fit_support_trees),
}
CLASSIFICATION: Mapping[str, Entry] = {
    "support-mean": Entry("rate in the support rows", fit_support_mean),
    "pooled-linear": Entry("logistic model of all tasks", fit_pooled_logistic),
    "ridge": Entry("logistic regression, each task alone", fit_task_logistic),
    "mixed-model": Entry("logistic mixed model", fit_logistic),
    "pooled-trees": Entry("boosted trees of all tasks", fit_pooled_trees),
    "support-trees": Entry("boosted trees on support features", fit_support_trees),
}


def baselines_for(*, classifies: bool) -> Mapping[str, Entry]:
    """The baselines for numbers or for classes, the simplest first."""
    return CLASSIFICATION if classifies else REGRESSION

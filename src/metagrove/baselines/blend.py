"""A weighted mean of the predictions of several fitted learners.

f(x) = Σ_j w_j f_j(x),   of classifiers p(y | x) = Σ_j w_j p_j(y | x)

Weights are selected on validation tasks by greedy selection with replacement (Caruana et al., 2004): in each round the
learner that lowers the loss of the mean most is added. On few tasks this overfits, so that a blend is validated by
cross-validation over tasks: weights from some of them, the loss of the others.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.baselines.baseline import Baseline, at_once
from metagrove.baselines.data import Rows, mean_loss, task_losses
from metagrove.learner import Info, Learner, Predictor
from metagrove.losses import cross_entropy
from metagrove.task import Examples, Spec

ROUNDS = 12
"""Additions of the greedy selection."""
LEAST_WEIGHT = 0.1
"""A learner with less weight is left out."""
FOLDS = 5
"""Parts of the validation tasks in cross-validation."""
TINY = 1e-9


class BlendMeta(eqx.Module):
    """Meta-parameters of every member, and their weights."""

    members: tuple[Any, ...]
    weights: Float[Array, " m"]


class BlendPredictor(eqx.Module):
    """The weighted mean of predictors."""

    members: tuple[Predictor, ...]
    weights: Float[Array, " m"]
    classifies: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        found = jnp.stack([member(x, mask) for member in self.members])
        if self.classifies:
            return jnp.log(jnp.einsum("m,mny->ny", self.weights, jnp.exp(found)) + TINY)
        return jnp.einsum("m,mny->ny", self.weights, found)


@dataclasses.dataclass(frozen=True)
class Blend(Baseline):
    """The weighted mean of several fitted learners."""

    members: tuple[Learner, ...] = ()
    """The learners."""
    steps: tuple[int, ...] = ()
    """Inner steps of each learner at test time."""

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> BlendMeta:
        metas = tuple(member.init(spec, key=key) for member in self.members)
        return BlendMeta(metas, jnp.ones(len(metas)) / max(len(metas), 1))

    def adapt(
        self, meta: BlendMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[BlendPredictor, Info]:
        del key, steps
        each = zip(self.members, meta.members, self.steps, strict=True)
        predictors = tuple(member.adapt(one, support, steps=number)[0] for member, one, number in each)
        return at_once(BlendPredictor(predictors, meta.weights, self.loss is cross_entropy))


def blend_weights(predictions: Mapping[str, np.ndarray], query: Rows, *, classifies: bool) -> dict[str, float]:
    """Weights of the learners whose weighted mean has the least loss on these tasks, the largest first.

    Args:
        predictions: For each learner, values or log-probabilities for the query rows, (tasks, n, y).
        query: The query rows.
        classifies: Whether targets are classes.
    """
    given = {name: np.exp(one) if classifies else one for name, one in predictions.items()}

    def loss(total: np.ndarray, count: int) -> float:
        return mean_loss(in_logs(total / count, classifies), query, classifies=classifies)

    counts = dict.fromkeys(given, 0)
    total: Any = 0.0
    for count in range(1, ROUNDS + 1):
        best = min(given, key=lambda name, t=total, n=count: loss(t + given[name], n))
        total, counts[best] = total + given[best], counts[best] + 1
    selected = {name: n for name, n in counts.items() if n / ROUNDS >= LEAST_WEIGHT}
    return {name: n / sum(selected.values()) for name, n in sorted(selected.items(), key=lambda one: -one[1])}


def in_logs(mean: np.ndarray, classifies: bool) -> np.ndarray:
    """Probabilities as their logarithms; values as they are."""
    return np.log(mean + TINY) if classifies else mean


def blending_helps(
    predictions: Mapping[str, np.ndarray], query: Rows, task: np.ndarray, *, classifies: bool, folds: int = FOLDS
) -> bool:
    """Whether a blend has less loss than the best learner on tasks that selected neither.

    Args:
        predictions: For each learner, values or log-probabilities for the query rows, (draws, n, y).
        query: The query rows.
        task: The task of each draw; draws of a task are in one fold.
        classifies: Whether targets are classes.
        folds: Parts of the tasks, each left out once.
    """
    num_tasks = len(np.unique(task))
    if num_tasks < 2:
        return False
    alone, blend = [], []
    for fold in range(min(folds, num_tasks)):
        out = task % folds == fold
        inside, outside = part_of(predictions, query, ~out), part_of(predictions, query, out)
        losses = {name: mean_loss(one, inside[1], classifies=classifies) for name, one in inside[0].items()}
        best = min(losses, key=lambda name: losses[name])
        weights = blend_weights(*inside, classifies=classifies)
        mean = sum(w * (np.exp(outside[0][name]) if classifies else outside[0][name]) for name, w in weights.items())
        blend.append(task_losses(in_logs(np.asarray(mean), classifies), outside[1], classifies=classifies))
        alone.append(task_losses(outside[0][best], outside[1], classifies=classifies))
    return float(np.concatenate(blend).mean()) < float(np.concatenate(alone).mean())


def part_of(
    predictions: Mapping[str, np.ndarray], query: Rows, chosen: np.ndarray
) -> tuple[dict[str, np.ndarray], Rows]:
    """Predictions and query rows of some draws."""
    some = {name: one[chosen] for name, one in predictions.items()}
    return some, Rows(query.x[chosen], query.y[chosen], query.mask[chosen])

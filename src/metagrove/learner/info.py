"""Types of the contract: what `init` and `adapt` return, and the phases of training."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

__all__ = [
    "ClusterFunctions",
    "GrowthStart",
    "Info",
    "Meta",
    "NetFn",
    "Phase",
    "Predictor",
    "num_parameters",
]

Meta = Any
"""A pytree of arrays: what the outer loop trains."""

Predictor = Callable[..., Array]
"""A pytree module with `predictor(x, mask=None)`: a set of inputs to values (or log-probabilities)."""

NetFn = Callable[..., Predictor]
"""`net_fn(spec, key=key)` draws a fresh base net, an equinox module called as `net(x, mask=None)` on a set of rows."""

GrowthStart = Literal["random", "warm"]
"""How a new cluster starts."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of the training with a loss of its own, in which some of the meta-parameters are trained."""

    steps: int = 0
    """Meta-steps of the phase; 0 for all that are left."""
    trains: tuple[str, ...] = ()
    """Fields of the meta-parameters that are trained, e.g. embed; all, if none is named."""
    loss: str = "query"
    """The loss: query, or another one that the learner has, e.g. HSML's reconstruction."""
    outer_lr: float = 0.0
    """Outer learning rate (β) of the phase; 0 for that of the training."""
    meta_batch: int = 0
    """Number of tasks per meta-step of the phase; 0 for that of the training."""


class Info(eqx.Module):
    """What one adaptation reports; nothing of it is needed to predict.

    Args:
        path: The predictor after 0, 1, ..., steps inner steps.
        penalty: Added to the query loss in training.
        metrics: Scalars to log, by name.
        task_embedding: The task embedding g, shape (d,); None for a learner that does not embed tasks.
        assignments: Soft assignment of each level; empty for a learner without clusters.
        novelty: How unlike others the task is, by name of a measure; empty for a learner that does not tell.
    """

    path: Predictor
    """The predictor after 0, 1, ..., steps inner steps: its floating-point arrays stacked along a new first axis."""
    penalty: Float[Array, ""] = eqx.field(default_factory=lambda: jnp.zeros(()))
    """Added to the query loss in training, e.g. HSML's ξ·L_r."""
    metrics: dict[str, Float[Array, ""]] = eqx.field(default_factory=dict)
    task_embedding: Float[Array, " d"] | None = None
    assignments: tuple[Float[Array, "_ _"], ...] = ()
    """p^{k→k'} of each level, rows summing to 1; empty for a learner without clusters."""
    novelty: dict[str, Float[Array, ""]] = eqx.field(default_factory=dict)
    """Measures that are larger for a task unlike others, e.g. its negative log evidence; `serve` ranks each among the
    validation tasks."""


@dataclasses.dataclass(frozen=True)
class ClusterFunctions:
    """Priors over functions of the nodes of one level, in the units of y.

    Args:
        x: Inputs, shape (n, d).
        mean: Mean function of each node, shape (nodes, n, outputs).
        std: Standard deviation of the functions, without noise; the same shape.
        draws: Functions drawn from each prior, shape (nodes, draws, n, outputs).
    """

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    draws: np.ndarray


def num_parameters(meta: Meta) -> int:
    """Count the parameters that the outer loop trains."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(meta, eqx.is_inexact_array)))

"""Losses and metrics over a set of predictions, without its padded rows; means, never sums (docs/method.md)."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

__all__ = ["LossFn", "Metric", "accuracy", "cross_entropy", "masked_mean", "metric_of", "mse"]

Thing = TypeVar("Thing")
LossFn = Callable[[Array, Array, Array], Array]
"""Maps (prediction, y, mask) to a scalar."""


def masked_mean(values: Num[Array, "n ..."] | Bool[Array, "n ..."], mask: Bool[Array, " n"]) -> Float[Array, "..."]:
    """Compute the mean over unmasked rows.

    Args:
        values: Shape (n, ...).
        mask: Shape (n,); False for padded rows.

    Returns:
        The mean over the first axis.
    """
    rows = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
    return jnp.where(rows, values, 0).sum(0) / jnp.maximum(mask.sum(), 1)


def mse(prediction: Float[Array, "n y"], y: Float[Array, "n y"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """Compute the mean squared error over rows and outputs.

    Args:
        prediction: Predictions of shape (n, y_dim).
        y: Targets of shape (n, y_dim).
        mask: Shape (n,); False for padded rows.

    Returns:
        A scalar.
    """
    return masked_mean(jnp.square(prediction - y).mean(-1), mask)


def cross_entropy(
    log_probabilities: Float[Array, "n c"], y: Float[Array, "n c"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Compute the mean cross-entropy, -log p of the true class.

    Args:
        log_probabilities: Predicted log-probabilities of shape (n, classes).
        y: One-hot labels of shape (n, classes).
        mask: Shape (n,); False for padded rows.

    Returns:
        A scalar.
    """
    return masked_mean(-(log_probabilities * y).sum(-1), mask)


def accuracy(
    log_probabilities: Float[Array, "n c"], y: Float[Array, "n c"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Compute the accuracy in percent.

    Args:
        log_probabilities: Predicted log-probabilities of shape (n, classes).
        y: One-hot labels of shape (n, classes).
        mask: Shape (n,); False for padded rows.

    Returns:
        A scalar from 0 to 100.
    """
    return 100 * masked_mean(log_probabilities.argmax(-1) == y.argmax(-1), mask)


@dataclasses.dataclass(frozen=True)
class Metric:
    """The metric by which tasks are scored."""

    name: str
    score: LossFn

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value is better."""
        return self.name in HIGHER_IS_BETTER


HIGHER_IS_BETTER = ("accuracy",)


def metric_of(loss: LossFn) -> Metric:
    """Return the metric that belongs to a loss.

    Args:
        loss: The loss of a learner.

    Returns:
        Accuracy for `cross_entropy`; otherwise the loss itself.
    """
    if loss is cross_entropy:
        return Metric("accuracy", accuracy)
    return Metric(getattr(loss, "__name__", "loss"), loss)


def is_better(value: float, than: float, metric: str) -> bool:
    """Return whether the first value of a metric is better than the second."""
    return value > than if metric in HIGHER_IS_BETTER else value < than


def best_of(things: Iterable[Thing], value_fn: Callable[[Thing], float], metric: str) -> Thing:
    """Return the element with the best value of a metric."""
    return (max if metric in HIGHER_IS_BETTER else min)(things, key=value_fn)

"""Losses and metrics over a set of predictions, padded rows left out. Means, never sums (docs/method.md)."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

Thing = TypeVar("Thing")
LossFn = Callable[[Array, Array, Array], Array]  # (prediction, y, mask) -> scalar


def masked_mean(values: Num[Array, "n ..."] | Bool[Array, "n ..."], mask: Bool[Array, " n"]) -> Float[Array, "..."]:
    """Mean over the rows where `mask` holds; the other rows are left out."""
    rows = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
    return jnp.where(rows, values, 0).sum(0) / jnp.maximum(mask.sum(), 1)


def mse(prediction: Float[Array, "n y"], y: Float[Array, "n y"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """Mean squared error over rows and outputs."""
    return masked_mean(jnp.square(prediction - y).mean(-1), mask)


def cross_entropy(
    log_probabilities: Float[Array, "n c"], y: Float[Array, "n c"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Mean of -log p of the right class; `y` is its one-hot code."""
    return masked_mean(-(log_probabilities * y).sum(-1), mask)


def accuracy(
    log_probabilities: Float[Array, "n c"], y: Float[Array, "n c"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """How many of 100 rows are given their class."""
    return 100 * masked_mean(log_probabilities.argmax(-1) == y.argmax(-1), mask)


@dataclasses.dataclass(frozen=True)
class Metric:
    """What tasks are scored by, and which way is better."""

    name: str
    score: LossFn

    @property
    def higher_is_better(self) -> bool:
        """Of two values, is the larger the better one?"""
        return self.name in HIGHER_IS_BETTER


HIGHER_IS_BETTER = ("accuracy",)


def metric_of(loss: LossFn) -> Metric:
    """Accuracy for a classifier; otherwise the loss itself."""
    if loss is cross_entropy:
        return Metric("accuracy", accuracy)
    return Metric(getattr(loss, "__name__", "loss"), loss)


def is_better(value: float, than: float, metric: str) -> bool:
    """Is the first value of this metric the better one?"""
    return value > than if metric in HIGHER_IS_BETTER else value < than


def best_of(things: Iterable[Thing], value_fn: Callable[[Thing], float], metric: str) -> Thing:
    """The thing with the best value of this metric."""
    return (max if metric in HIGHER_IS_BETTER else min)(things, key=value_fn)

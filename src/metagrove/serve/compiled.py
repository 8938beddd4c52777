"""Compiled functions of fitted tasks. Python, estimators and commands share them and give identical results."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from metagrove.inner import repeat
from metagrove.learner import Info, Learner, Meta, Predictor
from metagrove.nets.predictors import Statistics, bind_support
from metagrove.outer import over_tasks
from metagrove.task import Examples

Answer = Callable[..., Array]
"""A predictor, or its `std`."""
FIT = "fit"
"""The measure of novelty that every learner has: the loss on the support set after adapting."""


def fit_support(
    learner: Learner, meta: Meta, support: Examples, steps: int, statistics: Statistics
) -> tuple[Predictor, Info]:
    """`adapt` without randomness and without the outputs that only training uses; the predictor's statistics are fixed.

    The loss on the support set after adapting is a measure of novelty.
    """
    predictor, info = learner.adapt(meta, support, steps=steps)
    predictor = bind_support(predictor, support, statistics)
    loss = learner.loss(predictor(support.x, support.mask), support.y, support.mask)
    reduced = {"path": repeat(predictor, 1), "penalty": jnp.zeros(()), "metrics": {}}
    return predictor, dataclasses.replace(info, novelty={**info.novelty, FIT: loss}, **reduced)


adapt_one = eqx.filter_jit(fit_support)
"""`fit_support`, compiled."""


class NoPath(eqx.Module):
    """A path without predictors."""

    def __call__(self, *_: Any) -> Array:
        """Not callable."""
        raise NotImplementedError


@eqx.filter_jit
def adapt_batch(
    learner: Learner, meta: Meta, supports: Examples, steps: int, statistics: Statistics
) -> tuple[Predictor, Info]:
    """`fit_support` of each of many tasks, without their paths."""

    def one(support: Examples) -> tuple[Predictor, Info]:
        predictor, info = fit_support(learner, meta, support, steps, statistics)
        return predictor, dataclasses.replace(info, path=NoPath())

    return over_tasks(one, supports)


def rows_alone(answer: Answer, x: Array) -> Array:
    """The answer for each row alone, so that it does not depend on other rows even if the net normalises by a set."""
    return jax.vmap(lambda row: answer(row[None], jnp.ones(1, bool))[0])(x)


answer_rows = eqx.filter_jit(rows_alone)
"""`rows_alone`, compiled."""


@eqx.filter_jit
def answer_set(answer: Answer, x: Array, mask: Array) -> Array:
    """The answers for a set of rows together (transductive)."""
    return answer(x, mask)


@eqx.filter_jit
def answer_batch(x: Any, mask: Any, predictors: Predictor, statistics: Statistics, std: bool = False) -> Array:
    """Predictions for rows of each of many tasks, or their standard deviations."""

    def one(x: Array, mask: Array, predictor: Any) -> Array:
        answer = predictor.std if std else predictor
        return answer(x, mask) if statistics == "query" else rows_alone(answer, x)

    return over_tasks(one, x, mask, predictors)

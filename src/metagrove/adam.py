"""The outer optimiser: Adam (Kingma & Ba, 2015) with a step count per row, and its schedules.

Bias correction then also holds for rows that are added later:

m ← β₁m + (1 - β₁)g,   v ← β₂v + (1 - β₂)g²,   update = m̂ / (√v̂ + ε),   m̂ = m / (1 - β₁^age),   v̂ = v / (1 - β₂^age)

With one count for all rows, the first updates of a row that is added late would be (1 - β₁) / √(1 - β₂) = 3.2 times
too large.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike

DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8


class AgedAdamState(NamedTuple):
    """First and second moments of the gradients, and the number of steps of each row of the first axis."""

    mean: Any
    square: Any
    age: Any


def scale_by_aged_adam() -> optax.GradientTransformation:
    """Rescale updates by Adam with a step count per row; equal to `optax.scale_by_adam` if no row is added."""

    def init(params: Any) -> AgedAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AgedAdamState(zeros, zeros, jax.tree.map(row_ages, params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AgedAdamState]:
        del params
        mean = jax.tree.map(lambda g, m: (1 - DECAY) * g + DECAY * m, updates, state.mean)
        square = jax.tree.map(lambda g, v: (1 - SQUARE_DECAY) * (g**2) + SQUARE_DECAY * v, updates, state.square)
        age = jax.tree.map(lambda a: a + 1, state.age)
        return jax.tree.map(direction, mean, square, age), AgedAdamState(mean, square, age)

    return optax.GradientTransformation(init, update)


def row_ages(param: Array) -> Array:
    """Make the step counts of a parameter, one per row."""
    return jnp.zeros((*param.shape[:1], *(1 for _ in param.shape[1:])), jnp.int32)


def direction(mean: Array, square: Array, age: Array) -> Array:
    """Compute the update m̂ / (√v̂ + ε)."""
    count = age.astype(mean.dtype)
    return mean / (1 - DECAY**count) / (jnp.sqrt(square / (1 - SQUARE_DECAY**count)) + EPSILON)


def clip_by_norm(largest: float) -> optax.GradientTransformation:
    """Scale updates whose global norm is above `largest` down to it.

    As `optax.clip_by_global_norm`, by one factor: no second array of scaled updates is made.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        factor = largest / jnp.maximum(global_norm(updates), largest)
        return jax.tree.map(lambda update: update * factor.astype(update.dtype), updates), state

    return optax.GradientTransformation(optax.identity().init, update)


def global_norm(tree: Any) -> Array:
    """√Σ g². The maximum with 0 keeps XLA from joining the sums: one over all axes is slow on a CPU."""
    squares = [jnp.square(leaf).reshape(-1, *leaf.shape[-1:]) for leaf in jax.tree.leaves(tree) if leaf.size]
    return jnp.sqrt(sum(jnp.maximum(each.sum(0), 0).sum() for each in squares))


def cosine_decay(rate: float, steps: ArrayLike) -> optax.Schedule:
    """β (1 + cos(π t / T)) / 2, as `optax.cosine_decay_schedule`, where T may be data of a compiled function.

    π / T comes first, which is how XLA compiles a T that is constant: the same numbers bit for bit.
    """
    last = jnp.maximum(jnp.asarray(steps, float), 1)

    def schedule(count: Any) -> Array:
        return rate * (0.5 * (1 + jnp.cos(jnp.minimum(count, last) * (math.pi * (1 / last)))))

    return schedule


def linear_decay(rate: float, steps: ArrayLike) -> optax.Schedule:
    """β (1 - t / T), where T may be data of a compiled function."""
    last = jnp.maximum(jnp.asarray(steps, float), 1)

    def schedule(count: Any) -> Array:
        return rate * (1 - jnp.minimum(count, last) / last)

    return schedule

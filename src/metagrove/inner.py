"""The inner loop: an initialisation, a loss, an update rule and k steps give the path. There is no other one.

θ⁰ = initialisation,   θᵗ⁺¹ = update(θᵗ, ∇L(θᵗ)),   path = (θ⁰, ..., θᵏ)
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from metagrove.learner import Predictor
from metagrove.losses import LossFn
from metagrove.task import Examples

Params = Any
UpdateFn = Callable[[Params, Params], Params]


def inner_problems(inner_lr: float, inner_steps: int) -> list[str]:
    """What is wrong with an inner loop's settings, a line each."""
    problems = [] if inner_lr >= 0 else [f"inner_lr must be 0 or more, got {inner_lr}"]
    return problems + ([] if inner_steps >= 0 else [f"inner_steps must be 0 or more, got {inner_steps}"])


def sgd(inner_lr: float | Array) -> UpdateFn:
    """θ − α∇L(θ)."""
    return lambda params, grads: jax.tree.map(lambda p, g: p - inner_lr * g, params, grads)


def descend(
    loss_fn: Callable[[Params], Float[Array, ""]],
    params: Params,
    update_fn: UpdateFn,
    steps: int,
    *,
    first_order: bool = False,
) -> tuple[Params, Params]:
    """The last parameters, and all of θ⁰ ... θᵏ stacked; differentiable to any order.

    `first_order` treats each gradient as a constant, so that the meta-gradient needs no second derivative.
    """

    def step(params: Params, _: None) -> tuple[Params, Params]:
        grads = jax.grad(loss_fn)(params)
        grads = jax.lax.stop_gradient(grads) if first_order else grads
        params = update_fn(params, grads)
        return params, params

    last, later = jax.lax.scan(step, params, length=steps)
    path = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), params, later)
    return last, path


def adapt_net(
    net: Predictor, support: Examples, loss: LossFn, update_fn: UpdateFn, steps: int, *, first_order: bool = False
) -> tuple[Predictor, Predictor]:
    """`descend` from a net's parameters on its support loss: the adapted net, and the nets of the path stacked."""
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def support_loss(params: Params) -> Float[Array, ""]:
        return loss(eqx.combine(params, static)(support.x, support.mask), support.y, support.mask)

    adapted, path = descend(support_loss, params, update_fn, steps, first_order=first_order)
    return eqx.combine(adapted, static), eqx.combine(path, static)

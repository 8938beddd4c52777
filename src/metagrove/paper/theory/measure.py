"""The quantities of the bounds for one task, with unscaled losses; `study` maps over tasks and scales."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from metagrove.inner import GradientLearner, descend
from metagrove.learner import Meta
from metagrove.paper.theory.bounds import step_constant
from metagrove.paper.theory.curvature import hessian_change, hessian_norm
from metagrove.paper.theory.gates import Reach, flat, out_of_reach
from metagrove.task import Examples, Task

CHUNK = 100
"""Fresh points whose Hessian norms are computed at once."""


class Quantities(eqx.Module):
    """Measured quantities of one task. Risks are mean squared errors, on the support set unless they are `fresh`."""

    risk: Float[Array, ""]
    """R̂(θ₀ₜ)."""
    risk_shared: Float[Array, ""]
    """R̂(θ₀) of the run's own shared initialisation."""
    risk_reference: Float[Array, ""]
    """R̂ of the reference initialisation, MAML's θ₀."""
    fresh_risk: Float[Array, ""]
    """R(θ₀ₜ)."""
    adapted_risk: Float[Array, ""]
    """R̂(θ_T)."""
    fresh_adapted_risk: Float[Array, ""]
    """R(θ_T)."""
    fresh_decayed_risk: Float[Array, ""]
    """R after the same number of steps of size c/u."""
    largest_loss: Float[Array, ""]
    """The largest loss of a single point, at θ₀ₜ, θ_T or the reference."""
    hessian_norm: Float[Array, ""]
    """Mean over support points at θ₀ₜ."""
    fresh_hessian_norm: Float[Array, ""]
    """Mean over fresh points at θ₀ₜ; NaN if not measured."""
    smoothness: Float[Array, ""]
    """η̂: the largest Hessian norm of a support point along the inner path."""
    hessian_lipschitz: Float[Array, ""]
    """ρ̂: the largest change of a support point's Hessian along the inner path, per distance."""
    gradient_std: Float[Array, ""]
    """σ: root mean square distance of the support points' gradients to their mean, at θ₀ₜ."""
    reach: Reach


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Settings of the measurement of a run."""

    steps: int
    """Inner steps."""
    scale: float
    """M: losses are divided by it in the learning rates c/u, since the theorem requires losses in [0, 1]."""
    fresh_hessians: int = 0
    """Fresh points for γ; 0 to leave it out."""


class FlatNet(eqx.Module):
    """Losses and curvature of a net as functions of its parameters in one vector."""

    unravel: Callable[[Array], Any] = eqx.field(static=True)
    static: Any

    @classmethod
    def of(cls, net: Any) -> "FlatNet":
        """The functions of one net."""
        params, static = eqx.partition(net, eqx.is_inexact_array)
        return cls(ravel_pytree(params)[1], static)

    def point_loss(self, params: Array, x: Array, y: Array) -> Array:
        """Squared error of one example."""
        return jnp.square(eqx.combine(self.unravel(params), self.static)(x[None]) - y[None]).mean()

    def losses(self, params: Array, rows: Examples) -> Array:
        """Squared error of each example."""
        return jax.vmap(lambda x, y: self.point_loss(params, x, y))(rows.x, rows.y)

    def norm(self, params: Array, x: Array, y: Array) -> Array:
        """Norm of the Hessian of one example's loss."""
        return hessian_norm(lambda p: self.point_loss(p, x, y), params)

    def change(self, first: Array, second: Array, x: Array, y: Array) -> Array:
        """Change of the Hessian of one example's loss between two parameter vectors."""
        return hessian_change(lambda p: self.point_loss(p, x, y), first, second)

    def norms_along(self, path: Array, rows: Examples) -> Array:
        """Norms of the Hessians of the examples, at each step of a path."""
        over_rows = jax.vmap(self.norm, in_axes=(None, 0, 0))
        return jax.lax.map(lambda params: over_rows(params, rows.x, rows.y), path)

    def changes_along(self, path: Array, rows: Examples) -> Array:
        """Changes of the Hessians of the examples from each step of a path to the next."""
        over_rows = jax.vmap(self.change, in_axes=(None, None, 0, 0))
        return jax.lax.map(lambda pair: over_rows(pair[0], pair[1], rows.x, rows.y), (path[:-1], path[1:]))

    def gradient_std(self, params: Array, rows: Examples) -> Array:
        """Root mean square distance of the examples' gradients to their mean."""
        gradients = jax.vmap(jax.grad(self.point_loss), in_axes=(None, 0, 0))(params, rows.x, rows.y)
        return jnp.sqrt(jnp.square(gradients - gradients.mean(0, keepdims=True)).sum(1).mean())


def measure(learner: GradientLearner, meta: Meta, reference: Any, how: Measurement, task: Task) -> Quantities:
    """Measure one task.

    Args:
        learner: MAML or HSML with a fully connected base net.
        meta: Its meta-parameters.
        reference: A net with MAML's θ₀.
        how: Settings of the measurement.
        task: The task, whose query set is the fresh points.

    Returns:
        The quantities of the bounds.
    """
    _, info = learner.adapt(meta, task.support, steps=how.steps)
    path = jax.vmap(flat)(info.path)
    shared_net = learner.base_net(meta)
    net, support, query = FlatNet.of(shared_net), task.support, task.query
    start, end, shared, other = path[0], path[-1], flat(shared_net), flat(reference)
    norms = net.norms_along(path, support)
    decayed = decayed_steps(net, start, norms.max(), support, how)
    seen = [net.losses(params, rows) for params in (start, end, other) for rows in (support, query)]
    return Quantities(
        risk=net.losses(start, support).mean(),
        risk_shared=net.losses(shared, support).mean(),
        risk_reference=net.losses(other, support).mean(),
        fresh_risk=net.losses(start, query).mean(),
        adapted_risk=net.losses(end, support).mean(),
        fresh_adapted_risk=net.losses(end, query).mean(),
        fresh_decayed_risk=net.losses(decayed, query).mean(),
        largest_loss=jnp.concatenate(seen).max(),
        hessian_norm=norms[0].mean(),
        fresh_hessian_norm=fresh_norm(net.norm, start, query, how),
        smoothness=norms.max(),
        hessian_lipschitz=net.changes_along(path, support).max(),
        gradient_std=net.gradient_std(start, support),
        reach=out_of_reach(shared, jax.grad(lambda p: net.losses(p, support).mean())(shared), learner.inner_lr),
    )


def decayed_steps(net: FlatNet, start: Array, smoothness: Array, support: Examples, how: Measurement) -> Array:
    """The parameters after as many steps of size c/u on the scaled loss, with the largest c of theorem 2."""
    c = step_constant(smoothness / how.scale, support.x.shape[0])
    rule = optax.sgd(lambda count: c / (count + 1))
    last, _ = descend(lambda params: net.losses(params, support).mean() / how.scale, start, rule, how.steps)
    return last


def fresh_norm(norm: Any, start: Array, query: Examples, how: Measurement) -> Array:
    """Mean Hessian norm over fresh points."""
    if not how.fresh_hessians:
        return jnp.asarray(jnp.nan)
    rows = query.x[: how.fresh_hessians], query.y[: how.fresh_hessians]
    return jax.lax.map(lambda row: norm(start, *row), rows, batch_size=CHUNK).mean()

"""Theorem 1 as stated: a convex loss and a single pass of stochastic gradient descent, one example per step.

The base net is linear in fixed features 1, z, z², z³ of z = x/5, so that the squared error is convex in its weights.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.learner import Learner, Meta
from metagrove.paper.theory.gates import flat
from metagrove.task import Examples, Spec, Task

LARGEST_X = 5.0


class PolynomialNet(eqx.Module):
    """φ(x) w, with φ the powers of x/5."""

    weight: Float[Array, "f o"]

    def features(self, x: Float[Array, "n 1"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n f"]:
        """1, z, z², … of z = x/5."""
        del mask
        return (x / LARGEST_X) ** jnp.arange(self.weight.shape[0])[None]

    def __call__(self, x: Float[Array, "n 1"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n o"]:
        return self.features(x, mask) @ self.weight


@dataclasses.dataclass(frozen=True)
class PolynomialBase:
    """Settings of a polynomial as the base net."""

    degree: int = 3
    """Highest power."""

    def __call__(self, spec: Spec, *, key: PRNGKeyArray) -> PolynomialNet:
        return PolynomialNet(jax.random.truncated_normal(key, -2, 2, (self.degree + 1, spec.y_dim)))


class ConvexQuantities(eqx.Module):
    """Quantities of theorem 1 for one task; risks are mean squared errors."""

    risk: Float[Array, ""]
    """R̂(θ₀ₜ)."""
    risk_reference: Float[Array, ""]
    """R̂ of MAML's θ₀."""
    fresh_risk: Float[Array, ""]
    """R(θ₀ₜ)."""
    least_risk: Float[Array, ""]
    """R*, the least risk of any weights, on fresh points."""
    gap: Float[Array, ""]
    """R(θ_T) − R̂(θ_T) after the pass."""
    step: Float[Array, ""]
    """c = 1/η; each step is c/√n."""
    gradient_std: Float[Array, ""]
    """σ at θ₀ₜ."""
    largest_loss: Float[Array, ""]


def errors(weight: Array, rows: Examples) -> Array:
    """φᵀw − y of each row."""
    return (PolynomialNet(weight[:, None])(rows.x) - rows.y)[:, 0]


def risk(weight: Array, rows: Examples) -> Array:
    """Mean of (φᵀw − y)²."""
    return jnp.square(errors(weight, rows)).mean()


def single_pass(weight: Array, designs: Array, targets: Array, step: Array) -> Array:
    """One pass of stochastic gradient descent, one example per step."""

    def update(weight: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
        design, y = row
        return weight - step * 2 * (design @ weight - y) * design, None

    return jax.lax.scan(update, weight, (designs, targets))[0]


def measure_convex(learner: Learner, meta: Meta, reference: PolynomialNet, task: Task) -> ConvexQuantities:
    """Measure one task: initialise as the learner does, then pass once over the support points.

    Args:
        learner: MAML or HSML with a `PolynomialBase`.
        meta: Its meta-parameters.
        reference: MAML's θ₀.
        task: The task, whose query set is the fresh points.

    Returns:
        The quantities of theorem 1.
    """
    _, info = learner.adapt(meta, task.support, steps=0)
    start = flat(jax.tree.map(lambda leaf: leaf[0], info.path))
    net, support, query = learner.base_net(meta), task.support, task.query

    designs = net.features(support.x)
    c = 1 / (2 * jnp.square(designs).sum(1).max())  # the Hessian of (φᵀw − y)² is 2φφᵀ
    step = c / jnp.sqrt(len(designs))

    adapted = single_pass(start, designs, support.y[:, 0], step)
    gradients = 2 * errors(start, support)[:, None] * designs
    best = jnp.linalg.lstsq(net.features(query.x), query.y[:, 0])[0]
    at = [errors(w, rows) for w in (start, adapted, flat(reference)) for rows in (support, query)]
    return ConvexQuantities(
        risk=risk(start, support),
        risk_reference=risk(flat(reference), support),
        fresh_risk=risk(start, query),
        least_risk=risk(best, query),
        gap=risk(adapted, query) - risk(adapted, support),
        step=c,
        gradient_std=jnp.sqrt(jnp.square(gradients - gradients.mean(0, keepdims=True)).sum(1).mean()),
        largest_loss=jnp.square(jnp.concatenate(at)).max(),
    )

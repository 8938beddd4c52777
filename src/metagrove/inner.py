"""The inner loop: an initialisation, a loss, an update rule and k steps give the path. There is no other one.

θ⁰ = initialisation,   θᵗ⁺¹ = θᵗ + update(∇L(θᵗ)),   path = (θ⁰, ..., θᵏ)

The update rule is an optax transformation: SGD, a step size for each parameter, masked, Stein's, Adam.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from metagrove.learner import Learner, NetFn, Predictor
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.mlp import MLPNet
from metagrove.nets.predictors import bind_support
from metagrove.task import Examples

Params = Any
UpdateRule = optax.GradientTransformation
MAX_UNROLLED_STEPS = 3
"""So few steps are compiled one after another, more as a loop: BMAML in .5 to .6 of the time, MAML's five no faster."""


def clipped(rule: UpdateRule, largest: float) -> UpdateRule:
    """The rule on gradients whose every number is kept within ±`largest`; 0 leaves them as they are."""
    return optax.chain(optax.clip(largest), rule) if largest else rule


def descend(
    loss_fn: Callable[[Params], Float[Array, ""]],
    params: Params,
    rule: UpdateRule,
    steps: int,
    *,
    first_order: bool = False,
    updates_per_step: int = 1,
) -> tuple[Params, Params]:
    """The last parameters, and all of θ⁰ ... θᵏ stacked; differentiable to any order.

    `first_order` treats each gradient as a constant, so that the meta-gradient needs no second derivative.
    """

    def update(_: Any, carry: tuple[Params, Any]) -> tuple[Params, Any]:
        params, rule_state = carry
        grads = jax.grad(loss_fn)(params)
        grads = jax.lax.stop_gradient(grads) if first_order else grads
        updates, rule_state = rule.update(grads, rule_state, params)
        return optax.apply_updates(params, updates), rule_state

    def step(carry: tuple[Params, Any], _: None) -> tuple[tuple[Params, Any], Params]:
        many = updates_per_step > 1
        carry = jax.lax.fori_loop(0, updates_per_step, update, carry) if many else update(None, carry)
        return carry, carry[0]

    carry = params, rule.init(params)
    if 0 < steps <= MAX_UNROLLED_STEPS:
        visited = [params]
        for _ in range(steps):
            carry, params = step(carry, None)
            visited.append(params)
        return params, jax.tree.map(lambda *each: jnp.stack(each), *visited)
    (last, _), later = jax.lax.scan(step, carry, length=steps)
    path = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), params, later)
    return last, path


def adapt_net(
    net: Predictor,
    support: Examples,
    loss: Callable[[Array, Array, Array], Array],
    rule: UpdateRule,
    steps: int,
    *,
    adapts: Any = eqx.is_inexact_array,
    **how: Any,
) -> tuple[Predictor, Predictor]:
    """`descend` from a net's parameters on its support loss: the adapted net, and the nets of the path stacked.

    Where `adapts` (a tree of True and False, or a function) is False, a parameter stays as it is along the path.
    """
    params, fixed = eqx.partition(net, adapts)

    def support_loss(params: Params) -> Float[Array, ""]:
        return loss(eqx.combine(params, fixed)(support.x, support.mask), support.y, support.mask)

    adapted, path = descend(support_loss, params, rule, steps, **how)
    path = eqx.combine(path, repeat(fixed, steps + 1))
    return bind_support(eqx.combine(adapted, fixed), support), bind_support(path, repeat(support, steps + 1))


def squared_distance(first: Any, second: Any) -> Float[Array, ""]:
    """Sum of squared differences over all arrays."""
    first, second = (eqx.filter(tree, eqx.is_inexact_array) for tree in (first, second))
    return optax.tree.norm(jax.tree.map(jnp.subtract, first, second), squared=True)


def trainable_mask(tree: Any, where: Callable[[Any], Any]) -> Any:
    """For `adapts`: True at the floating-point arrays of one part of the tree and False elsewhere."""
    part = jax.tree.map(eqx.is_inexact_array, where(tree))
    return eqx.tree_at(where, jax.tree.map(lambda _: False, tree), part)


def repeat(tree: Any, times: int) -> Any:
    """A path along which nothing changes: every floating-point array `times` times along a new first axis."""
    arrays, others = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (times, *leaf.shape)), arrays), others)


@dataclasses.dataclass(frozen=True)
class GradientLearner(Learner):
    """Abstract: a learner that takes gradient steps from an initialisation, and the settings that all of them have."""

    net: MLPNet | Conv4Net | NetFn = MLPNet()
    """The base net."""
    inner_lr: float = 0.001
    """α, the inner loop's step size."""
    inner_steps: int = 5
    """Inner steps in training."""
    inner_clip: float = 0.0
    """Largest size of each number of an inner gradient; 0 leaves it as it is."""
    first_order: bool = False
    """Leave second derivatives out of the meta-gradient."""

    def validation_errors(self) -> list[str]:
        names = ("inner_lr", "inner_steps", "inner_clip")
        return [f"{name} must be 0 or more, got {value}" for name in names if not (value := getattr(self, name)) >= 0]

    def fit(
        self, net: Predictor, support: Examples, steps: int | None, *, rule: UpdateRule | None = None, **how: Any
    ) -> tuple[Predictor, Predictor]:
        """`adapt_net` with this learner's settings; the update rule is plain SGD unless another is given."""
        rule = clipped(optax.sgd(self.inner_lr) if rule is None else rule, self.inner_clip)
        steps = self.inner_steps if steps is None else steps
        return adapt_net(net, support, self.loss, rule, steps, first_order=self.first_order, **how)

"""Reptile (Nichol et al. 2018): move the initialisation towards the parameters adapted to each task.

θᵏ = k steps from θ⁰ on examples of the task,   meta-gradient θ⁰ - θᵏ, that of ½‖θ⁰ - stopgrad(θᵏ)‖²

By default the steps are SGD on all examples at once and the outer optimiser is Adam. As published: `--inner-rule adam`
(β₁ = 0) on minibatches (`--minibatch 10`), and θ⁰ ← θ⁰ + β mean(θᵏ - θ⁰) with β from 1 linearly to 0 (`--outer-rule sgd
--outer-lr 1 --schedule linear`). Adam's second moments v are not reset between tasks: they are part of the
meta-parameters and move towards those after each task by the same outer step.
"""

import dataclasses
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.inner import GradientLearner, Params, UpdateRule, clipped, descend, repeat, squared_distance
from metagrove.learner import Info, Predictor
from metagrove.losses import LossFn
from metagrove.nets.order import permuted_order, sorted_order
from metagrove.nets.predictors import bind_support
from metagrove.task import Examples, Spec, Task, join

__all__ = ["Reptile"]

SQUARE_DECAY, EPSILON = 0.999, 1e-8


class Moments(eqx.Module):
    """Second moments of the inner gradients, a running sum, and its weight: the mean square is squares / weight."""

    squares: Params
    weight: Float[Array, "..."]


class ReptileMeta(eqx.Module):
    """Θ with an inner Adam: the initialisation and the second moments."""

    net: Predictor
    moments: Moments


@dataclasses.dataclass(frozen=True)
class Reptile(GradientLearner):
    """Reptile: moves the initialisation towards the adapted parameters, without second derivatives or query loss.

    From On First-Order Meta-Learning Algorithms (Nichol et al. 2018).
    """

    takes: ClassVar[tuple[str, ...]] = ()

    inner_rule: Literal["sgd", "adam"] = "sgd"
    """Rule of the inner steps: SGD, or Adam with β₁ = 0 whose second moments last from task to task."""
    minibatch: int = 0
    """Number of examples of an inner step in training; 0 for all of them."""
    test_minibatch: int = 0
    """Number of examples of an inner step at test; 0 for all of them."""

    def validation_errors(self) -> list[str]:
        needless = (
            ["first_order has no effect here: Reptile never differentiates its inner steps"] if self.first_order else []
        )
        names = ("minibatch", "test_minibatch")
        errors = [f"{name} must be 0 or more, got {value}" for name in names if (value := getattr(self, name)) < 0]
        return super().validation_errors() + needless + errors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Predictor | ReptileMeta:
        net = self.net(spec, key=key)
        if self.inner_rule == "sgd":
            return net
        zeros = jax.tree.map(jnp.zeros_like, eqx.filter(net, eqx.is_inexact_array))
        return ReptileMeta(net, Moments(zeros, jnp.zeros(())))

    def adapt(
        self, meta: Any, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        adapted, path = self.run(meta, support, steps, self.test_minibatch, key)
        fixed = self.inner_rule == "sgd"
        return (adapted, Info(path)) if fixed else (adapted.net, Info(path.net))

    def run(
        self, meta: Any, examples: Examples, steps: int | None, minibatch: int, key: PRNGKeyArray | None
    ) -> tuple[Any, Any]:
        """Take the inner steps.

        Args:
            meta: The meta-parameters.
            examples: The examples of the task.
            steps: Number of inner steps; None for the number used in training.
            minibatch: Number of examples of a step; 0 for all of them.
            key: Random key of the minibatches; None for fixed ones of the sorted examples.

        Returns:
            What the meta-parameters have become, and their path.
        """
        steps = self.inner_steps if steps is None else steps
        params, static = eqx.partition(jax.lax.stop_gradient(meta), eqx.is_inexact_array)
        batches = draw_batches(examples, steps, minibatch, key) if minibatch else None

        def loss(params: Params, rows: Array | None = None) -> Float[Array, ""]:
            net, part = eqx.combine(params, static), examples
            net = net.net if isinstance(net, ReptileMeta) else net
            if rows is not None:
                part = jax.tree.map(lambda leaf: leaf[rows], examples)
            return self.loss(net(part.x, part.mask), part.y, part.mask)

        rule = lasting_adam(self.inner_lr) if self.inner_rule == "adam" else optax.sgd(self.inner_lr)
        last, path = descend(loss, params, clipped(rule, self.inner_clip), steps, batches=batches)
        path = eqx.combine(path, repeat(static, steps + 1))
        return bind_support(eqx.combine(last, static), examples), bind_support(path, repeat(examples, steps + 1))

    def meta_loss(self, meta: Any, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute ½‖Θ - stopgrad(Θᵏ)‖², where Θᵏ is adapted to support and query examples.

        Args:
            meta: The base net at θ⁰, with the second moments of an inner Adam.
            task: A training task.
            key: Random key of the minibatches.

        Returns:
            The loss, and the Info of the adaptation.
        """
        examples = join(task.support, task.query)
        adapted, path = self.run(meta, examples, None, self.minibatch, key)
        net = adapted if self.inner_rule == "sgd" else adapted.net
        known_loss = known(self.loss, net, examples)
        distance = squared_distance(bind_support(meta, examples), jax.lax.stop_gradient(adapted))
        return distance / 2, Info(path if self.inner_rule == "sgd" else path.net, metrics={"known_loss": known_loss})


def known(loss: LossFn, net: Predictor, examples: Examples) -> Float[Array, ""]:
    """The loss on the examples that were adapted to."""
    return loss(net(examples.x, examples.mask), examples.y, examples.mask)


def draw_batches(examples: Examples, steps: int, size: int, key: PRNGKeyArray | None) -> Array:
    """Draw the rows of each minibatch without replacement, reshuffling when all unmasked rows have been used.

    Args:
        examples: The examples.
        steps: Number of minibatches.
        size: Number of rows of each.
        key: Random key; None for fixed minibatches, which do not depend on the order of the rows.

    Returns:
        Indices of shape (steps, size).
    """
    in_order = sorted_order(examples) if key is None else jnp.argsort(~examples.mask, stable=True)
    key = jax.random.key(0) if key is None else key
    num_real = jnp.maximum(examples.mask.sum(), 1)

    def row(place: Array) -> Array:
        shuffled = permuted_order(examples.mask[in_order], jax.random.fold_in(key, place // num_real))
        return in_order[shuffled[place % num_real]]

    return jax.vmap(jax.vmap(row))(jnp.arange(steps * size).reshape(steps, size))


def lasting_adam(inner_lr: float) -> UpdateRule:
    """Adam with β₁ = 0 on `ReptileMeta`: the moments are part of what is updated, so that they outlast the task.

    v ← β₂v + (1 - β₂)g²,   w ← β₂w + (1 - β₂),   θ ← θ - α g / (√(v / w) + ε); w corrects the bias of v's start at 0
    """

    def update(grads: Any, params: Any) -> Any:
        before = params.moments
        squares = jax.tree.map(
            lambda v, g: SQUARE_DECAY * v + (1 - SQUARE_DECAY) * jnp.square(g), before.squares, grads.net
        )
        weight = SQUARE_DECAY * before.weight + 1 - SQUARE_DECAY
        step = jax.tree.map(lambda g, v: -inner_lr * g / (jnp.sqrt(v / weight) + EPSILON), grads.net, squares)
        change = Moments(jax.tree.map(jnp.subtract, squares, before.squares), weight - before.weight)
        return ReptileMeta(step, change)

    return optax.stateless(update)

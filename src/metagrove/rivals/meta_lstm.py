"""Meta-learner LSTM (Ravi & Larochelle 2017): the parameters of the base net are the cell state of a learned LSTM.

input of each coordinate:  prep(∇L), prep(L),   prep(x) = (log|x|/p, sign x) if |x| ≥ e⁻ᵖ, else (-1, eᵖ x),   p = 10
first LSTM:                hₜ, shared weights and a state for each coordinate
second LSTM:               f̃ₜ = W_f [hₜ, θₜ₋₁, f̃ₜ₋₁] + b_f,   ĩₜ = W_i [hₜ, θₜ₋₁, ĩₜ₋₁] + b_i
update:                    θₜ = σ(f̃ₜ) θₜ₋₁ - σ(ĩₜ) ∇L

θ₀ is meta-learned. Gradients and losses of the inner steps are constants, so that there are no second derivatives.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import GradientLearner, UpdateRule
from metagrove.learner import Info, Predictor
from metagrove.task import Examples, Spec

__all__ = ["MetaLSTM"]

P = 10.0
INIT_RANGE, BIAS_RANGE = 0.01, 0.5
"""Weights start in ±INIT_RANGE, and biases within BIAS_RANGE of their centres."""
FORGET_BIAS = 4.5


class Gate(eqx.Module):
    """A gate of the second LSTM before its sigmoid: W [h, θ, previous value] + b."""

    weight: Float[Array, "..."]
    bias: Float[Array, "..."]

    def __init__(self, hidden_dim: int, centre: float, *, key: PRNGKeyArray):
        weight_key, bias_key = jax.random.split(key)
        self.weight = jax.random.uniform(weight_key, (hidden_dim + 2,), minval=-INIT_RANGE, maxval=INIT_RANGE)
        self.bias = centre + jax.random.uniform(bias_key, (), minval=-BIAS_RANGE, maxval=BIAS_RANGE)

    def __call__(
        self, hidden: Float[Array, "h p"], theta: Float[Array, " p"], before: Float[Array, " p"]
    ) -> Float[Array, " p"]:
        return self.weight[:-2] @ hidden + self.weight[-2] * theta + self.weight[-1] * before + self.bias


class MetaLSTMMeta(eqx.Module):
    """Θ: the initialisation, the first LSTM and the gates of the second one."""

    net: Predictor
    cell: eqx.nn.LSTMCell
    forget: Gate
    step: Gate


class RuleState(NamedTuple):
    """State of every coordinate: that of the first LSTM, and both gates before their sigmoids."""

    hidden: Float[Array, "h p"]
    cell: Float[Array, "h p"]
    forget: Float[Array, " p"]
    step: Float[Array, " p"]


@dataclasses.dataclass(frozen=True)
class MetaLSTM(GradientLearner):
    """Meta-learner LSTM: a recurrent net, shared by all parameters, learns the update rule and the initialisation.

    From Optimization as a Model for Few-Shot Learning (Ravi & Larochelle 2017). It is always first-order.
    """

    takes: ClassVar[tuple[str, ...]] = ("head", "adapts")

    inner_steps: int = 12
    """Number of updates in training, each on the whole support set."""
    hidden_dim: int = 20
    """Units of the first LSTM, for each parameter of the base net."""
    step_bias: float = -4.5
    """Centre of the initial bias b_i: updates start as SGD with learning rate σ(b_i), about .011."""

    def validation_errors(self) -> list[str]:
        needless = ["first_order has no effect here: the meta-learner LSTM is first-order"] if self.first_order else []
        return super().validation_errors() + check_at_least_one(self, "hidden_dim") + needless

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> MetaLSTMMeta:
        net_key, cell_key, forget_key, step_key = jax.random.split(key, 4)
        return MetaLSTMMeta(
            net=self.make_net(spec, key=net_key),
            cell=small_cell(self.hidden_dim, key=cell_key),
            forget=Gate(self.hidden_dim, FORGET_BIAS, key=forget_key),
            step=Gate(self.hidden_dim, self.step_bias, key=step_key),
        )

    def adapt(
        self, meta: MetaLSTMMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        adapted, path = self.fit(meta.net, support, steps, rule=learned_rule(meta))
        return adapted, Info(path)


def learned_rule(meta: MetaLSTMMeta) -> UpdateRule:
    """The update rule θₜ - θₜ₋₁ = (σ(f̃) - 1) θₜ₋₁ - σ(ĩ) ∇L, on all parameters as one vector."""

    def init(params: Any) -> RuleState:
        num = optax.tree.size(params)
        zeros = jnp.zeros((meta.cell.hidden_size, num))
        return RuleState(zeros, zeros, jnp.zeros(num), jnp.zeros(num))

    def update(grads: Any, state: RuleState, params: Any = None, *, value: Array, **_: Any) -> tuple[Any, RuleState]:
        grad = ravel_pytree(jax.lax.stop_gradient(grads))[0]
        theta, unravel = ravel_pytree(params)
        change, state = coordinate_update(meta, state, theta, grad, jax.lax.stop_gradient(value))
        return unravel(change), state

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


@jax.checkpoint
def coordinate_update(
    meta: MetaLSTMMeta,
    state: RuleState,
    theta: Float[Array, " p"],
    grad: Float[Array, " p"],
    loss: Float[Array, ""],
) -> tuple[Float[Array, " p"], RuleState]:
    """The change of every coordinate; coordinates are along the last axis, so that they are contiguous.

    The backward pass computes it again, since the gates of 12 updates would need four times the memory.
    """
    of_loss = jnp.broadcast_to(prep(loss)[:, None], (2, len(grad)))
    hidden, cell = lstm_step(meta.cell, jnp.concatenate([prep(grad).T, of_loss]), state.hidden, state.cell)
    forget, step = meta.forget(hidden, theta, state.forget), meta.step(hidden, theta, state.step)
    change = (jax.nn.sigmoid(forget) - 1) * theta - jax.nn.sigmoid(step) * grad
    return change, RuleState(hidden, cell, forget, step)


def lstm_step(
    cell: eqx.nn.LSTMCell, inputs: Float[Array, "i p"], hidden: Float[Array, "h p"], memory: Float[Array, "h p"]
) -> tuple[Float[Array, "h p"], Float[Array, "h p"]]:
    """Apply an LSTM cell to every column."""
    assert cell.bias is not None
    gates = cell.weight_ih @ inputs + cell.weight_hh @ hidden + cell.bias[:, None]
    take, keep, new, show = jnp.split(gates, 4)
    memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(take) * jnp.tanh(new)
    return jax.nn.sigmoid(show) * jnp.tanh(memory), memory


def prep(x: Float[Array, "*p"]) -> Float[Array, "*p 2"]:
    """Encode a gradient or loss of any magnitude by two numbers, its scale and its sign."""
    size = jnp.abs(x)
    large = size >= jnp.exp(-P)
    log_size = jnp.log(jnp.where(large, size, 1.0)) / P
    scale = jnp.where(large, log_size, -1.0)
    return jnp.stack([scale, jnp.where(large, jnp.sign(x), jnp.exp(P) * x)], axis=-1)


def small_cell(hidden_dim: int, *, key: PRNGKeyArray) -> eqx.nn.LSTMCell:
    """Create the first LSTM with weights from U(±.01) and biases of 0."""
    in_key, hidden_key = jax.random.split(key)
    cell = eqx.nn.LSTMCell(4, hidden_dim, key=key)
    weights = (
        jax.random.uniform(in_key, cell.weight_ih.shape, minval=-INIT_RANGE, maxval=INIT_RANGE),
        jax.random.uniform(hidden_key, cell.weight_hh.shape, minval=-INIT_RANGE, maxval=INIT_RANGE),
        jnp.zeros(4 * hidden_dim),
    )
    return eqx.tree_at(lambda one: (one.weight_ih, one.weight_hh, one.bias), cell, weights)

"""A layer that gates all parameters of a net, from a vector that describes the task (HSML, section 4.3; ARML)."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.learner import Predictor
from metagrove.nets.linear import xavier

Params = Any
GateForm = Literal["sigmoid", "affine", "direct"]
AFFINE_GAIN = 0.1
"""Gain of an affine gate's Xavier initialisation, so that it starts near the identity."""


class GateLayer(eqx.Module):
    """One fully connected layer for each parameter tensor, side by side in one matrix.

    - sigmoid: θ₀ᵢ = θ₀ ∘ o, o = σ(W v + b)
    - affine: θ₀ᵢ = θ₀ ∘ (1 + s) + t, [s, t] = W v + b, so that a weight may grow, change its sign or leave 0
    - direct: θ₀ᵢ = W v + θ₀, a layer that generates the initialisation and has θ₀ as its bias; nothing is gated
    """

    inward: Float[Array, "i r"] | None
    """The first factor of a weight matrix of rank r."""
    weight: Float[Array, "i o"]
    bias: Float[Array, " o"] | None
    """b; None in the direct form, whose bias is θ₀."""
    form: GateForm = eqx.field(static=True)

    def __init__(self, input_dim: int, params: Params, form: GateForm, *, rank: int = 0, key: PRNGKeyArray):
        sizes = [leaf.size for leaf in jax.tree.leaves(params)] * (2 if form == "affine" else 1)
        keys = jax.random.split(key, len(sizes))
        in_dim = rank or input_dim
        layers = [xavier(k, (in_dim, size), in_dim + size) for k, size in zip(keys, sizes, strict=True)]
        self.inward = xavier(jax.random.fold_in(key, len(sizes)), (input_dim, rank), input_dim + rank) if rank else None
        self.weight = jnp.concatenate(layers, axis=1) * (AFFINE_GAIN if form == "affine" else 1.0)
        self.bias = None if form == "direct" else jnp.zeros(sum(sizes))
        self.form = form

    def __call__(self, gate_input: Float[Array, " i"], init_params: Params) -> Params:
        """θ₀ᵢ, in the structure of θ₀; `gate_input` is v."""
        flat, unravel = ravel_pytree(init_params)
        out = self.linear(gate_input)
        if self.bias is None:
            return unravel(out + flat)
        if self.form == "sigmoid":
            return unravel(flat * jax.nn.sigmoid(out + self.bias))
        scale, shift = jnp.split(out + self.bias, 2)
        return unravel(flat * (1 + scale) + shift)

    def linear(self, gate_input: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        """W v."""
        hidden = gate_input if self.inward is None else gate_input @ self.inward
        return hidden @ self.weight


def apply_gate(net: Predictor, gate: GateLayer, gate_input: Float[Array, " i"]) -> Predictor:
    """The net with θ₀ᵢ in place of θ₀."""
    init_params, static = eqx.partition(net, eqx.is_inexact_array)
    return eqx.combine(gate(gate_input, init_params), static)

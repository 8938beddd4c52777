"""Knowledge adaptation (HSML paper, section 4.3): a gate tailors the shared initialisation to the task's place."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.learner import Predictor
from metagrove.nets.linear import xavier

Params = Any
GateForm = Literal["sigmoid", "affine", "none"]
AFFINE_START = 0.1
"""How far an affine gate's first weights reach, in parts of Xavier's: it starts near the identity."""


class Gate(eqx.Module):
    """One fully connected layer for each parameter tensor, side by side in one matrix.

    - sigmoid: θ₀ᵢ = θ₀ ∘ o, o = σ(W_g[g ⊕ h^L] + b), eq. (8)
    - affine (ours): θ₀ᵢ = θ₀ ∘ (1 + s) + t, [s, t] = W_g[g ⊕ h^L] + b, so that a weight may grow, turn or leave 0
    """

    inward: Float[Array, "i r"] | None
    """With a rank r, what comes before `weight`."""
    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]
    form: GateForm = eqx.field(static=True)

    def __init__(self, input_dim: int, params: Params, form: GateForm, *, rank: int = 0, key: PRNGKeyArray):
        sizes = [leaf.size for leaf in jax.tree.leaves(params)] * (2 if form == "affine" else 1)
        keys = jax.random.split(key, len(sizes))
        in_dim = rank or input_dim
        layers = [xavier(k, (in_dim, size), in_dim + size) for k, size in zip(keys, sizes, strict=True)]
        self.inward = xavier(jax.random.fold_in(key, len(sizes)), (input_dim, rank), input_dim + rank) if rank else None
        self.weight = jnp.concatenate(layers, axis=1) * (AFFINE_START if form == "affine" else 1.0)
        self.bias = jnp.zeros(sum(sizes))
        self.form = form

    def __call__(self, gate_input: Float[Array, " i"], init_params: Params) -> Params:
        """θ₀ᵢ, in the structure of θ₀; `gate_input` is [g ⊕ h^L]."""
        flat, unravel = ravel_pytree(init_params)
        hidden = gate_input if self.inward is None else gate_input @ self.inward
        out = hidden @ self.weight + self.bias
        if self.form == "sigmoid":
            return unravel(flat * jax.nn.sigmoid(out))
        scale, shift = jnp.split(out, 2)
        return unravel(flat * (1 + scale) + shift)


def apply_gate(net: Predictor, gate: Gate | None, gate_input: Float[Array, " i"]) -> Predictor:
    """The net with θ₀ᵢ in place of θ₀; without a gate, θ₀ itself."""
    if gate is None:
        return net
    init_params, static = eqx.partition(net, eqx.is_inexact_array)
    return eqx.combine(gate(gate_input, init_params), static)

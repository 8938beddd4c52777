"""Modulation of the hidden layers of a net by a code of the task (MUMOMAML; HSML with FiLM in place of the gate).

FiLM:     x(1 + γ) + β, τ_l = [γ, β]      sigmoid:  x σ(τ_l)      softmax:  x softmax(τ_l)
"""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metagrove.nets.few_shot import learning_rates, start_head
from metagrove.nets.layers import AfterLayer, adapted_mask
from metagrove.nets.predictors import PlainLayers, plain_layers
from metagrove.task import Examples

ModulationForm = Literal["film", "sigmoid", "softmax"]


def code_sizes(net: Any, form: ModulationForm) -> list[int]:
    """Size of the code τ_l of each hidden layer of a layered net."""
    return [size * (2 if form == "film" else 1) for size in net.layer_sizes[:-1]]


class Modulated(eqx.Module):
    """Predictor: a net whose hidden layers are modulated by τ_l before their activation."""

    net: Any
    """A layered net."""
    codes: tuple[Float[Array, " _"], ...]
    form: ModulationForm = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        return self.net(x, mask, after_layer=self.modulate)

    def modulate(self, layer: int, values: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
        """A hidden layer's values under its code."""
        return modulate(values, self.codes[layer], self.form) if layer < len(self.codes) else values

    @property
    def adapted_mask(self) -> "Modulated":
        """Inner steps adapt the net and leave the codes unchanged."""
        codes = (False,) * len(self.codes)
        return eqx.tree_at(lambda mask: (mask.net, mask.codes), self, (adapted_mask(self.net), codes))

    @property
    def head(self) -> tuple[Any, Any]:
        """The last layer's parameters."""
        net: Any = self.net
        return net.head

    def start_head(self, support: Examples, after_layer: AfterLayer | None = None) -> "Modulated":
        """The last layer is set from features of the modulated layers."""
        del after_layer  # this wrapper is not nested
        return eqx.tree_at(lambda net: net.net, self, start_head(self.net, support, self.modulate))

    def rates(self) -> "Modulated | None":
        """The factors of the net."""
        rates = learning_rates(self.net)
        return None if rates is None else eqx.tree_at(lambda net: net.net, self, rates)

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """A code scales and shifts each unit: (x W + b) ∘ s + t = x (W ∘ s) + (b ∘ s + t)."""
        del after_layer  # this wrapper is not nested
        plain = plain_layers(self.net, self.modulate)
        *hidden, head = plain.layers
        layers = []
        for (weight, bias), code in zip(hidden, self.codes, strict=True):
            scale, shift = scale_and_shift(code, self.form)
            across = scale.reshape((1,) * (weight.ndim - 1) + (-1,))
            layers.append((weight * across, bias * scale + shift))
        return dataclasses.replace(plain, layers=(*layers, head))


def modulate(values: Float[Array, "n ..."], code: Float[Array, " _"], form: ModulationForm) -> Float[Array, "n ..."]:
    """Modulate the values of a layer by τ_l; units or channels are the last axis."""
    code = code.reshape((1,) * (values.ndim - 1) + (-1,))
    match form:
        case "film":
            gamma, beta = jnp.split(code, 2, axis=-1)
            return values * (1 + gamma) + beta
        case "sigmoid":
            return values * jax.nn.sigmoid(code)
        case "softmax":
            return values * jax.nn.softmax(code)


def scale_and_shift(code: Float[Array, " _"], form: ModulationForm) -> tuple[Float[Array, " u"], Float[Array, " u"]]:
    """Return the scale and shift of each unit that a code implies, as applied by `modulate`."""
    if form == "film":
        gamma, beta = jnp.split(code, 2)
        return 1 + gamma, beta
    return (jax.nn.sigmoid if form == "sigmoid" else jax.nn.softmax)(code), jnp.zeros_like(code)

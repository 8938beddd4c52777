"""Several nets as one predictor: the mean of their predictions, and their standard deviation.

values:         mean = 1/M Σ fₘ(x),   std² = variance over m of fₘ(x) + 1/γ,   γ the noise precision
classes:        p(y | x) = 1/M Σ pₘ(y | x),   std of pₘ over m
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metagrove.learner import Predictor
from metagrove.nets.layers import AfterLayer
from metagrove.nets.predictors import PlainLayers, Statistics, bind_support, no_layers, plain_layers
from metagrove.task import Examples

KERNEL_DIMS = 4
"""Axes of a convolution kernel: height, width, inputs, outputs."""


def map_members(fn: Callable[[Any], Any], members: Any) -> Any:
    """Apply `fn` to each member of a stacked pytree: all at once, or one after another if they have convolutions.

    A convolution whose kernel has a mapped axis is about five times as slow on a CPU.

    Args:
        fn: Maps one member to a pytree.
        members: A pytree whose every array has a first axis of M.

    Returns:
        The results, stacked along a first axis of M.
    """
    arrays, others = eqx.partition(members, eqx.is_array)
    convolves = any(leaf.ndim == 1 + KERNEL_DIMS for leaf in jax.tree.leaves(arrays))
    if not convolves or jax.default_backend() != "cpu":
        return eqx.filter_vmap(fn)(members)
    first = eqx.combine(jax.tree.map(lambda leaf: leaf[0], arrays), others)
    constant = eqx.filter(eqx.filter_eval_shape(fn, first), lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct))
    mapped = jax.lax.map(lambda one: eqx.filter(fn(eqx.combine(one, others)), eqx.is_array), arrays)
    return eqx.combine(mapped, constant)


class AbstractEnsemble(eqx.Module):
    """Nets whose every array has a first axis of M, and the logarithm of each one's noise precision γ."""

    nets: eqx.AbstractVar[Any]
    log_noise_precision: eqx.AbstractVar[Array]
    classifies: eqx.AbstractVar[bool]

    def each(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "m n y"]:
        """Every net's prediction."""
        return map_members(lambda net: net(x, mask), self.nets)

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        each = self.each(x, mask)
        return jax.nn.logsumexp(each, axis=0) - math.log(len(each)) if self.classifies else each.mean(0)

    def std(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        """Standard deviation of a new value: the nets' disagreement, and their mean noise.

        Of a classifier, that of the nets' probabilities.
        """
        if self.classifies:
            return jnp.exp(self.each(x, mask)).std(0)
        return jnp.sqrt(self.each(x, mask).var(0) + jnp.exp(-self.log_noise_precision).mean())

    def bind_support(self, support: Examples, statistics: Statistics | None = None) -> "AbstractEnsemble":
        """Each net bound to the support set."""
        nets = eqx.filter_vmap(lambda net: bind_support(net, support, statistics))(self.nets)
        return dataclasses.replace(self, nets=nets)

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """All nets' layers; biases have an axis for rows, so that x W + b serves one net and many."""
        layers = eqx.filter_vmap(lambda net: plain_layers(net, after_layer).layers)(self.nets)
        if any(weight.ndim > 3 for weight, _ in layers):  # convolutions
            raise no_layers(self)
        noise = 0.0 if self.classifies else jnp.exp(-self.log_noise_precision).mean()
        both = tuple((weight, bias[:, None]) for weight, bias in layers)
        return PlainLayers(both, self.classifies, len(both[0][0]), noise)


class Ensemble(AbstractEnsemble):
    """Nets with their noise precision."""

    nets: Predictor
    log_noise_precision: Float[Array, "*m"]
    classifies: bool = eqx.field(static=True)

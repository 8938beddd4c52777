"""Several nets as one predictor: the mean of their predictions, and their standard deviation.

values:         mean = 1/M Σ fₘ(x),   std² = variance over m of fₘ(x) + 1/γ,   γ the noise precision
classes:        p(y | x) = 1/M Σ pₘ(y | x),   std of pₘ over m
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metagrove.learner import Predictor
from metagrove.nets.layers import AfterLayer
from metagrove.nets.predictors import PlainLayers, Statistics, bind_support, no_layers, plain_layers
from metagrove.task import Examples


class AbstractEnsemble(eqx.Module):
    """Nets whose every array has a first axis of M, and the logarithm of each one's noise precision γ."""

    nets: eqx.AbstractVar[Any]
    log_noise_precision: eqx.AbstractVar[Array]
    classifies: eqx.AbstractVar[bool]

    def each(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "m n y"]:
        """Every net's prediction."""
        return eqx.filter_vmap(lambda net: net(x, mask))(self.nets)

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

"""The base learner for tables: fully connected layers with ReLU (paper, appendix C: two of 40)."""

import dataclasses
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.nets.layers import AfterLayer
from metagrove.nets.predictors import PlainLayers
from metagrove.task import Spec


class MLP(eqx.Module):
    """Maps a set of rows, each on its own; the mask is not needed."""

    weights: tuple[Float[Array, "i o"], ...]
    biases: tuple[Float[Array, " o"], ...]
    classifies: bool = eqx.field(static=True)
    """Gives log-probabilities."""

    def __init__(self, sizes: tuple[int, ...], init_sd: float, *, classifies: bool = False, key: PRNGKeyArray):
        keys = jax.random.split(key, len(sizes) - 1)
        shapes = itertools.pairwise(sizes)
        self.weights = tuple(
            init_sd * jax.random.truncated_normal(k, -2, 2, shape) for k, shape in zip(keys, shapes, strict=True)
        )
        self.biases = tuple(jnp.zeros(size) for size in sizes[1:])
        self.classifies = classifies

    def __call__(
        self, x: Float[Array, "n i"], mask: Bool[Array, " n"] | None = None, *, after_layer: AfterLayer | None = None
    ) -> Float[Array, "n o"]:
        last = len(self.weights) - 1
        x = self.features(x, mask, after_layer) @ self.weights[last] + self.biases[last][None]
        x = x if after_layer is None else after_layer(last, x)
        return jax.nn.log_softmax(x) if self.classifies else x

    def features(
        self, x: Float[Array, "n i"], mask: Bool[Array, " n"] | None = None, after_layer: AfterLayer | None = None
    ) -> Float[Array, "n f"]:
        """What the last layer is given."""
        del mask
        for layer, (weight, bias) in enumerate(zip(self.weights[:-1], self.biases[:-1], strict=True)):
            x = x @ weight + bias[None]
            x = jax.nn.relu(x if after_layer is None else after_layer(layer, x))
        return x

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """The layers as they are; without a head, those below it."""
        del after_layer  # no statistics depend on it
        both = zip(self.weights, self.biases, strict=True)
        return PlainLayers(tuple((w, b) for w, b in both if w is not None), self.classifies)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Units of each layer."""
        return tuple(bias.shape[-1] for bias in self.biases)

    @property
    def head(self) -> tuple[Any, Any]:
        """The last layer's parameters."""
        return self.weights[-1], self.biases[-1]

    def by_layer(self, values: tuple[Any, ...]) -> "MLP":
        """The net's structure with values[l] in place of each parameter of layer l."""
        return eqx.tree_at(lambda net: (net.weights, net.biases), self, (values, values))


@dataclasses.dataclass(frozen=True)
class MLPNet:
    """Draws an `MLP` for a source's inputs and outputs."""

    hidden: tuple[int, ...] = (40, 40)
    """Neurons of each hidden layer of the base net."""
    init_sd: float = 0.01
    """Standard deviation of its first weights (truncated normal)."""
    classifies: bool = False
    """Give log-probabilities of classes instead of values."""

    def validation_errors(self) -> list[str]:
        """What is wrong with the settings, a line each."""
        sizes = [f"hidden must be positive numbers, got {self.hidden}"] if any(n < 1 for n in self.hidden) else []
        return sizes + ([] if self.init_sd >= 0 else [f"init_sd must not be negative, got {self.init_sd}"])

    def __call__(self, spec: Spec, *, key: PRNGKeyArray) -> MLP:
        (x_dim,) = spec.x_shape
        return MLP((x_dim, *self.hidden, spec.y_dim), self.init_sd, classifies=self.classifies, key=key)

"""Base net for vectors: fully connected layers with ReLU (paper, appendix C: two hidden layers of 40 units)."""

import dataclasses
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.nets.layers import AfterLayer, activation, require_relu
from metagrove.nets.predictors import PlainLayers
from metagrove.task import Spec

__all__ = ["MLP", "MLPNet"]


class MLP(eqx.Module):
    """Multilayer perceptron, applied to every row of a set independently; the mask is ignored."""

    weights: tuple[Float[Array, "i o"], ...]
    biases: tuple[Float[Array, " o"], ...]
    classifies: bool = eqx.field(static=True)
    """Whether the output is log-probabilities of classes."""
    softplus: float = eqx.field(static=True)
    """κ of the activation, 0 for ReLU."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        init_sd: float,
        *,
        classifies: bool = False,
        softplus: float = 0.0,
        key: PRNGKeyArray,
    ):
        keys = jax.random.split(key, len(sizes) - 1)
        shapes = itertools.pairwise(sizes)
        self.weights = tuple(
            init_sd * jax.random.truncated_normal(k, -2, 2, shape) for k, shape in zip(keys, shapes, strict=True)
        )
        self.biases = tuple(jnp.zeros(size) for size in sizes[1:])
        self.classifies = classifies
        self.softplus = softplus

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
        """Compute the input of the last layer."""
        del mask
        for layer, (weight, bias) in enumerate(zip(self.weights[:-1], self.biases[:-1], strict=True)):
            x = x @ weight + bias[None]
            x = activation(x if after_layer is None else after_layer(layer, x), self.softplus)
        return x

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """The layers; without a head, those below it."""
        del after_layer  # no statistics depend on it
        require_relu(self.softplus)
        both = zip(self.weights, self.biases, strict=True)
        return PlainLayers(tuple((w, b) for w, b in both if w is not None), self.classifies)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Number of units of each layer."""
        return tuple(bias.shape[-1] for bias in self.biases if bias is not None)

    @property
    def head(self) -> tuple[Any, Any]:
        """Parameters of the last layer."""
        return self.weights[-1], self.biases[-1]

    @property
    def film(self) -> tuple[Any, ...]:
        """Shifts of the hidden layers."""
        return self.biases[:-1]

    def by_layer(self, values: tuple[Any, ...]) -> "MLP":
        """Return the net's structure with values[l] in place of each parameter of layer l."""
        return eqx.tree_at(lambda net: (net.weights, net.biases), self, (values, values))


@dataclasses.dataclass(frozen=True)
class MLPNet:
    """Settings of a multilayer perceptron as the base net (paper, appendix C).

    Calling it initialises a net for the inputs and targets of a source.

    Example:
        >>> import metagrove as mg
        >>> learner = mg.MAML(net=mg.MLPNet(hidden=(64, 64)))
    """

    hidden: tuple[int, ...] = (40, 40)
    """Number of units of each hidden layer of the base net."""
    init_sd: float = 0.01
    """Standard deviation of the initial weights (truncated normal)."""
    classifies: bool = False
    """Output log-probabilities of classes instead of values."""
    softplus: float = 0.0
    """κ of the activation softplus(κx)/κ, which is smooth; 0 for ReLU."""

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            A message for each setting that cannot be used.
        """
        sizes = [f"hidden must be positive numbers, got {self.hidden}"] if any(n < 1 for n in self.hidden) else []
        names = ("init_sd", "softplus")
        return sizes + [f"{n} must not be negative, got {v}" for n in names if not (v := getattr(self, n)) >= 0]

    def __call__(self, spec: Spec, *, key: PRNGKeyArray) -> MLP:
        """Initialise a net.

        Args:
            spec: Shapes of the inputs and targets.
            key: Random key.

        Returns:
            A net that maps inputs of shape (n, x_dim) to outputs of shape (n, y_dim).
        """
        (x_dim,) = spec.x_shape
        sizes, how = (x_dim, *self.hidden, spec.y_dim), {"classifies": self.classifies, "softplus": self.softplus}
        return MLP(sizes, self.init_sd, **how, key=key)

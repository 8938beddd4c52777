"""Optional interfaces of a predictor, or of a net in it; `serve` and `evaluation` rely on no others.

- `bind_support`: it normalises by statistics of a set, and can use those of a support set;
- `std`: it provides the standard deviation of its predictions;
- `as_layers`: it can be written as plain layers x W + b, for use without this package.

A user's own net has a capability as soon as it has the method.
"""

from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float

from metagrove.errors import InputError
from metagrove.nets.layers import AfterLayer
from metagrove.task import Examples

Statistics = Literal["support", "query"]
"""Whose statistics normalise a prediction: the support set's, or those of the query set (transductive)."""
STATISTICS: tuple[Statistics, ...] = ("support", "query")

Layer = tuple[Float[Array, "..."], Float[Array, "..."]]
"""A matrix (or 3×3 kernel) and a bias."""


class PlainLayers(eqx.Module):
    """Layers with ReLU between them; convolutions come first, each followed by 2×2 max pooling."""

    layers: tuple[Layer, ...]
    classifies: bool = eqx.field(static=True)
    """Whether a log-softmax follows the last layer."""
    members: int = eqx.field(static=True, default=0)
    """Number of nets, if the first axis of every array is over nets whose predictions are averaged."""
    noise_variance: Float[Array, ""] | float = 0.0
    """Variance of the noise, which is added to the variance between members."""
    activations: tuple[str, ...] = eqx.field(static=True, default=())
    """What follows each layer but the last, if it is not ReLU: silu, angle, cos or cubes (docs/export.md)."""
    std: Layer | None = None
    """A layer in place of the last, whose values, squared and summed over rows of outputs, are the variance."""
    noise: Float[Array, " o"] | None = None
    """Standard deviation whose square is added to it, for each output."""


@runtime_checkable
class BindsSupport(Protocol):
    """A net, or a predictor, that normalises by statistics of a set."""

    def bind_support(self, support: Examples, statistics: Statistics | None = None) -> Any:
        """The same with these statistics.

        Args:
            support: The support set that it was adapted to.
            statistics: Whose statistics to use; None means those that it was trained with.
        """
        ...


@runtime_checkable
class HasStd(Protocol):
    """A predictor with a standard deviation."""

    def std(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        """Standard deviation of each prediction."""
        ...


@runtime_checkable
class HasLayers(Protocol):
    """A net or predictor that can be written as plain layers."""

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """The layers, without what `after_layer` does to their values: the caller multiplies that in.

        Args:
            after_layer: What replaces each layer's values before activation, for statistics that depend on it.

        Raises:
            InputError: If it cannot be written as plain layers.
        """
        ...


def bind_support(predictor: Any, support: Examples, statistics: Statistics | None = None) -> Any:
    """Bind the support set, and the statistics to use, to every net in the predictor that normalises by a set."""

    def binds(part: Any) -> bool:
        return isinstance(part, BindsSupport)

    def bind(part: Any) -> Any:
        return part.bind_support(support, statistics) if binds(part) else part

    return jax.tree.map(bind, predictor, is_leaf=binds)


def plain_layers(predictor: Any, after_layer: AfterLayer | None = None) -> PlainLayers:
    """`predictor.as_layers`, or an InputError if there is none."""
    if not isinstance(predictor, HasLayers):
        raise no_layers(predictor)
    return predictor.as_layers(after_layer)


def no_layers(predictor: Any) -> InputError:
    """Return the error for a predictor that has no plain layers."""
    return InputError(
        f"{type(predictor).__name__} cannot be written as plain layers: export serves the package's nets for tables, "
        "and Conv4 of methods that predict with one net, or ProtoNet's"
    )

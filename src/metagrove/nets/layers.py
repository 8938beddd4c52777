"""Interface of a layered base net, which some learners need: access to single layers.

A layered net (see `mlp.MLP`) has
- `layer_sizes`: the number of units of each layer;
- `net(x, mask, after_layer=fn)`: `fn(index, values)` replaces the pre-activations of each layer;
- `head`: the parameters of the last layer;
- `by_layer(values)`: the net's structure with values[l] in place of each parameter of layer l;
- `features(x, mask)`: the input of the last layer.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from metagrove.errors import InputError

AfterLayer = Callable[[int, Array], Array]
"""Maps the index of a layer and its pre-activations to the pre-activations to use instead."""


def activation(x: Float[Array, "..."], sharpness: float) -> Float[Array, "..."]:
    """ReLU; with a sharpness κ > 0, softplus(κx)/κ, which is smooth and tends to ReLU as κ grows (paper, section 5)."""
    return jax.nn.softplus(sharpness * x) / sharpness if sharpness else jax.nn.relu(x)


def require_relu(sharpness: float) -> None:
    """Raise an InputError if a net with another activation than ReLU is written as plain layers."""
    if sharpness:
        raise InputError("plain layers have ReLU between them: train with --softplus 0 to export")


NEEDED = ("layer_sizes", "head", "by_layer", "features")


def require_layers(net: Any, who: str) -> Any:
    """Return the net if it is layered, else raise an InputError on behalf of the learner `who`."""
    missing = [name for name in NEEDED if not hasattr(net, name)]
    if missing:
        raise InputError(
            f"{who} needs a base net with layers, and {type(net).__name__} has no {', '.join(missing)}: "
            "use MLPNet or Conv4Net, or implement the interface in metagrove.nets.layers"
        )
    return net


def adapted_mask(net: Any) -> Any:
    """Which arrays of a net inner steps adapt, a tree of booleans: its own `adapted_mask`, or all floating-point."""
    return getattr(net, "adapted_mask", None) or jax.tree.map(eqx.is_inexact_array, net)


def without_head(net: Any, who: str) -> Any:
    """Remove the parameters of the last layer, for a learner that classifies by comparing features."""
    if require_layers(net, who).layer_sizes[-1] < 2:
        raise InputError(f"{who} is a classifier and needs tasks with at least two classes")
    return eqx.tree_at(lambda net: net.head, require_layers(net, who), (None, None))

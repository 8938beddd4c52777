"""What some learners ask of a base net beyond the call: a look at its layers.

A layered net (see `mlp.MLP`) has
- `layer_sizes`: how many units each layer puts out;
- `net(x, mask, after_layer=fn)`: `fn(index, values)` replaces each layer's values before its activation;
- `head`: the last layer's parameters;
- `by_layer(values)`: the net's structure with values[l] in place of each parameter of layer l;
- `features(x, mask)`: what its last layer is given.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array

from metagrove.errors import InputError

AfterLayer = Callable[[int, Array], Array]
"""Given a layer's number and its values before activation, the values to go on with."""

NEEDED = ("layer_sizes", "head", "by_layer", "features")


def require_layers(net: Any, who: str) -> Any:
    """The net, if it can be looked into."""
    missing = [name for name in NEEDED if not hasattr(net, name)]
    if missing:
        raise InputError(
            f"{who} needs a base net with layers, and {type(net).__name__} has no {', '.join(missing)}: "
            "use MLPNet or Conv4Net, or give your net what metagrove.nets.layers lists"
        )
    return net


def without_head(net: Any, who: str) -> Any:
    """The net without its last layer's parameters, for a learner that compares features to tell classes apart."""
    if require_layers(net, who).layer_sizes[-1] < 2:
        raise InputError(f"{who} tells classes apart and needs tasks with at least two of them")
    return eqx.tree_at(lambda net: net.head, require_layers(net, who), (None, None))

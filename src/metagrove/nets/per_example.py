"""A person's own base net."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array


class per_example(eqx.Module):  # noqa: N801 - reads as the function it acts as
    """Let a module that maps one example, e.g. `eqx.nn.MLP`, serve as a base net: it is mapped over the rows."""

    module: Callable[[Array], Array]

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        del mask
        return jax.vmap(self.module)(x)

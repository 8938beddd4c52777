"""Adapter that turns any single-example module into a base net."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array

__all__ = ["per_example"]


class per_example(eqx.Module):  # noqa: N801 - used like a function
    """Use a module that maps one example, e.g. `eqx.nn.MLP`, as a base net by mapping it over the rows of a set.

    Args:
        module: Any equinox module (or other pytree) that maps one input to one output.

    Example:
        >>> import equinox as eqx
        >>> import metagrove as mg
        >>> def my_net(spec, *, key):
        ...     return mg.per_example(eqx.nn.MLP(spec.x_shape[0], spec.y_dim, 32, 2, key=key))
        >>> learner = mg.MAML(net=my_net)
    """

    module: Callable[[Array], Array]
    """The module that maps one example."""

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        """Apply the module to every row.

        Args:
            x: Inputs of shape (n, ...).
            mask: Ignored, since rows do not interact.

        Returns:
            Outputs of shape (n, ...).
        """
        del mask
        return jax.vmap(self.module)(x)

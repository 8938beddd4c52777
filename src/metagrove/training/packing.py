"""The small arrays of a training state side by side in one vector, so that the optimiser updates them at once.

A state has some hundred arrays, most of them small: an operation for each costs more than its arithmetic, in compiling
as in running. Large arrays stay as they are, since moving them would cost more than it saves.
"""

import dataclasses
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from metagrove.learner import Meta
from metagrove.training.phases import State

__all__ = ["Arrays", "PackedState", "Packing"]

LARGE = 16_384
"""Arrays with so many numbers are not packed."""
WIDTH = 128
"""The vector is filled up with zeros to a multiple of this: XLA vectorises loops over arrays whose size is one."""


class Arrays(eqx.Module):
    """Packed arrays."""

    small: Array | None
    """All small arrays, raveled, in one vector, and zeros after them."""
    large: tuple[Array, ...]


class PackedState(eqx.Module):
    """A state whose floating-point arrays are packed."""

    params: Arrays
    opt_state: Any
    step: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the floating-point arrays of meta-parameters are packed, and what of them is not packed.

    Args:
        structure: Structure of the floating-point arrays, a pytree.
        shapes: Shape of each of them.
        small: Whether each of them is packed.
        rest: The meta-parameters without them.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    small: tuple[bool, ...]
    rest: Any

    @classmethod
    def of(cls, meta: Meta, *, large: int = LARGE) -> "Packing":
        """The packing of some meta-parameters; arrays with `large` numbers or more are not packed."""
        params, rest = eqx.partition(meta, eqx.is_inexact_array)
        leaves, structure = jax.tree.flatten(params)
        small = tuple(leaf.size < large and leaf.dtype == leaves[0].dtype for leaf in leaves)
        return cls(structure, tuple(leaf.shape for leaf in leaves), small, rest)

    def pack(self, params: Any) -> Arrays:
        """Pack a pytree with the structure and the shapes of the floating-point arrays."""
        leaves = jax.tree.leaves(params)
        small = [leaf.ravel() for leaf in itertools.compress(leaves, self.small)]
        large = tuple(leaf for leaf, packed in zip(leaves, self.small, strict=True) if not packed)
        if not small:
            return Arrays(None, large)
        fill = jnp.zeros(-sum(leaf.size for leaf in small) % WIDTH, small[0].dtype)
        return Arrays(jnp.concatenate([*small, fill]), large)

    def unpack(self, packed: Arrays) -> Any:
        """The pytree that was packed."""
        large, leaves, start = iter(packed.large), [], 0
        for shape, small in zip(self.shapes, self.small, strict=True):
            if packed.small is None or not small:
                leaves.append(next(large))
                continue
            leaves.append(packed.small[start : (start := start + math.prod(shape))].reshape(shape))
        return jax.tree.unflatten(self.structure, leaves)

    def meta(self, packed: PackedState) -> Meta:
        """The meta-parameters of a packed state."""
        return eqx.combine(self.unpack(packed.params), self.rest)

    def keep_trained(self, updates: Arrays, trained: list[bool]) -> Arrays:
        """Packed updates, 0 for those of the floating-point arrays that are not trained."""
        if all(trained):
            return updates
        each = [jnp.full(shape, yes) for shape, yes in zip(self.shapes, trained, strict=True)]
        masks = self.pack(jax.tree.unflatten(self.structure, each))
        return jax.tree.map(lambda mask, update: jnp.where(mask, update, 0), masks, updates)

    def pack_state(self, state: State) -> PackedState:
        """Pack the meta-parameters, and what the optimiser keeps of each."""
        opt_state = self._convert(state.opt_state, self.structure, self.pack)
        return PackedState(self.pack(eqx.filter(state.meta, eqx.is_inexact_array)), opt_state, state.step)

    def unpack_state(self, packed: PackedState) -> State:
        """The state that was packed."""
        opt_state = self._convert(packed.opt_state, jax.tree.structure(packed.params), self.unpack)
        return State(self.meta(packed), opt_state, packed.step)

    def _convert(self, opt_state: Any, structure: Any, convert: Any) -> Any:
        """Convert those parts of the state of the optimiser that have a structure: that of the arrays it updates."""

        def matches(part: Any) -> bool:
            return jax.tree.structure(part) == structure

        return jax.tree.map(lambda part: convert(part) if matches(part) else part, opt_state, is_leaf=matches)

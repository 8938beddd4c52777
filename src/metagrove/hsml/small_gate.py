"""A gate with few parameters per node, beyond the paper, so that clusters do not overfit.

φᵢ = φ₀ + Σ_v P_v a_v   over all nodes v of the hierarchy but the root

φ are the few parameters of a base net that scale and shift its channels, its learning rates and the scale of its head
(`nets.few_shot.small_parameters`), P_v is the task's mass at a node, and a_v, which starts at 0, is all that the node
owns. What the root owns is the shared net itself. With path dropout, a part of the training tasks uses the root alone.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.hsml.clustering import Assignments, Placement
from metagrove.hsml.gate import GateSettings
from metagrove.learner import Predictor
from metagrove.nets.few_shot import small_parameters

__all__ = ["SmallGate", "TaskShifts", "node_masses"]

Owned = Literal["film", "rates", "scale", "attention"]
"""A group of a net's small parameters."""


class TaskShifts(eqx.Module):
    """φᵢ = φ₀ + Σ_v P_v a_v."""

    shifts: Float[Array, "nodes o"]
    """a_v of each node below the root."""
    owns: tuple[Owned, ...] = eqx.field(static=True)
    path_dropout: float = eqx.field(static=True)

    def __call__(self, net: Predictor, placement: Placement, *, key: PRNGKeyArray | None = None) -> Predictor:
        """The base net with φᵢ in place of φ₀; with a key, a random part of the tasks gets φ₀."""
        masses = node_masses(placement.assignments)
        if key is not None and self.path_dropout:
            masses = jnp.where(jax.random.bernoulli(key, self.path_dropout), 0, masses)
        shared, unravel = ravel_pytree(small_parameters(net, self.owns))
        return eqx.tree_at(
            lambda net: jax.tree.leaves(small_parameters(net, self.owns)),
            net,
            jax.tree.leaves(unravel(shared + masses @ self.shifts)),
        )


def node_masses(assignments: Assignments) -> Float[Array, " nodes"]:
    """P_v of each node below the root, level by level: a leaf's share, and for a parent what flows into it."""
    masses, found = assignments[0][0], []
    for assignment in assignments[1:]:
        found.append(masses)
        masses = masses @ assignment
    return jnp.concatenate(found) if found else jnp.zeros(0)


@dataclasses.dataclass(frozen=True)
class SmallGate(GateSettings):
    """Nodes that own only scales and shifts of channels, learning rates and the scale of the head; beyond the paper."""

    gate_owns: tuple[Owned, ...] = ("film", "rates", "scale")
    """What a node owns, as far as the base net has it: film (scale and shift of each channel), rates (the learning rate
    of each layer), scale (that of a prototype head), attention (the biases of attention among prototypes)."""
    path_dropout: float = 0.2
    """Fraction of the training tasks that use the root alone (path dropout)."""

    def __call__(self, params: Any, sizes: Mapping[str, int], *, key: PRNGKeyArray) -> TaskShifts:
        del key  # every node starts at 0
        num_owned = ravel_pytree(small_parameters(params, self.gate_owns))[0].size
        return TaskShifts(jnp.zeros((sizes.get("nodes", 0), num_owned)), self.gate_owns, self.path_dropout)

    def growth_errors(self) -> list[str]:
        return ["growth_window must be 0 with a small gate: the number of nodes is fixed"]

    def validation_errors(self) -> list[str]:
        errors = [] if self.gate_owns else ["gate_owns must name at least one of film, rates, scale, attention"]
        valid = 0 <= self.path_dropout < 1
        return errors + ([] if valid else [f"path_dropout must be from 0 to below 1, got {self.path_dropout}"])

"""Knowledge adaptation (paper, section 4.3): the placement of a task tailors the shared initialisation to it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.hsml.cluster import Placement
from metagrove.learner import Predictor
from metagrove.nets.gate import GateForm, GateLayer, apply_gate

__all__ = ["IdentityGate", "NoGate", "ParameterGate", "TaskGate"]

GateInput = Literal["task", "root", "assignment"]
"""g, h^L, or the first level's assignment p^{0→k} (beyond the paper)."""


class TaskGate(eqx.Module):
    """θ₀ᵢ = θ₀ ∘ o, o = σ(W_g [g ⊕ h^L] + b_g), eq. (8); the layer's other forms are beyond the paper."""

    layer: GateLayer
    inputs: tuple[GateInput, ...] = eqx.field(static=True)

    def __call__(self, net: Predictor, placement: Placement) -> Predictor:
        """The base net with θ₀ᵢ in place of θ₀."""
        return apply_gate(net, self.layer, self.read(placement))

    def read(self, placement: Placement) -> Float[Array, " i"]:
        """[g ⊕ h^L], or what else the gate is told to read."""
        parts = {
            "task": placement.task_embedding,
            "root": placement.root_repr,
            "assignment": placement.assignments[0][0],
        }
        return jnp.concatenate([parts[name] for name in self.inputs])


class IdentityGate(eqx.Module):
    """θ₀ᵢ = θ₀."""

    def __call__(self, net: Predictor, placement: Placement) -> Predictor:
        del placement
        return net


@dataclasses.dataclass(frozen=True)
class ParameterGate:
    """The paper's gate, one layer for each parameter tensor of the base net (section 4.3).

    θ₀ᵢ = θ₀ ∘ o with o = σ(W_g [g ⊕ h^L] + b_g), eq. (8).
    """

    gate_form: GateForm = "sigmoid"
    """How the initialisation is gated: the paper's sigmoid, or affine (beyond the paper)."""
    gate_rank: int = 0
    """Rank of the gate's weight matrix; 0 for a full matrix."""
    gate_inputs: tuple[GateInput, ...] = ("task", "root")
    """What the gate reads: task (g) and root (h^L) in the paper; assignment, the first level's."""

    def __call__(self, params: Any, sizes: Mapping[str, int], *, key: PRNGKeyArray) -> TaskGate:
        """Initialise the gate.

        Args:
            params: Parameters θ₀ of the base net that are gated.
            sizes: Sizes of the parts of a placement, by name.
            key: Random key.

        Returns:
            A module that maps the base net and a task's placement to the gated net.
        """
        input_dim = sum(sizes[name] for name in self.gate_inputs)
        layer = GateLayer(input_dim, params, self.gate_form, rank=self.gate_rank, key=key)
        return TaskGate(layer, self.gate_inputs)

    def growth_errors(self) -> list[str]:
        """List what prevents the hierarchy from growing under this gate, one line each.

        Returns:
            A message for each obstacle; empty if the hierarchy can grow.
        """
        fixed = "growth_window must be 0 where the gate reads the assignment: its input has one size"
        return [fixed] if "assignment" in self.gate_inputs else []

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            A message for each setting that cannot be used.
        """
        return ([] if self.gate_rank >= 0 else [f"gate_rank must be 0 (full) or more, got {self.gate_rank}"]) + (
            [] if self.gate_inputs else ["gate_inputs must name at least one of task, root, assignment"]
        )


@dataclasses.dataclass(frozen=True)
class NoGate:
    """No gate: every task starts from θ₀, as in MAML."""

    def __call__(self, params: Any, sizes: Mapping[str, int], *, key: PRNGKeyArray) -> IdentityGate:
        """Initialise the gate.

        Args:
            params: Parameters θ₀ of the base net that are gated.
            sizes: Sizes of the parts of a placement, by name.
            key: Random key.

        Returns:
            A module that maps the base net and a task's placement to the gated net.
        """
        del params, sizes, key
        return IdentityGate()

    def growth_errors(self) -> list[str]:
        """List what prevents the hierarchy from growing under this gate, one line each.

        Returns:
            A message for each obstacle; empty if the hierarchy can grow.
        """
        return []

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            A message for each setting that cannot be used.
        """
        return []

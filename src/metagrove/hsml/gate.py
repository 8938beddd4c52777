"""Knowledge adaptation (paper, section 4.3): the placement of a task tailors the shared initialisation to it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.hsml.clustering import Placement
from metagrove.learner import Predictor
from metagrove.nets.gate import GateForm, GateLayer, apply_gate
from metagrove.nets.layers import require_layers
from metagrove.nets.linear import Linear
from metagrove.nets.modulation import Modulated, code_sizes

__all__ = [
    "FiLMGate",
    "IdentityGate",
    "NoGate",
    "NodeGate",
    "ParameterGate",
    "TaskFiLM",
    "TaskGate",
    "TreeGate",
]

GateInput = Literal["task", "root", "assignment"]
"""g, h^L, or the first level's assignment p^{0→k} (beyond the paper)."""


GateNodes = Literal["leaves", "all"]
"""The nodes of a dendrogram that have a gate."""


class TaskGate(eqx.Module):
    """θ₀ᵢ = θ₀ ∘ o, o = σ(W_g [g ⊕ h^L] + b_g), eq. (8); the layer's other forms are beyond the paper."""

    layer: GateLayer
    inputs: tuple[GateInput, ...] = eqx.field(static=True)

    def __call__(self, net: Predictor, placement: Placement, *, key: PRNGKeyArray | None = None) -> Predictor:
        """The base net with θ₀ᵢ in place of θ₀; nothing here is random."""
        del key
        return apply_gate(net, self.layer, read(placement, self.inputs))


class TaskFiLM(eqx.Module):
    """Pre-activations x(1 + γ_l) + β_l in each hidden layer, [γ_l, β_l] = W_l [g ⊕ h^L] + b_l; θ₀ itself is shared."""

    layers: tuple[Linear, ...]
    inputs: tuple[GateInput, ...] = eqx.field(static=True)

    def __call__(self, net: Predictor, placement: Placement, *, key: PRNGKeyArray | None = None) -> Modulated:
        """The base net with its hidden layers modulated."""
        del key
        gate_input = read(placement, self.inputs)
        return Modulated(net, tuple(layer(gate_input) for layer in self.layers), "film")


def read(placement: Placement, inputs: tuple[GateInput, ...]) -> Float[Array, " i"]:
    """[g ⊕ h^L], or the inputs that the settings select."""
    parts = {
        "task": placement.task_embedding,
        "root": placement.root_repr,
        "assignment": placement.assignments[0][0],
    }
    return jnp.concatenate([parts[name] for name in inputs])


class TreeGate(eqx.Module):
    """θ₀ᵢ = θ₀ ∘ (1 + s) + t,   [s, t] = Σ_v P_v A_v [ε̂_v; 1] + b, over nodes v of a dendrogram; beyond the paper."""

    layer: GateLayer
    nodes: GateNodes = eqx.field(static=True)
    reads_task: bool = eqx.field(static=True)

    def __call__(self, net: Predictor, placement: Placement, *, key: PRNGKeyArray | None = None) -> Predictor:
        """The base net with θ₀ᵢ in place of θ₀; nothing here is random."""
        del key
        return apply_gate(net, self.layer, jnp.concatenate(self.read(placement)))

    def read(self, placement: Placement) -> list[Float[Array, " _"]]:
        """P_v [ε̂_v; 1] of each node, or P_v [ε̂_v; 1; g]."""
        assert placement.coordinates is not None
        assert placement.inner_coordinates is not None
        assert placement.masses is not None
        coordinates = [*placement.coordinates, *(placement.inner_coordinates if self.nodes == "all" else ())]
        after = jnp.concatenate([jnp.ones(1), placement.task_embedding]) if self.reads_task else jnp.ones(1)
        return [
            mass * jnp.concatenate([own, after])
            for mass, own in zip(placement.masses, coordinates, strict=self.nodes == "all")
        ]

    def contributions(self, placement: Placement) -> Float[Array, "nodes o"]:
        """Return the contribution of each node to [s, t], which is their sum and b; the root is last."""
        parts = self.read(placement)
        return self.layer.linear(jax.scipy.linalg.block_diag(*parts))


class IdentityGate(eqx.Module):
    """θ₀ᵢ = θ₀."""

    def __call__(self, net: Predictor, placement: Placement, *, key: PRNGKeyArray | None = None) -> Predictor:
        del placement, key
        return net


class GateSettings:
    """Settings of a gate: called with the parameters of a base net, they draw the gate's module."""

    def __call__(self, params: Any, sizes: Mapping[str, int], *, key: PRNGKeyArray) -> Any:
        """Initialise the gate.

        Args:
            params: Parameters θ₀ of the base net that are gated.
            sizes: Sizes of the parts of a placement, by name.
            key: Random key.

        Returns:
            A module that maps the base net and a task's placement to the gated net.
        """
        raise NotImplementedError

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


class ReadsPlacement(GateSettings):
    """Gates with the setting `gate_inputs`."""

    gate_inputs: tuple[GateInput, ...]

    def growth_errors(self) -> list[str]:
        fixed = "growth_window must be 0 where the gate reads the assignment: its input has a fixed size"
        return [fixed] if "assignment" in self.gate_inputs else []

    def validation_errors(self) -> list[str]:
        return [] if self.gate_inputs else ["gate_inputs must name at least one of task, root, assignment"]


def rank_errors(rank: int) -> list[str]:
    """A message if the rank of a gate's weight matrix cannot be used."""
    return [] if rank >= 0 else [f"gate_rank must be 0 (full) or more, got {rank}"]


@dataclasses.dataclass(frozen=True)
class ParameterGate(ReadsPlacement):
    """The paper's gate, one layer for each parameter tensor of the base net (section 4.3).

    θ₀ᵢ = θ₀ ∘ o with o = σ(W_g [g ⊕ h^L] + b_g), eq. (8).
    """

    gate_form: GateForm = "sigmoid"
    """How the initialisation depends on the task: the paper's sigmoid gate; affine (beyond the paper); direct, without
    a gate (the paper's ablation A4c)."""
    gate_rank: int = 0
    """Rank of the gate's weight matrix; 0 for a full matrix."""
    gate_inputs: tuple[GateInput, ...] = ("task", "root")
    """What the gate reads: task (g) and root (h^L) in the paper; assignment, the first level's."""

    def __call__(self, params: Any, sizes: Mapping[str, int], *, key: PRNGKeyArray) -> TaskGate:
        input_dim = sum(sizes[name] for name in self.gate_inputs)
        layer = GateLayer(input_dim, params, self.gate_form, rank=self.gate_rank, key=key)
        return TaskGate(layer, self.gate_inputs)

    def validation_errors(self) -> list[str]:
        return rank_errors(self.gate_rank) + super().validation_errors()


@dataclasses.dataclass(frozen=True)
class FiLMGate(ReadsPlacement):
    """FiLM in place of the gate: scale and shift of the units of each hidden layer (the paper's ablation A4b).

    The inner steps adapt θ₀ and leave scales and shifts unchanged.
    """

    gate_inputs: tuple[GateInput, ...] = ("task", "root")
    """What the modulation reads: task (g), root (h^L), or assignment, the first level's."""

    def __call__(self, params: Any, sizes: Mapping[str, int], *, key: PRNGKeyArray) -> TaskFiLM:
        """Initialise the modulation.

        Args:
            params: Parameters θ₀ of the base net, which must be layered.
            sizes: Sizes of the parts of a placement, by name.
            key: Random key.

        Returns:
            A module that maps the base net and a task's placement to the modulated net.
        """
        input_dim = sum(sizes[name] for name in self.gate_inputs)
        code_dims = code_sizes(require_layers(params, "FiLM"), "film")
        keys = jax.random.split(key, len(code_dims))
        layers = tuple(Linear(input_dim, size, key=k) for size, k in zip(code_dims, keys, strict=True))
        return TaskFiLM(layers, self.gate_inputs)


@dataclasses.dataclass(frozen=True)
class NodeGate(GateSettings):
    """A gate for every node of a dendrogram of evidence clusters, weighted by the task's mass there; beyond the paper.

    θ₀ᵢ = θ₀ ∘ (1 + s) + t with [s, t] = Σ_v P_v A_v [ε̂_v; 1] + b.
    """

    gate_nodes: GateNodes = "leaves"
    """The nodes that have a gate: the leaves, or all, the root included."""
    gate_rank: int = 0
    """Rank of the gate's weight matrix; 0 for a full matrix."""
    gate_reads_task: bool = False
    """Let every node read the task embedding g, too."""

    def __call__(self, params: Any, sizes: Mapping[str, int], *, key: PRNGKeyArray) -> TreeGate:
        leaves, after = sizes["assignment"], 1 + (sizes["task"] if self.gate_reads_task else 0)
        input_dim = leaves * (sizes["coordinates"] + after)
        if self.gate_nodes == "all":
            input_dim += (leaves - 1) * (sizes["inner_coordinates"] + after)
        layer = GateLayer(input_dim, params, "affine", rank=self.gate_rank, key=key)
        return TreeGate(layer, self.gate_nodes, self.gate_reads_task)

    def growth_errors(self) -> list[str]:
        return ["growth_window must be 0 with a gate per node: the number of nodes is fixed"]

    def validation_errors(self) -> list[str]:
        return rank_errors(self.gate_rank)


@dataclasses.dataclass(frozen=True)
class NoGate(GateSettings):
    """No gate: every task starts from θ₀, as in MAML."""

    def __call__(self, params: Any, sizes: Mapping[str, int], *, key: PRNGKeyArray) -> IdentityGate:
        del params, sizes, key
        return IdentityGate()

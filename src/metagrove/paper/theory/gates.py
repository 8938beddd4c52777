"""The reach of a gate, and the decomposition of the gated initialisation (paper, section 5 and appendix A)."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from metagrove.hsml.cluster import Hierarchy, Level
from metagrove.hsml.gate import TaskGate
from metagrove.hsml.learner import HSMLMeta
from metagrove.task import Examples


class Reach(eqx.Module):
    """Shares of the parameters by the ratio of their value after a gradient step to that before."""

    above: Float[Array, ""]
    """Ratio above 1: the parameter grows."""
    below: Float[Array, ""]
    """Ratio not positive: it changes its sign or becomes 0."""
    unchanged: Float[Array, ""]
    """Ratio 1, or a parameter that is 0: reached only in the limit, or always."""


def out_of_reach(params: Float[Array, " p"], gradient: Float[Array, " p"], inner_lr: float) -> Reach:
    """Which parameters of θ₀ − α∇L(θ₀) no sigmoid gate reaches: those whose ratio to θ₀ is not in (0, 1).

    Args:
        params: θ₀.
        gradient: ∇L(θ₀) on the support set.
        inner_lr: α.

    Returns:
        The shares; an affine gate has no such limit.
    """
    moved = params - inner_lr * gradient
    same = moved == params
    grows = (jnp.abs(moved) > jnp.abs(params)) & (moved * params > 0) & ~same
    leaves = (moved * params <= 0) & ~same
    return Reach(grows.mean(), leaves.mean(), same.mean())


class Decomposition(eqx.Module):
    """The gate of one task: its parts before the activation, and the error of its linear form."""

    from_task: Float[Array, " o"]
    """W_g g."""
    from_root: Float[Array, " o"]
    """W_h h^L."""
    error: Float[Array, ""]
    """‖Σ B̂_k θ₀ − θ₀ₜ‖ / ‖θ₀ₜ‖, with σ(x) ≈ ½ + x/4 in a sigmoid gate and tanh(x) ≈ x."""


def decompose(meta: HSMLMeta, support: Examples) -> Decomposition:
    """The gate of a task and its linear form, for a gate on g and h^L.

    Args:
        meta: Meta-parameters of HSML with the paper's hierarchy and a gate that reads g and h^L.
        support: Support set of the task.

    Returns:
        The decomposition.
    """
    gate, hierarchy = cast(TaskGate, meta.gate), cast(Hierarchy, meta.cluster)
    bias = 0.0 if gate.layer.bias is None else gate.layer.bias
    task_embedding, _ = meta.embed(support)
    placement = hierarchy(task_embedding, support)
    of_task, of_root = jnp.split(gate.layer.weight, [task_embedding.size])
    linear_root = linear_climb(hierarchy.levels, task_embedding, placement.assignments)
    exact, linear = (of_task.T @ task_embedding + of_root.T @ root for root in (placement.root_repr, linear_root))
    gated = flat(gate(meta.net, placement))
    approximate = linear_gate(flat(meta.net), linear + bias, gate.layer.form)
    error = jnp.linalg.norm(approximate - gated) / jnp.linalg.norm(gated)
    return Decomposition(exact - of_root.T @ placement.root_repr, of_root.T @ placement.root_repr, error)


def linear_gate(init_params: Float[Array, " p"], out: Float[Array, " o"], form: str) -> Float[Array, " p"]:
    """θ₀ under the gate without its sigmoid: ½ + x/4."""
    if form == "sigmoid":
        return init_params * (0.5 + out / 4)
    scale, shift = jnp.split(out, 2)
    return init_params * (1 + scale) + shift


def linear_climb(
    levels: tuple[Level, ...], task_embedding: Float[Array, " d"], assignments: tuple[Float[Array, "_ _"], ...]
) -> Float[Array, " d"]:
    """h^L of eq. (7) without tanh: h^{k'} = Σ_k p^{k→k'} (W^{k'} h^k + b^{k'}), at the true assignments."""
    cluster_repr = task_embedding[None]
    for level, assignment in zip(levels, assignments, strict=True):
        moved = jnp.einsum("lij,kj->kli", level.weight, cluster_repr) + level.bias[None]
        cluster_repr = jnp.einsum("kl,kld->ld", assignment, moved)
    return cluster_repr[0]


def flat(net: Any) -> Float[Array, " p"]:
    """All parameters of a net as one vector."""
    return ravel_pytree(eqx.filter(net, eqx.is_inexact_array))[0]


def variance_share(parts: Decomposition) -> float:
    """Var(W_h h) / Var(W_g g + W_h h) over tasks, each summed over the gate's outputs; `parts` has a task axis."""
    both = jax.tree.map(jnp.asarray, parts)
    of_root = both.from_root.var(0).sum()
    return float(of_root / (both.from_task + both.from_root).var(0).sum())

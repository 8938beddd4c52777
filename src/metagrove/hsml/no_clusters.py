"""HSML without hierarchical clustering (paper, appendix H, A3a): the gate reads the task embedding alone."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.hsml.cluster import Level
from metagrove.hsml.clustering import Clustering, Placement
from metagrove.task import Examples, Spec

__all__ = ["NoClusters", "NoHierarchy"]


class NoHierarchy(eqx.Module):
    """Every task belongs to one cluster, whose representation h^L is empty."""

    dim: int = eqx.field(static=True)
    levels: ClassVar[tuple[Level, ...]] = ()

    def __call__(
        self, task_embedding: Float[Array, " d"], support: Examples, assignment: Float[Array, " k"] | None = None
    ) -> Placement:
        """The placement of any task: its embedding and nothing else."""
        del support, assignment
        return Placement(task_embedding, jnp.zeros(0), (jnp.ones((1, 1)),))

    def space(self, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """The task embedding itself; there are no centres."""
        return task_embedding

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a placement's parts, for the gate."""
        return {"task": self.dim, "root": 0, "assignment": 1}


@dataclasses.dataclass(frozen=True)
class NoClusters(Clustering):
    """No clusters: h^L is empty, and the gate reads the task embedding alone (the paper's ablation A3a)."""

    clusters: tuple[int, ...] = (1,)
    """The root alone."""

    def __call__(self, dim: int, *, spec: Spec, key: PRNGKeyArray) -> NoHierarchy:
        del spec, key
        return NoHierarchy(dim)

    def validation_errors(self, task_dim: int) -> list[str]:
        del task_dim
        return [] if self.clusters == (1,) else [f"clusters must be (1,) without clustering, got {self.clusters}"]

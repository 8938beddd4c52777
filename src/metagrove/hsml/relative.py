"""Clusters whose scale is relative to the standard deviation of the task embeddings, beyond the paper.

z = (g - m) / 3s decides the first level's assignment by its distance to the centres; m and s follow the mean and the
standard deviation of the embeddings, and the centres follow z, by gradient steps on `tracking_loss`.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.hsml.cluster import CenterClustering, Level, climb, draw_levels, placement_sizes
from metagrove.hsml.clustering import Placement
from metagrove.task import Examples, Spec

__all__ = ["EmbeddingNormalizer", "NormalizedHierarchy", "RelativeClusters", "neg_log_density"]

UNIT = 3.0
"""Standard deviations that count as a distance of 1, so that centres start near the embeddings."""
MEAN_SPEED, STD_SPEED = 3.0, 30.0
"""How much faster than other parameters m and log s move."""


class EmbeddingNormalizer(eqx.Module):
    """m and s, the mean and standard deviation of task embeddings, each stored divided by its speed."""

    center: Float[Array, " d"]
    log_std: Float[Array, ""]

    def __init__(self, dim: int, std: float = 1.0):
        self.center, self.log_std = jnp.zeros(dim), jnp.asarray(math.log(std) / STD_SPEED, float)

    def __call__(self, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """z."""
        center, log_std = jax.lax.stop_gradient((self.center, self.log_std))
        return (task_embedding - MEAN_SPEED * center) * jnp.exp(-STD_SPEED * log_std) / UNIT

    def neg_log_density(self, task_embedding: Float[Array, " d"]) -> Float[Array, ""]:
        """Least where m is the mean of embeddings and 2 log s the mean of their log variance."""
        offsets = task_embedding - MEAN_SPEED * self.center
        log_variance = jnp.log(jax.lax.stop_gradient(jnp.square(offsets)).mean() + 1e-6)
        return jnp.square(offsets).sum() / 2 + jnp.square(log_variance - 2 * STD_SPEED * self.log_std) / 2


class NormalizedHierarchy(eqx.Module):
    """A hierarchy whose first level measures distances in the normalised embedding z."""

    levels: tuple[Level, ...]
    normalizer: EmbeddingNormalizer

    def __call__(
        self, task_embedding: Float[Array, " d"], support: Examples, assignment: Float[Array, " k"] | None = None
    ) -> Placement:
        """The task's placement; `assignment`, where given, replaces the first level's."""
        del support
        first = self.levels[0].assign(self.space(task_embedding)[None])[0] if assignment is None else assignment
        placed = climb(self.levels, task_embedding, first)
        return Placement(task_embedding, *placed, penalty=self.tracking_loss(task_embedding))

    def space(self, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """The task embedding in the space of the first level's centres: z."""
        return self.normalizer(task_embedding)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a placement's parts, for the gate."""
        return placement_sizes(self.levels)

    def tracking_loss(self, task_embedding: Float[Array, " d"]) -> Float[Array, ""]:
        """A loss of value 0 whose gradient leads the normaliser, and the first centres in it, to the embeddings."""
        embedding = jax.lax.stop_gradient(task_embedding)
        density = self.normalizer.neg_log_density(embedding)
        density = density + neg_log_density(self.levels[0], self.normalizer(embedding))
        return density - jax.lax.stop_gradient(density)


def neg_log_density(level: Level, point: Float[Array, " d"]) -> Float[Array, ""]:
    """-log Σ_k exp(-‖(z - c_k) / σ‖² / 2), the negative log density of a mixture of Gaussians at the centres."""
    if level.centers is None:
        return jnp.zeros(())
    return -jax.nn.logsumexp(-jnp.square((point[None] - level.centers) / level.scale).sum(-1) / 2)


@dataclasses.dataclass(frozen=True)
class RelativeClusters(CenterClustering):
    """Clusters by distance relative to the std of the task embeddings, which the centres track; beyond the paper.

    The first level assigns z = (g - m) / 3s, where m and s track the mean and the std of g.
    """

    def __call__(self, dim: int, *, spec: Spec, key: PRNGKeyArray) -> NormalizedHierarchy:
        del spec
        return NormalizedHierarchy(draw_levels(self.clusters, dim, self.scales, key=key), EmbeddingNormalizer(dim))

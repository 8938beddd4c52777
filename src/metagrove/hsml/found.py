"""Clusters that are found before the first meta-step and are not trained, beyond the paper.

A fresh embedding mostly reflects how the examples within a task differ, and clusters that are learned on it inherit
that. But two halves of a support set, embedded as g₁ and g₂, are two views of one task: what they agree on over many
tasks is signal, the rest is noise.

S = cov(g₁, g₂)         N = cov(g₁) - S         A = N^-½ V diag(λ / (1 + λ)), with λ, V of N^-½ S N^-½

In (g - m) A a direction weighs by how much of it is signal, in units of its noise: there k-means finds families of
tasks. Nothing is used but which examples belong to one task. Of a stream, they are the tasks of its first phase.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.hsml.cluster import CenterClustering, Level, climb, draw_levels, placement_sizes
from metagrove.hsml.clustering import ClusteredMeta, Placement
from metagrove.hsml.embed import Embedder
from metagrove.hsml.relative import EmbeddingNormalizer
from metagrove.nets.linear import Linear
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, Spec

__all__ = ["FoundClusters", "FoundHierarchy", "SplitHalfEmbeddings", "find_clusters", "signal_map"]

MIN_NOISE = 1e-3
"""Floor on the noise of a direction, relative to the mean over directions."""
TINY = 1e-200
"""Floor where there is no noise at all."""
FIRST_BIAS_STD = 0.25
"""Standard deviation of the first clusters' biases where embeddings are about 0, so that h^L tells clusters apart."""


class FoundHierarchy(eqx.Module):
    """A hierarchy over a projection of the task embedding; projection, normaliser and first centres are found."""

    levels: tuple[Level, ...]
    normalizer: EmbeddingNormalizer
    projection: Linear
    projection_scale: float = eqx.field(static=True)

    def __call__(
        self, task_embedding: Float[Array, " d"], support: Examples, assignment: Float[Array, " k"] | None = None
    ) -> Placement:
        """The task's placement; `assignment`, where given, replaces the first level's."""
        del support
        projected = self.project(task_embedding)
        near = self.normalizer(projected)[None]
        first = self.levels[0].assign(near)[0] if assignment is None else assignment
        return Placement(projected, *climb(self.levels, projected, first))

    def project(self, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """(g - m) A, scaled."""
        return self.projection_scale * self.projection(task_embedding)

    def space(self, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """A placement's task embedding in the space of the first level's centres."""
        return self.normalizer(task_embedding)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a placement's parts, for the gate."""
        return placement_sizes(self.levels)


@dataclasses.dataclass(frozen=True)
class FoundClusters(CenterClustering):
    """Clusters found by k-means before training, on what two halves of a support set agree on; beyond the paper.

    A data-dependent initialisation finds a projection of the task embedding, its normaliser and the first centres;
    these and the embedding are then frozen.
    """

    start_tasks: int = 2000
    """Training tasks on which the projection and the first centres are found; they are not trained afterwards."""
    projection_scale: float = 1.0
    """Multiplies the projected embedding. A small scale lets the gate rely on the clusters."""

    letter: ClassVar[str] = "F"

    def __call__(self, dim: int, *, spec: Spec, key: PRNGKeyArray) -> FoundHierarchy:
        del spec
        return FoundHierarchy(
            draw_levels(self.clusters, dim, self.scales, key=key),
            EmbeddingNormalizer(dim),
            Linear(dim, dim, key=key),
            self.projection_scale,
        )

    def data_dependent_init(self, meta: ClusteredMeta, tasks: TaskDraw, *, key: PRNGKeyArray) -> FoundHierarchy:
        find_key, bias_key = jax.random.split(key)
        task_key, means_key = jax.random.split(find_key)
        embeddings = split_half_embeddings(meta.embed, tasks, self.start_tasks, key=task_key)
        cluster = find_clusters(meta.cluster, embeddings, key=means_key)
        return eqx.tree_at(
            lambda cluster: cluster.levels[0].bias,
            cluster,
            replace_fn=lambda b: FIRST_BIAS_STD * jax.random.normal(bias_key, b.shape),
        )

    def frozen(self, meta: ClusteredMeta) -> tuple[Any, ...]:
        cluster = meta.cluster
        return meta.embed, cluster.normalizer, cluster.projection, cluster.levels[0].centers

    def growth_errors(self) -> list[str]:
        return ["growth_window must be 0 with found clusters: their number is fixed before training"]

    def validation_errors(self, task_dim: int) -> list[str]:
        several = bool(self.clusters) and self.clusters[0] > 1
        least = max(task_dim, self.clusters[0] if self.clusters else 0)
        conditions = (
            (several, "clusters must begin with two or more to be found"),
            (
                self.start_tasks > least,
                f"start_tasks must be more than task_dim and the first clusters ({least}), got {self.start_tasks}",
            ),
            (self.projection_scale > 0, f"projection_scale must be positive, got {self.projection_scale}"),
        )
        return super().validation_errors(task_dim) + [message for holds, message in conditions if not holds]


class SplitHalfEmbeddings(eqx.Module):
    """Task embeddings, a row for each task: of the whole support set, and of both its halves."""

    whole: Float[Array, "*n d"]
    even: Float[Array, "*n d"]
    odd: Float[Array, "*n d"]
    both_halves: Bool[Array, "*n"]
    """Whether both halves have an example."""


@eqx.filter_jit
def split_half_embeddings(
    embed: Embedder, tasks: TaskDraw, num_tasks: int, *, key: PRNGKeyArray
) -> SplitHalfEmbeddings:
    """Embed tasks and their halves: even rows of a support set are one half, odd rows the other."""

    def embed_halves(key: PRNGKeyArray) -> SplitHalfEmbeddings:
        support = tasks.sample(key).support
        even = support.mask & (jnp.arange(len(support.mask)) % 2 == 0)
        odd = support.mask & ~even

        def embed_rows(mask: Bool[Array, " n"]) -> Float[Array, " d"]:
            return embed(dataclasses.replace(support, mask=mask))[0]

        return SplitHalfEmbeddings(embed_rows(support.mask), embed_rows(even), embed_rows(odd), even.any() & odd.any())

    return jax.lax.map(embed_halves, jax.random.split(key, num_tasks))


def find_clusters(cluster: FoundHierarchy, embeddings: SplitHalfEmbeddings, *, key: PRNGKeyArray) -> FoundHierarchy:
    """The hierarchy with A as its projection, the normaliser of projected embeddings, and k-means centres."""
    from sklearn.cluster import KMeans  # slow to import, and rarely needed

    if not embeddings.both_halves.all():
        raise InputError("start_tasks needs two support examples or more in every task: choose another --cluster")
    whole, even, odd = (np.asarray(g, np.float64) for g in (embeddings.whole, embeddings.even, embeddings.odd))
    mean, weight = whole.mean(0), signal_map(even, odd)
    length = np.sqrt(np.square((whole - mean) @ weight).sum(1).mean())
    if not length > 0:
        raise InputError("start_tasks finds no signal that distinguishes tasks: choose another --cluster")
    weight /= length
    projected = cluster.projection_scale * (whole - mean) @ weight
    restarts: Any = 10  # the stubs have it as a string
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    num_clusters = len(cluster.levels[0].bias)
    means = KMeans(num_clusters, n_init=restarts, random_state=seed).fit(projected).cluster_centers_
    std = float(np.exp(np.log(np.square(projected).mean(1)).mean() / 2))
    normalizer = EmbeddingNormalizer(len(mean), std=std)
    return eqx.tree_at(
        lambda c: (c.projection.weight, c.projection.bias, c.normalizer, c.levels[0].centers),
        cluster,
        (jnp.asarray(weight), jnp.asarray(-mean @ weight), normalizer, jax.vmap(normalizer)(jnp.asarray(means))),
    )


def signal_map(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A, from the embeddings of both halves of each task, a row each."""
    x, y = first - first.mean(0), second - second.mean(0)
    signal = (x.T @ y + y.T @ x) / (2 * len(x))
    variances, directions = np.linalg.eigh((x.T @ x + y.T @ y) / (2 * len(x)) - signal)
    variances = np.maximum(variances, max(MIN_NOISE * np.abs(variances).mean(), TINY))
    whiten = directions / np.sqrt(variances) @ directions.T
    ratios, axes = np.linalg.eigh(whiten @ signal @ whiten)
    ratios = np.maximum(ratios, 0)
    return whiten @ axes * (ratios / (1 + ratios))

"""Hierarchical task clustering (paper, section 4.2): where a task stands, level by level, from K^0 = 1 to K^L = 1."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.nets.linear import xavier


class Level(eqx.Module):
    """The K' clusters of one level. The root, being alone, needs no centre."""

    centers: Float[Array, "k d"] | None
    log_scale: Float[Array, ""] | None
    weight: Float[Array, "k d d"]
    bias: Float[Array, "k d"]
    mass: Float[Array, " k"] | None
    """How much each cluster counts, 1 in the paper; a cluster of mass 0 is not there. Beyond the paper, see `grow`."""
    scale: float = eqx.field(static=True)

    def __init__(
        self, num_clusters: int, dim: int, scale: float, *, learn_scales: bool, masses: bool, key: PRNGKeyArray
    ):
        center_key, weight_key = jax.random.split(key)
        alone = num_clusters == 1
        self.centers = None if alone else xavier(center_key, (num_clusters, dim), 1 + dim)
        self.mass = jnp.ones(num_clusters) if masses and not alone else None
        self.log_scale = jnp.zeros(()) if learn_scales and not alone else None
        self.weight = xavier(weight_key, (num_clusters, dim, dim), 2 * dim)
        self.bias = jnp.zeros((num_clusters, dim))
        self.scale = scale

    def assign(self, cluster_repr: Float[Array, "k d"]) -> Float[Array, "k l"]:
        """p^{k→k'} = softmax_{k'}( -‖(h^k - c_{k'}) / σ‖² / 2 ), eq. (6)."""
        if self.centers is None:
            return jnp.ones((cluster_repr.shape[0], 1))
        scale = self.scale if self.log_scale is None else self.scale * jnp.exp(self.log_scale)
        offsets = (cluster_repr[:, None] - self.centers[None]) / scale
        logits = -jnp.square(offsets).sum(-1) / 2
        if self.mass is None:
            return jax.nn.softmax(logits, axis=-1)
        mass = at_least_zero(self.mass)[None]
        top = jax.lax.stop_gradient(jnp.where(mass > 0, logits, -jnp.inf).max(-1, keepdims=True))
        weighed = jnp.exp(jnp.minimum(logits - top, 0)) * mass
        return weighed / (weighed.sum(-1, keepdims=True) + 1e-12)

    def neg_log_density(self, place: Float[Array, " d"]) -> Float[Array, ""]:
        """-log Σ_k exp(-‖(z - c_k) / σ‖² / 2): that of a mixture of Gaussians, the less the nearer a centre is."""
        if self.centers is None:
            return jnp.zeros(())
        return -jax.nn.logsumexp(-jnp.square((place[None] - self.centers) / self.scale).sum(-1) / 2)

    def update(
        self,
        cluster_repr: Float[Array, "k d"],
        assignment: Float[Array, "k l"],
        mass: Float[Array, " k"] | None = None,
    ) -> Float[Array, "l d"]:
        """h^{k'} = Σ_k p^{k→k'} tanh(W^{k'} h^k + b^{k'}), eq. (7). A weighted sum: rows of p sum to 1, not columns.

        `mass` is that of the clusters k below, where they have one: one that is not there adds nothing.
        """
        moved = jnp.tanh(jnp.einsum("lij,kj->kli", self.weight, cluster_repr) + self.bias[None])
        assignment = assignment if mass is None else assignment * at_least_zero(mass)[:, None]
        return jnp.einsum("kl,kld->ld", assignment, moved)


def at_least_zero(mass: Float[Array, " k"]) -> Float[Array, " k"]:
    """max(m, 0), whose gradient is 1 everywhere, so that a cluster that has left can come back."""
    return mass + jax.lax.stop_gradient(jnp.maximum(mass, 0) - mass)


class Hierarchy(eqx.Module):
    """Levels from the task's embedding to the root."""

    levels: tuple[Level, ...]

    def __init__(
        self,
        clusters: tuple[int, ...],
        dim: int,
        scales: tuple[float, ...],
        *,
        learn_scales: bool = False,
        masses: bool = False,
        key: PRNGKeyArray,
    ):
        """`clusters` is (K^1, ..., K^L) and ends in 1; `scales` is σ of each level, the last repeated as needed."""
        if problems := cluster_errors(clusters):
            raise InputError(problems[0])
        all_scales = itertools.chain(scales, itertools.repeat(scales[-1]))
        keys = jax.random.split(key, len(clusters))
        self.levels = tuple(
            Level(k, dim, scale, learn_scales=learn_scales, masses=masses, key=level_key)
            for k, scale, level_key in zip(clusters, all_scales, keys, strict=False)
        )

    def __call__(
        self, task_embedding: Float[Array, " d"], place: Float[Array, " d"] | None = None
    ) -> tuple[Float[Array, " d"], tuple[Float[Array, "_ _"], ...]]:
        """The root's representation h^L, and every level's assignment.

        Distances to the first level's centres are those of `place`, if it is given, in place of the embedding.
        """
        cluster_repr, assignments, mass = task_embedding[None], [], None
        for level in self.levels:
            near = cluster_repr if assignments or place is None else place[None]
            assignments.append(level.assign(near))
            cluster_repr, mass = level.update(cluster_repr, assignments[-1], mass), level.mass
        return cluster_repr[0], tuple(assignments)


def cluster_errors(clusters: tuple[int, ...]) -> list[str]:
    """What keeps a tuple from being a hierarchy."""
    if clusters and clusters[-1] == 1 and min(clusters) >= 1:
        return []
    mended = (*(k for k in clusters if k > 1), 1)
    return [f"clusters must be positive numbers ending in 1 (the root), got {clusters}: try {mended}"]

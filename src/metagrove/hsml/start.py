"""Clusters that are found before the first meta-step and then stay, beyond the paper.

A fresh embedding mostly reflects how the examples within a task differ, and clusters that are learned on it inherit
that. But two halves of a support set, embedded as g₁ and g₂, are two looks at one task: what they agree on over many
tasks is signal, the rest is noise.

S = cov(g₁, g₂)         N = cov(g₁) - S         A = N^-½ V diag(λ / (1 + λ)), with λ, V of N^-½ S N^-½

In (g - m) A a direction weighs by how much of it is signal, measured in units of its noise: there k-means finds kinds
of tasks. Nothing is used but which examples belong to one task. Of a stream, they are the tasks of its first phase.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.hsml.embed import Embedder, Frame
from metagrove.nets.order import RowOrder
from metagrove.sources.source import TaskDraw

LEAST_NOISE = 1e-3
"""Floor on the noise of a direction, as a share of the mean over directions."""
TINY = 1e-200
"""Floor where there is no noise at all."""


class SplitHalfEmbeddings(eqx.Module):
    """Task embeddings, a row for each task: of the whole support set, and of both its halves."""

    whole: Float[Array, "*n d"]
    even: Float[Array, "*n d"]
    odd: Float[Array, "*n d"]
    halves_are_real: Bool[Array, "*n"]
    """Do both halves have an example?"""


@eqx.filter_jit
def look_at(
    embed: Embedder, tasks: TaskDraw, num_tasks: int, *, order: RowOrder, num_permutations: int, key: PRNGKeyArray
) -> SplitHalfEmbeddings:
    """So many tasks; even rows are one half of a support set and odd rows the other."""

    def look(key: PRNGKeyArray) -> SplitHalfEmbeddings:
        support = tasks.sample(key).support
        even = support.mask & (jnp.arange(len(support.mask)) % 2 == 0)
        odd = support.mask & ~even

        def part(mask: Bool[Array, " n"]) -> Float[Array, " d"]:
            rows = dataclasses.replace(support, mask=mask)
            return embed(rows, order=order, num_permutations=num_permutations, key=None)[0]

        return SplitHalfEmbeddings(part(support.mask), part(even), part(odd), even.any() & odd.any())

    return jax.lax.map(look, jax.random.split(key, num_tasks))


def find_clusters(
    embed: Embedder, looks: SplitHalfEmbeddings, num_clusters: int, *, scale: float, key: PRNGKeyArray
) -> tuple[Embedder, Frame, Float[Array, "k d"]]:
    """The embedding with A as its last layer, the frame of its values times `scale`, and the centres in it."""
    from sklearn.cluster import KMeans  # slow to import, and seldom wanted

    if not looks.halves_are_real.all():
        raise InputError("start_tasks needs two support examples or more in every task: set it to 0, or raise --shots")
    whole, even, odd = (np.asarray(g, np.float64) for g in (looks.whole, looks.even, looks.odd))
    mean, weight = whole.mean(0), signal_map(even, odd)
    length = np.sqrt(np.square((whole - mean) @ weight).sum(1).mean())
    if not length > 0:
        raise InputError("start_tasks finds nothing that tells tasks apart: set it to 0")
    weight /= length
    places = scale * (whole - mean) @ weight
    restarts: Any = 10  # the stubs have it as a string
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    means = KMeans(num_clusters, n_init=restarts, random_state=seed).fit(places).cluster_centers_
    frame = Frame(len(mean), spread=float(np.exp(np.log(np.square(places).mean(1)).mean() / 2)))
    layer = (jnp.asarray(weight), jnp.asarray(-mean @ weight))
    embed = eqx.tree_at(lambda embed: (embed.outward.weight, embed.outward.bias), embed, layer)
    return embed, frame, jax.vmap(frame)(jnp.asarray(means))


def signal_map(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A, from the embeddings of both halves of each task, a row each."""
    x, y = first - first.mean(0), second - second.mean(0)
    signal = (x.T @ y + y.T @ x) / (2 * len(x))
    variances, directions = np.linalg.eigh((x.T @ x + y.T @ y) / (2 * len(x)) - signal)
    variances = np.maximum(variances, max(LEAST_NOISE * np.abs(variances).mean(), TINY))
    whiten = directions / np.sqrt(variances) @ directions.T
    ratios, axes = np.linalg.eigh(whiten @ signal @ whiten)
    ratios = np.maximum(ratios, 0)
    return whiten @ axes * (ratios / (1 + ratios))

"""Task representation learning (paper, section 4.1): a set of examples becomes one vector g."""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.losses import mse
from metagrove.nets.attention import AttentionAggregator
from metagrove.nets.encoder import ImageEncoder
from metagrove.nets.linear import Linear
from metagrove.nets.order import RowOrder, read_rows
from metagrove.nets.pooling import PoolingAggregator
from metagrove.nets.recurrent import RecurrentAggregator
from metagrove.task import Examples

AggregatorName = Literal["gru", "lstm", "mean", "max", "attention"]
Aggregator = RecurrentAggregator | PoolingAggregator | AttentionAggregator


class Embedder(eqx.Module):
    """F on each example, one fully connected layer on [x; y] or convolutions, and an aggregator over its outputs."""

    example_net: Linear | ImageEncoder
    aggregator: Aggregator
    input_scale: float = eqx.field(static=True)
    outward: Linear | None = None
    """A layer after the aggregator, beyond the paper: see `start`."""

    def __call__(
        self, support: Examples, *, order: RowOrder, num_permutations: int, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """g and L_r."""
        example_embeddings = self.embed_examples(support)
        if not isinstance(self.aggregator, RecurrentAggregator):
            return self.aggregate(example_embeddings, support.mask)
        how = {"order": order, "num_permutations": num_permutations, "key": key}
        return read_rows(self.aggregate, example_embeddings, support, **how)

    def embed_examples(self, support: Examples) -> Float[Array, "n e"]:
        """F(x, y)."""
        x, y = support.x * self.input_scale, support.y
        if isinstance(self.example_net, ImageEncoder):
            return self.example_net(x, y)
        return self.example_net(jnp.concatenate([x, y * self.input_scale], axis=1))

    def aggregate(
        self, example_embeddings: Float[Array, "n e"], mask: Bool[Array, " n"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """g, eq. (3) or (5), and L_r, eq. (2) as a mean (0 for an aggregator that does not reconstruct)."""
        task_embedding, reconstruction = self.aggregator(example_embeddings, mask)
        task_embedding = task_embedding if self.outward is None else self.outward(task_embedding)
        if reconstruction is None:
            return task_embedding, jnp.zeros(())
        return task_embedding, mse(reconstruction, example_embeddings, mask)


class Frame(eqx.Module):
    """Where task embeddings lie and how far they spread, so that σ is a scale relative to that; beyond the paper.

    z = (g - m) / 3s, whose distances to the centres decide the assignment. m and s follow the embeddings by the outer
    loop's steps on `neg_log_density` and by nothing else, or are found first and stay, see `start`.
    """

    center: Float[Array, " d"]
    log_spread: Float[Array, ""]

    def __init__(self, dim: int, spread: float = 1.0):
        self.center, self.log_spread = jnp.zeros(dim), jnp.asarray(math.log(spread) / SPREAD_PACE, float)

    def __call__(self, task_embedding: Float[Array, " d"]) -> Float[Array, " d"]:
        """z."""
        center, log_spread = jax.lax.stop_gradient((self.center, self.log_spread))
        return (task_embedding - MEAN_PACE * center) * jnp.exp(-SPREAD_PACE * log_spread) / UNIT

    def neg_log_density(self, task_embedding: Float[Array, " d"]) -> Float[Array, ""]:
        """Least where m is the mean of embeddings and 2 log s the mean of their log variance."""
        offsets = task_embedding - MEAN_PACE * self.center
        log_variance = jnp.log(jax.lax.stop_gradient(jnp.square(offsets)).mean() + 1e-6)
        return jnp.square(offsets).sum() / 2 + jnp.square(log_variance - 2 * SPREAD_PACE * self.log_spread) / 2


UNIT = 3.0
"""Spreads that count as a distance of 1, so that centres have not far to go."""
MEAN_PACE, SPREAD_PACE = 3.0, 30.0
"""How much faster than other parameters m and log s move."""


def make_aggregator(
    name: AggregatorName, in_dim: int, task_dim: int, *, num_layers: int, num_heads: int, key: PRNGKeyArray
) -> Aggregator:
    """The aggregator of that name."""
    match name:
        case "gru" | "lstm":
            return RecurrentAggregator(in_dim, task_dim, name, key=key)
        case "mean" | "max":
            return PoolingAggregator(in_dim, task_dim, name, key=key)
        case "attention":
            return AttentionAggregator(in_dim, task_dim, num_layers, num_heads, key=key)

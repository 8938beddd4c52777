"""Task representation learning (paper, section 4.1): a set of examples becomes one vector g."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.losses import mse
from metagrove.nets.attention import AttentionAggregator
from metagrove.nets.linear import Linear
from metagrove.nets.pooling import PoolingAggregator
from metagrove.nets.recurrent import RecurrentAggregator
from metagrove.task import Examples, Spec

AggregatorName = Literal["gru", "lstm", "mean", "max", "attention"]
RowOrder = Literal["random", "sorted"]
Aggregator = RecurrentAggregator | PoolingAggregator | AttentionAggregator


class Embedder(eqx.Module):
    """F, one fully connected layer on [x; y], and an aggregator over its outputs."""

    example_net: Linear
    aggregator: Aggregator
    input_scale: float = eqx.field(static=True)

    def __init__(
        self, spec: Spec, example_dim: int, aggregator: Aggregator, *, input_scale: float = 1.0, key: PRNGKeyArray
    ):
        (x_dim,) = spec.x_shape
        self.example_net = Linear(x_dim + spec.y_dim, example_dim, key=key)
        self.aggregator = aggregator
        self.input_scale = input_scale

    def __call__(
        self, support: Examples, *, order: RowOrder, num_permutations: int, key: PRNGKeyArray | None
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """g and L_r. Without a key the order of the rows does not matter: they are sorted, and where training saw
        random orders, the same few permutations of the sorted rows are averaged.
        """
        if not isinstance(self.aggregator, RecurrentAggregator):
            return self.embed_in_order(support)
        if order == "sorted":
            return self.embed_in_order(sort_rows(support))
        if key is not None:
            return self.embed_in_order(permute_rows(support, key))
        keys = jax.random.split(jax.random.key(0), num_permutations)
        permuted = jax.vmap(permute_rows, in_axes=(None, 0))(sort_rows(support), keys)
        embeddings, reconstruction_losses = jax.vmap(self.embed_in_order)(permuted)
        return embeddings.mean(0), reconstruction_losses.mean()

    def embed_in_order(self, support: Examples) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """g, eq. (3) or (5), and L_r, eq. (2) as a mean (0 for an aggregator that does not reconstruct)."""
        inputs = jnp.concatenate([support.x, support.y], axis=1) * self.input_scale
        example_embeddings = self.example_net(inputs)
        task_embedding, reconstruction = self.aggregator(example_embeddings, support.mask)
        if reconstruction is None:
            return task_embedding, jnp.zeros(())
        return task_embedding, mse(reconstruction, example_embeddings, support.mask)


def sort_rows(support: Examples) -> Examples:
    """Real rows first, by x and then by y."""
    columns = jnp.concatenate([support.x, support.y], axis=1).T
    order = jnp.lexsort([*columns[::-1], ~support.mask])
    return jax.tree.map(lambda rows: rows[order], support)


def permute_rows(support: Examples, key: PRNGKeyArray) -> Examples:
    """Real rows first, in an order that depends on the key and not on the padding."""
    draw = jax.vmap(lambda row: jax.random.uniform(jax.random.fold_in(key, row)))
    order = jnp.argsort(draw(jnp.arange(support.mask.shape[0])) + ~support.mask)
    return jax.tree.map(lambda rows: rows[order], support)


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

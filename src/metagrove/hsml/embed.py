"""Task representation learning (paper, section 4.1): a set of examples becomes one vector g."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.losses import mse
from metagrove.nets.attention import AttentionAggregator
from metagrove.nets.linear import Linear
from metagrove.nets.order import RowOrder, read_rows
from metagrove.nets.pooling import PoolingAggregator
from metagrove.nets.recurrent import RecurrentAggregator
from metagrove.task import Examples, Spec

AggregatorName = Literal["gru", "lstm", "mean", "max", "attention"]
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
        """g and L_r."""
        if not isinstance(self.aggregator, RecurrentAggregator):
            return self.embed_in_order(support)
        return read_rows(self.embed_in_order, support, order=order, num_permutations=num_permutations, key=key)

    def embed_in_order(self, support: Examples) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """g, eq. (3) or (5), and L_r, eq. (2) as a mean (0 for an aggregator that does not reconstruct)."""
        inputs = jnp.concatenate([support.x, support.y], axis=1) * self.input_scale
        example_embeddings = self.example_net(inputs)
        task_embedding, reconstruction = self.aggregator(example_embeddings, support.mask)
        if reconstruction is None:
            return task_embedding, jnp.zeros(())
        return task_embedding, mse(reconstruction, example_embeddings, support.mask)


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

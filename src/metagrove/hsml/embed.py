"""Task representation learning (paper, section 4.1): a support set becomes one vector, the task embedding g.

F(xⱼ, yⱼ) embeds each example, an aggregator makes one vector of all of them. The parts below are the choices of
aggregator; each draws an `Embedder`.
"""

import abc
import dataclasses
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.losses import mse
from metagrove.nets.attention import AttentionAggregator
from metagrove.nets.encoder import ImageEncoder, ImageFeatures, make_example_net
from metagrove.nets.linear import Linear
from metagrove.nets.order import RowOrder, row_orders
from metagrove.nets.pooling import PoolingAggregator
from metagrove.nets.recurrent import RecurrentAggregator, Summary
from metagrove.task import Examples, Spec

__all__ = [
    "AttentionEmbedding",
    "Embedder",
    "Embedding",
    "EmptyEmbedder",
    "NoEmbedding",
    "PoolingEmbedding",
    "RecurrentEmbedding",
]

Aggregator = RecurrentAggregator | PoolingAggregator | AttentionAggregator


class Embedder(eqx.Module):
    """F on each example, a linear layer on [x; y] or convolutions, and an aggregator over its outputs."""

    example_net: Linear | ImageEncoder
    aggregator: Aggregator
    input_scale: float = eqx.field(static=True)
    embedding_scale: float = eqx.field(static=True)
    row_order: RowOrder | None = eqx.field(static=True)
    """Order in which the aggregator reads the rows; None if it does not matter to it."""
    num_permutations: int = eqx.field(static=True)

    def __call__(
        self, support: Examples, *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """g and L_r; without a key, nothing depends on the order of the rows."""
        example_embeddings, mask = self.embed_examples(support), support.mask
        if self.row_order is None:
            task_embedding, loss = self.aggregate(example_embeddings, mask)
        else:
            orders = row_orders(support, self.num_permutations, key=key, order=self.row_order)
            task_embedding, loss = self.aggregate_in(orders, example_embeddings, mask)
        return self.embedding_scale * task_embedding, loss

    def embed_examples(self, support: Examples) -> Float[Array, "n e"]:
        """F(x, y)."""
        x, y = support.x * self.input_scale, support.y
        if isinstance(self.example_net, ImageEncoder):
            return self.example_net(x, y)
        return self.example_net(jnp.concatenate([x, y * self.input_scale], axis=1))

    def aggregate_in(
        self, orders: Int[Array, "p n"], example_embeddings: Float[Array, "n e"], mask: Bool[Array, " n"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """g and L_r, averaged over orders of the rows."""
        if len(orders) == 1:
            return self.aggregate(example_embeddings[orders[0]], mask[orders[0]])
        each = jax.vmap(lambda order: self.aggregate(example_embeddings[order], mask[order]))(orders)
        return jax.tree.map(lambda out: out.mean(0), each)

    def aggregate(
        self, example_embeddings: Float[Array, "n e"], mask: Bool[Array, " n"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """g, eq. (3) or (5), and L_r, eq. (2) as a mean (0 for an aggregator that does not reconstruct)."""
        task_embedding, reconstruction = self.aggregator(example_embeddings, mask)
        if reconstruction is None:
            return task_embedding, jnp.zeros(())
        return task_embedding, mse(reconstruction, example_embeddings, mask)


@dataclasses.dataclass(frozen=True)
class Embedding(abc.ABC):
    """Abstract base class of task embeddings: a support set to one vector g (paper, section 4.1).

    Calling it with a `Spec` and two random keys initialises an embedder, which maps a support set to g and L_r.
    """

    example_dim: int = 20
    """Size of F(x, y), the embedding of an example."""
    task_dim: int = 40
    """d, the size of the task embedding and of every cluster representation."""
    input_scale: float = 1.0
    """Multiplies x and y before F."""
    image_features: ImageFeatures = "places"
    """Input of the dense layers of F for images: the feature map, or moments over its pixels (beyond the paper)."""
    embedding_scale: float = 1.0
    """Multiplies g. A small scale lets the gate rely on the clusters before it relies on the single task."""

    letter: ClassVar[str] = ""
    """What HSML with this part adds to its name; nothing for the parts of the paper."""

    @abc.abstractmethod
    def aggregator(self, in_dim: int, *, key: PRNGKeyArray) -> Aggregator:
        """Initialise the aggregator of example embeddings.

        Args:
            in_dim: Size of an example embedding.
            key: Random key.

        Returns:
            A module that maps example embeddings and their mask to the task embedding and a reconstruction.
        """

    def __call__(self, spec: Spec, *, key: Key[Array, "2"]) -> Embedder:
        """Initialise the embedder.

        Args:
            spec: Shapes of the inputs and targets.
            key: Two random keys, of the aggregator and of F.

        Returns:
            A module that maps a support set to the task embedding g and the reconstruction loss L_r.
        """
        aggregator_key, example_key = key
        example_net, example_dim = make_example_net(spec, self.example_dim, self.image_features, key=example_key)
        return Embedder(
            example_net=example_net,
            aggregator=self.aggregator(example_dim, key=aggregator_key),
            input_scale=self.input_scale,
            embedding_scale=self.embedding_scale,
            row_order=self.reading[0],
            num_permutations=self.reading[1],
        )

    @property
    def reading(self) -> tuple[RowOrder | None, int]:
        """The order of rows in training and the number of permutations at test; None where order does not matter."""
        return None, 1

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            A message for each setting that cannot be used.
        """
        scale = self.embedding_scale
        errors = [] if scale > 0 else [f"embedding_scale must be positive, got {scale}"]
        return check_at_least_one(self, "example_dim", "task_dim") + errors


@dataclasses.dataclass(frozen=True)
class RecurrentEmbedding(Embedding):
    """The recurrent autoencoder aggregator (RAA) of the paper, eqs. (4)-(5)."""

    cell: Literal["gru", "lstm"] = "gru"
    """The recurrent cell of encoder and decoder."""
    row_order: RowOrder = "random"
    """Order in which the rows are read in training: a random permutation, or sorted (beyond the paper)."""
    test_permutations: int = 16
    """With random order, the number of fixed permutations of the sorted rows to average over at test."""
    summary: Summary = "mean"
    """Task embedding g: the mean of the encoder outputs, eq. (5), or the last state (ablation A2b of the paper)."""

    @property
    def reading(self) -> tuple[RowOrder, int]:
        return self.row_order, self.test_permutations

    def aggregator(self, in_dim: int, *, key: PRNGKeyArray) -> RecurrentAggregator:
        return RecurrentAggregator(in_dim, self.task_dim, self.cell, self.summary, key=key)

    def validation_errors(self) -> list[str]:
        return super().validation_errors() + check_at_least_one(self, "test_permutations")


@dataclasses.dataclass(frozen=True)
class PoolingEmbedding(Embedding):
    """The pooling autoencoder aggregator (PAA) of the paper, eqs. (2)-(3)."""

    pool: Literal["mean", "max"] = "mean"
    """How the encoded rows are pooled."""

    def aggregator(self, in_dim: int, *, key: PRNGKeyArray) -> PoolingAggregator:
        return PoolingAggregator(in_dim, self.task_dim, self.pool, key=key)


@dataclasses.dataclass(frozen=True)
class AttentionEmbedding(Embedding):
    """Masked multi-head self-attention over the rows, mean pooled; beyond the paper. It has no reconstruction."""

    attention_layers: int = 3
    """Self-attention layers."""
    attention_heads: int = 4
    """Attention heads of each layer."""

    letter: ClassVar[str] = "A"

    def aggregator(self, in_dim: int, *, key: PRNGKeyArray) -> AttentionAggregator:
        return AttentionAggregator(in_dim, self.task_dim, self.attention_layers, self.attention_heads, key=key)

    def validation_errors(self) -> list[str]:
        fits = self.task_dim % max(1, self.attention_heads) == 0
        message = f"task_dim must be a multiple of attention_heads, got {self.task_dim} and {self.attention_heads}"
        counts = check_at_least_one(self, "attention_layers", "attention_heads")
        return super().validation_errors() + counts + ([] if fits else [message])


class EmptyEmbedder(eqx.Module):
    """g of size 0."""

    def __call__(
        self, support: Examples, *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """An empty vector, and a reconstruction loss of 0."""
        del support, key
        return jnp.zeros(0), jnp.zeros(())


@dataclasses.dataclass(frozen=True)
class NoEmbedding:
    """No task embedding: for clusters that read the support set themselves (`EvidenceClusters`); beyond the paper."""

    task_dim: ClassVar[int] = 0
    """The size of the task embedding."""
    letter: ClassVar[str] = ""

    def __call__(self, spec: Spec, *, key: Key[Array, "2"]) -> EmptyEmbedder:
        """Initialise the embedder.

        Args:
            spec: Shapes of the inputs and targets.
            key: Two random keys, not used.

        Returns:
            A module whose task embedding is empty.
        """
        del spec, key
        return EmptyEmbedder()

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each.

        Returns:
            Nothing: there are no settings.
        """
        return []

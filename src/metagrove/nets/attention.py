"""Set-attention aggregator (not in the paper): pre-norm self-attention layers over the rows, then mean pooling.

It is invariant to the order of the rows and has no reconstruction.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.losses import masked_mean
from metagrove.nets.linear import Linear


class AttentionLayer(eqx.Module):
    """Pre-norm transformer layer: x ← x + Attention(norm(x)), x ← x + FC(norm(x))."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    query_key_value: Linear
    mix: Linear
    widen: Linear
    narrow: Linear
    num_heads: int = eqx.field(static=True)

    def __init__(self, dim: int, num_heads: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        self.norms = (eqx.nn.LayerNorm(dim), eqx.nn.LayerNorm(dim))
        self.query_key_value = Linear(dim, 3 * dim, key=keys[0])
        self.mix = Linear(dim, dim, key=keys[1])
        self.widen = Linear(dim, 4 * dim, key=keys[2])
        self.narrow = Linear(4 * dim, dim, key=keys[3])
        self.num_heads = num_heads

    def __call__(self, rows: Float[Array, "n d"], mask: Bool[Array, " n"]) -> Float[Array, "n d"]:
        rows = rows + self.attend(jax.vmap(self.norms[0])(rows), mask)
        return rows + self.narrow(jax.nn.gelu(self.widen(jax.vmap(self.norms[1])(rows))))

    def attend(self, rows: Float[Array, "n d"], mask: Bool[Array, " n"]) -> Float[Array, "n d"]:
        """Apply masked multi-head self-attention."""
        num_rows, dim = rows.shape
        heads = self.query_key_value(rows).reshape(num_rows, 3, self.num_heads, dim // self.num_heads)
        query, key, value = jnp.moveaxis(heads, 1, 0)
        return self.mix(jax.nn.dot_product_attention(query, key, value, mask=mask[None, None, :]).reshape(rows.shape))


class AttentionAggregator(eqx.Module):
    """g = mean over rows of the outputs of the last layer; `inward` projects example embeddings to the task's size."""

    inward: Linear
    layers: tuple[AttentionLayer, ...]
    norm: eqx.nn.LayerNorm

    def __init__(self, in_dim: int, task_dim: int, num_layers: int, num_heads: int, *, key: PRNGKeyArray):
        inward_key, *layer_keys = jax.random.split(key, 1 + num_layers)
        self.inward = Linear(in_dim, task_dim, key=inward_key)
        self.layers = tuple(AttentionLayer(task_dim, num_heads, key=k) for k in layer_keys)
        self.norm = eqx.nn.LayerNorm(task_dim)

    def __call__(self, rows: Float[Array, "n e"], mask: Bool[Array, " n"]) -> tuple[Float[Array, " d"], None]:
        rows = self.inward(rows)
        for layer in self.layers:
            rows = layer(rows, mask)
        return masked_mean(jax.vmap(self.norm)(rows), mask), None

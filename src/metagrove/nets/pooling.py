"""Pooling autoencoder aggregator (paper, eqs. 2-3): rows are encoded independently, then pooled."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.losses import masked_mean
from metagrove.nets.linear import Linear


class PoolingAggregator(eqx.Module):
    """g = Pool_j FC_enc(F_j), with FC_dec(g_j) as the reconstruction of each row."""

    encoder: tuple[Linear, Linear]
    decoder: tuple[Linear, Linear]
    pool: Literal["mean", "max"] = eqx.field(static=True)

    def __init__(self, in_dim: int, task_dim: int, pool: Literal["mean", "max"], *, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        self.encoder = (Linear(in_dim, in_dim, key=keys[0]), Linear(in_dim, task_dim, key=keys[1]))
        self.decoder = (Linear(task_dim, in_dim, key=keys[2]), Linear(in_dim, in_dim, key=keys[3]))
        self.pool = pool

    def __call__(
        self, rows: Float[Array, "n e"], mask: Bool[Array, " n"]
    ) -> tuple[Float[Array, " d"], Float[Array, "n e"]]:
        encoded = self.encoder[1](jax.nn.relu(self.encoder[0](rows)))
        decoded = self.decoder[1](jax.nn.relu(self.decoder[0](encoded)))
        if self.pool == "mean":
            return masked_mean(encoded, mask), decoded
        return jnp.where(mask[:, None], encoded, -jnp.inf).max(0), decoded

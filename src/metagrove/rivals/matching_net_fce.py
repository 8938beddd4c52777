"""Matching networks with full-context embeddings (Vinyals et al. 2016), as re-run by Ravi & Larochelle (2017).

support:  gᵢ = g'ᵢ + forward LSTMᵢ + backward LSTMᵢ over the support, in random order
query:    r₀ = mean of g;   (h̃ₜ, cₜ) = LSTM([f', rₜ₋₁]; hₜ₋₁, cₜ₋₁);   hₜ = f' + h̃ₜ;   rₜ = Σᵢ softmaxᵢ(hₜ·gᵢ) gᵢ
answer:   p(y = k | x) = softmax_k(s Σ of cos(h₃, gᵢ) over the support of class k)

Without a key, probabilities are averaged over fixed permutations of the sorted support. Deviations: s = 10 (1 as
published, which learns slowly); features are projected to `feature_dim`, since an LSTM of 1,600 units has 20 million
weights; no dropout.
"""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import repeat
from metagrove.learner import Info, Learner, NetFn
from metagrove.losses import LossFn, cross_entropy, masked_mean
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.layers import without_head
from metagrove.nets.linear import Linear
from metagrove.nets.order import row_orders
from metagrove.nets.predictors import bind_support
from metagrove.nets.recurrent import lstm_cell, read
from metagrove.task import Examples, Spec

__all__ = ["MatchingNetFCE"]

SMALL, NEVER = 1e-8, -1e9


class FCEMeta(eqx.Module):
    """Θ: the base net without head, the projection of its features, and three LSTMs."""

    net: Any
    project: Linear
    forwards: eqx.nn.LSTMCell
    backwards: eqx.nn.LSTMCell
    reader: eqx.nn.LSTMCell


class FullContext(eqx.Module):
    """Predictor: the nets, and the embedded support set, read in one or several orders."""

    meta: FCEMeta
    embedded: Float[Array, "..."]
    labels: Float[Array, "..."]
    real: Bool[Array, "*_ n"]
    sharpness: float = eqx.field(static=True)
    read_steps: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "q ..."], mask: Bool[Array, " q"] | None = None) -> Float[Array, "q k"]:
        features = self.meta.project(self.meta.net.features(x, mask))
        answers = jax.vmap(lambda g, labels: self.answer(features, g, labels))(self.embedded, self.labels)
        return jax.nn.logsumexp(answers, axis=0) - math.log(len(answers))

    def answer(
        self, features: Float[Array, "q f"], g: Float[Array, "n f"], labels: Float[Array, "n k"]
    ) -> Float[Array, "q k"]:
        """Log-probabilities of every query, given the support in one order."""
        members = labels * self.real[:, None]
        cosines = unit(jax.vmap(lambda one: self.read_support(one, g))(features)) @ unit(g).T
        known = members.sum(0) > 0
        return jax.nn.log_softmax(jnp.where(known[None], self.sharpness * (cosines @ members), NEVER))

    def read_support(self, feature: Float[Array, " f"], g: Float[Array, "n f"]) -> Float[Array, " f"]:
        """Compute h of one query by attention to the support."""
        hidden, cell, seen = jnp.zeros_like(feature), jnp.zeros_like(feature), masked_mean(g, self.real)
        for _ in range(self.read_steps):
            out, cell = self.meta.reader(jnp.concatenate([feature, seen]), (hidden, cell))
            hidden = feature + out
            seen = jax.nn.softmax(jnp.where(self.real, g @ hidden, NEVER)) @ g
        return hidden


@dataclasses.dataclass(frozen=True)
class MatchingNetFCE(Learner):
    """Matching networks with full-context embeddings: LSTMs embed the support as a sequence, and a query given it.

    From Matching Networks for One Shot Learning (Vinyals et al. 2016).
    """

    loss: LossFn = cross_entropy
    """Query loss."""
    net: Conv4Net | NetFn = Conv4Net(filters=64)
    """Settings of the net whose penultimate layer gives the features."""
    feature_dim: int = 128
    """Size to which features are projected, and of the LSTMs."""
    read_steps: int = 3
    """Number of steps in which a query reads the support."""
    sharpness: float = 10.0
    """Inverse temperature (s) that multiplies the cosines."""
    test_permutations: int = 16
    """Number of orders over which probabilities are averaged at test."""

    inner_steps: ClassVar[int] = 0
    any_ways: ClassVar[bool] = True

    def validation_errors(self) -> list[str]:
        errors = [] if self.sharpness > 0 else [f"sharpness must be positive, got {self.sharpness}"]
        return check_at_least_one(self, "feature_dim", "read_steps", "test_permutations") + errors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> FCEMeta:
        keys = jax.random.split(key, 5)
        net = without_head(self.net(spec, key=keys[0]), "Matching networks")
        num_features = jax.eval_shape(net.features, jax.ShapeDtypeStruct((1, *spec.x_shape), jnp.float32)).shape[1]
        size = self.feature_dim
        return FCEMeta(
            net=net,
            project=Linear(num_features, size, key=keys[1]),
            forwards=lstm_cell(size, size, key=keys[2]),
            backwards=lstm_cell(size, size, key=keys[3]),
            reader=lstm_cell(2 * size, size, key=keys[4]),
        )

    def adapt(
        self, meta: FCEMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[FullContext, Info]:
        del steps  # there is no inner loop: the path has one predictor
        features = meta.project(meta.net.features(support.x, support.mask))
        real = jnp.arange(len(support.mask)) < support.mask.sum()
        orders = row_orders(support, self.test_permutations, key=key)
        embedded = jax.vmap(lambda rows: embed_sequence(meta, rows, real))(features[orders])
        bound = bind_support(meta, support)
        how = {"sharpness": self.sharpness, "read_steps": self.read_steps}
        predictor = FullContext(bound, embedded, support.y[orders], real, **how)
        return predictor, Info(repeat(predictor, 1))


def embed_sequence(meta: FCEMeta, rows: Float[Array, "n f"], real: Bool[Array, " n"]) -> Float[Array, "n f"]:
    """Compute g of every support example; unmasked rows come first."""
    forwards, _ = read(meta.forwards, rows, real)
    backwards, _ = read(meta.backwards, rows, real, reverse=True)
    return rows + forwards + backwards


def unit(rows: Float[Array, "n f"]) -> Float[Array, "n f"]:
    """Normalise each row to unit length."""
    return rows * jax.lax.rsqrt(jnp.square(rows).sum(1, keepdims=True) + SMALL)

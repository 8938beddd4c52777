"""Matching networks (Vinyals et al. 2016) without full-context embeddings: attention over the support examples.

p(y | x) = Σⱼ a(x, xⱼ) yⱼ,   a = softmaxⱼ(s · cos(f(x), f(xⱼ)))     (s = 1 in that paper; a larger one learns faster)
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.inner import repeat
from metagrove.learner import Info, Learner, NetFn
from metagrove.losses import LossFn, cross_entropy
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.layers import without_head
from metagrove.nets.predictors import bind_support
from metagrove.task import Examples, Spec

__all__ = ["MatchingNet"]

SMALL = 1e-8


class Matched(eqx.Module):
    """Predictor: the net, and the normalised features and labels of the support set."""

    net: Any
    directions: Float[Array, "*_ n f"]
    labels: Float[Array, "*_ n k"]
    real: Bool[Array, "*_ n"]
    sharpness: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "q ..."], mask: Bool[Array, " q"] | None = None) -> Float[Array, "q k"]:
        cosines = unit(self.net.features(x, mask)) @ self.directions.T
        weights = jax.nn.softmax(self.sharpness * cosines, axis=1, where=self.real[None])
        return jnp.log(weights @ self.labels + SMALL)


@dataclasses.dataclass(frozen=True)
class MatchingNet(Learner):
    """Matching networks: classification by cosine similarity to every support example, without gradient steps.

    From Matching Networks for One Shot Learning (Vinyals et al. 2016).
    """

    loss: LossFn = cross_entropy
    """Query loss."""
    net: Conv4Net | NetFn = Conv4Net()
    """Settings of the net whose penultimate layer gives the features."""
    sharpness: float = 10.0
    """Inverse temperature (s) that multiplies the cosines."""

    inner_steps: ClassVar[int] = 0
    any_ways: ClassVar[bool] = True

    def validation_errors(self) -> list[str]:
        return [] if self.sharpness > 0 else [f"sharpness must be positive, got {self.sharpness}"]

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Any:
        return without_head(self.net(spec, key=key), "Matching networks")

    def adapt(
        self, meta: Any, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Matched, Info]:
        del key, steps  # there is no inner loop: the path has one predictor
        directions = unit(meta.features(support.x, support.mask))
        net = bind_support(meta, support)
        predictor = Matched(net, directions, support.y, support.mask, self.sharpness)
        return predictor, Info(repeat(predictor, 1))


def unit(rows: Float[Array, "n f"]) -> Float[Array, "n f"]:
    """Normalise each row to unit length."""
    return rows * jax.lax.rsqrt(jnp.square(rows).sum(1, keepdims=True) + SMALL)

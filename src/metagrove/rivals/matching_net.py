"""Matching networks (Vinyals et al. 2016), without its full-context embeddings: a query looks at every support example.

p(y | x) = Σⱼ a(x, xⱼ) yⱼ,   a = softmaxⱼ(s · cos(f(x), f(xⱼ)))     (s = 1 in its paper; a larger one learns faster)
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.inner import repeat
from metagrove.learner import Info, Learner, LossFn, NetFn
from metagrove.losses import cross_entropy
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.layers import without_head
from metagrove.nets.predictors import bind_support
from metagrove.task import Examples, Spec

SMALL = 1e-8


class Matched(eqx.Module):
    """The net, and the support set in its features."""

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
    """Classifies by cosine similarity to every support example in a learned space of features: no gradient step."""

    loss: LossFn = cross_entropy
    """Query loss."""
    net: Conv4Net | NetFn = Conv4Net()
    """The net whose last layer but one gives the features."""
    sharpness: float = 10.0
    """s, by which cosines are multiplied."""

    inner_steps: ClassVar[int] = 0

    def validation_errors(self) -> list[str]:
        return [] if self.sharpness > 0 else [f"sharpness must be positive, got {self.sharpness}"]

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Any:
        return without_head(self.net(spec, key=key), "Matching networks")

    def adapt(
        self, meta: Any, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Matched, Info]:
        """However many steps are asked for, there are none: the path has one predictor."""
        del key, steps
        directions = unit(meta.features(support.x, support.mask))
        net = bind_support(meta, support)
        predictor = Matched(net, directions, support.y, support.mask, self.sharpness)
        return predictor, Info(repeat(predictor, 1))


def unit(rows: Float[Array, "n f"]) -> Float[Array, "n f"]:
    """Each row divided by its length."""
    return rows * jax.lax.rsqrt(jnp.square(rows).sum(1, keepdims=True) + SMALL)

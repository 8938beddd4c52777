"""Prototypical networks (Snell et al. 2017): a class is represented by the mean of the features of its examples.

c_k = mean of f(xⱼ) over the support of class k,   p(y = k | x) = softmax_k(-‖f(x) - c_k‖²)
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
from metagrove.nets.few_shot import FewShotNet, num_features
from metagrove.nets.layers import AfterLayer, without_head
from metagrove.nets.predictors import PlainLayers, bind_support, plain_layers
from metagrove.nets.prototypes import NEVER, SetAttention, class_prototypes, prototype_layer
from metagrove.task import Examples, Spec

__all__ = ["ProtoNet"]


class Prototypes(eqx.Module):
    """Predictor: the net, and the prototype of each class in its feature space."""

    net: Any
    centers: Float[Array, "*_ k f"]
    known: Bool[Array, "*_ k"]

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n k"]:
        offsets = self.net.features(x, mask)[:, None] - self.centers[None]
        return jax.nn.log_softmax(jnp.where(self.known[None], -jnp.square(offsets).sum(-1), NEVER))

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """The net's layers, and a last one 2 f·c - ‖c‖²: the softmax does not see the distance's other term, ‖f‖²."""
        last = prototype_layer(self.centers, self.known)
        return PlainLayers((*plain_layers(self.net, after_layer).layers, last), classifies=True)


@dataclasses.dataclass(frozen=True)
class ProtoNet(Learner):
    """Prototypical networks: classification by the nearest class mean in feature space, without gradient steps.

    From Prototypical Networks for Few-shot Learning (Snell et al. 2017).
    """

    loss: LossFn = cross_entropy
    """Query loss."""
    net: Conv4Net | NetFn = Conv4Net()
    """Settings of the net whose penultimate layer gives the features."""

    set_attention: bool = False
    """Let the prototypes attend to each other (FEAT)."""

    inner_steps: ClassVar[int] = 0
    any_ways: ClassVar[bool] = True

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Any:
        net = without_head(self.net(spec, key=key), "ProtoNet")
        if not self.set_attention:
            return net
        return FewShotNet(net, attention=SetAttention(num_features(net, spec), key=jax.random.fold_in(key, 1)))

    def adapt(
        self, meta: Any, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Prototypes, Info]:
        del key, steps  # there is no inner loop: the path has one predictor
        features = meta.features(support.x, support.mask)
        centers, known = class_prototypes(features, support, getattr(meta, "attention", None))
        predictor = Prototypes(bind_support(meta, support), centers, known)
        return predictor, Info(repeat(predictor, 1))

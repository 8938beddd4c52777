"""Meta-SGD (Li et al. 2017): MAML with a learned inner learning rate, of either sign, for each parameter.

θᵗ⁺¹ = θᵗ - A ∘ ∇L(θᵗ; support),   Θ = (θ⁰, A)
"""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

from metagrove.inner import GradientLearner, Params
from metagrove.learner import Info, Predictor
from metagrove.nets.few_shot import start_head
from metagrove.task import Examples, Spec, unpadded

__all__ = ["MetaSGD"]


class MetaSGDMeta(eqx.Module):
    """Θ: the shared initialisation, and the learning rates A in the same structure."""

    net: Predictor
    rates: Params


@dataclasses.dataclass(frozen=True)
class MetaSGD(GradientLearner):
    """MAML with a learned inner learning rate for every parameter; `inner_lr` is their initial value.

    From Meta-SGD: Learning to Learn Quickly for Few-Shot Learning (Li et al. 2017).
    """

    takes: ClassVar[tuple[str, ...]] = ("head", "adapts")

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> MetaSGDMeta:
        net = self.make_net(spec, key=key)
        started = start_head(net, unpadded(jnp.zeros((1, *spec.x_shape)), jnp.zeros((1, spec.y_dim))))
        params = eqx.filter(started, self.adapted_mask(started))
        return MetaSGDMeta(net, jax.tree.map(lambda leaf: jnp.full_like(leaf, self.inner_lr), params))

    def adapt(
        self, meta: MetaSGDMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        rule = optax.stateless(lambda grads, _: jax.tree.map(lambda a, g: -a * g, meta.rates, grads))
        adapted, path = self.fit(meta.net, support, steps, rule=rule)
        return adapted, Info(path)

"""Meta-SGD (Li et al. 2017): MAML whose step size is learned, a number of its own and of either sign per parameter.

θᵗ⁺¹ = θᵗ - A ∘ ∇L(θᵗ; support),   Θ = (θ⁰, A)
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

from metagrove.inner import GradientLearner, Params
from metagrove.learner import Info, Predictor
from metagrove.task import Examples, Spec


class MetaSGDMeta(eqx.Module):
    """Θ: the shared initialisation and A, in its structure."""

    net: Predictor
    rates: Params


@dataclasses.dataclass(frozen=True)
class MetaSGD(GradientLearner):
    """MAML that learns a step size for every parameter; `--inner-lr` is where all of them start."""

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> MetaSGDMeta:
        net = self.net(spec, key=key)
        params = eqx.filter(net, eqx.is_inexact_array)
        return MetaSGDMeta(net, jax.tree.map(lambda leaf: jnp.full_like(leaf, self.inner_lr), params))

    def adapt(
        self, meta: MetaSGDMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        rule = optax.stateless(lambda grads, _: jax.tree.map(lambda a, g: -a * g, meta.rates, grads))
        adapted, path = self.fit(meta.net, support, steps, rule=rule)
        return adapted, Info(path)

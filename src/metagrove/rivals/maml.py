"""MAML (Finn et al. 2017): one shared initialisation, k steps of gradient descent. HSML paper, eq. (1).

θᵗ⁺¹ = θᵗ - α∇L(θᵗ; support),   meta-loss L(θᵏ; query)

ANIL (Raghu et al. 2020) is the same with steps on the head alone: `--adapts head`.
"""

import dataclasses
from typing import Literal

import equinox as eqx
from jaxtyping import PRNGKeyArray

from metagrove.inner import GradientLearner, trainable_mask
from metagrove.learner import Info, Predictor
from metagrove.nets.layers import require_layers
from metagrove.task import Examples, Spec


@dataclasses.dataclass(frozen=True)
class MAML(GradientLearner):
    """One shared initialisation for all tasks, adapted by gradient steps. `meta` is the base net itself."""

    adapts: Literal["all", "head"] = "all"
    """Which parameters the inner steps change: all of them, or the last layer's alone (that is ANIL)."""

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Predictor:
        net = self.net(spec, key=key)
        return net if self.adapts == "all" else require_layers(net, "--adapts head")

    def adapt(
        self, meta: Predictor, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        adapts = eqx.is_inexact_array if self.adapts == "all" else trainable_mask(meta, lambda net: net.head)
        adapted, path = self.fit(meta, support, steps, adapts=adapts)
        return adapted, Info(path)

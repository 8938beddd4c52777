"""Training from scratch: the baseline without meta-learning, a random net trained by Adam on the support set."""

import dataclasses
from typing import ClassVar

import jax
import optax
from jaxtyping import PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import GradientLearner
from metagrove.learner import Info, Predictor
from metagrove.nets.mlp import MLPNet
from metagrove.task import Examples, Spec

__all__ = ["Scratch"]


@dataclasses.dataclass(frozen=True)
class Scratch(GradientLearner):
    """Training from scratch: the same random net is trained on each support set; nothing is meta-learned.

    One meta-step of training is enough, since `meta` is never updated.
    """

    takes: ClassVar[tuple[str, ...]] = ()

    net: MLPNet = MLPNet(init_sd=0.3)
    """Settings of the net."""
    inner_lr: float = 0.01
    """Learning rate of Adam."""
    updates_per_step: int = 100
    """Number of Adam updates that count as one inner step: 10 inner steps are 1,000 updates."""

    def validation_errors(self) -> list[str]:
        needless = ["first_order has no effect here: nothing is meta-learned"] if self.first_order else []
        return super().validation_errors() + check_at_least_one(self, "updates_per_step") + needless

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Predictor:
        return self.net(spec, key=key)

    def adapt(
        self, meta: Predictor, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        fresh = jax.lax.stop_gradient(meta)  # so that training leaves it unchanged
        how = {"rule": optax.adam(self.inner_lr), "updates_per_step": self.updates_per_step}
        adapted, path = self.fit(fresh, support, steps, **how)
        return adapted, Info(path)

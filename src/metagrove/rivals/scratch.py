"""The yardstick that knows no other task: a net as it was drawn, trained by Adam on the support set alone."""

import dataclasses

import jax
import optax
from jaxtyping import PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import GradientLearner
from metagrove.learner import Info, Predictor
from metagrove.nets.mlp import MLPNet
from metagrove.task import Examples, Spec


@dataclasses.dataclass(frozen=True)
class Scratch(GradientLearner):
    """Learns nothing from other tasks: trains the same random net on each support set. One meta-step is enough."""

    net: MLPNet = MLPNet(init_sd=0.3)
    """The net."""
    inner_lr: float = 0.01
    """Adam's step size."""
    updates_per_step: int = 100
    """Adam's updates that count as one inner step, so that 10 of them are 1,000 updates."""

    def validation_errors(self) -> list[str]:
        needless = ["first_order has no meaning here: nothing is meta-learned"] if self.first_order else []
        return super().validation_errors() + check_at_least_one(self, "updates_per_step") + needless

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Predictor:
        return self.net(spec, key=key)

    def adapt(
        self, meta: Predictor, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        """`meta` is the fresh net; no gradient reaches it, so that training leaves it as it was drawn."""
        del key  # nothing here is random
        fresh = jax.lax.stop_gradient(meta)
        how = {"rule": optax.adam(self.inner_lr), "updates_per_step": self.updates_per_step}
        adapted, path = self.fit(fresh, support, steps, **how)
        return adapted, Info(path)

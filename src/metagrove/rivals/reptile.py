"""Reptile (Nichol et al. 2018): move the initialisation towards the parameters adapted to each task.

θᵏ = k steps of SGD from θ⁰ on all examples of the task,   meta-gradient θ⁰ - θᵏ, that of ½‖θ⁰ - stopgrad(θᵏ)‖²
"""

import dataclasses

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.inner import GradientLearner, squared_distance
from metagrove.learner import Info, Predictor
from metagrove.nets.predictors import bind_support
from metagrove.task import Examples, Spec, Task, join

__all__ = ["Reptile"]


@dataclasses.dataclass(frozen=True)
class Reptile(GradientLearner):
    """Reptile: moves the initialisation towards the adapted parameters, without second derivatives or query loss.

    From On First-Order Meta-Learning Algorithms (Nichol et al. 2018).
    """

    def validation_errors(self) -> list[str]:
        needless = (
            ["first_order has no effect here: Reptile never differentiates its inner steps"] if self.first_order else []
        )
        return super().validation_errors() + needless

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Predictor:
        return self.net(spec, key=key)

    def adapt(
        self, meta: Predictor, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        adapted, path = self.fit(meta, support, steps)
        return adapted, Info(path)

    def meta_loss(self, meta: Predictor, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute ½‖θ⁰ - stopgrad(θᵏ)‖², where θᵏ is adapted to support and query examples.

        Args:
            meta: The base net at θ⁰.
            task: A training task.
            key: Passed to `adapt`.

        Returns:
            The loss, and the Info of the adaptation.
        """
        examples = join(task.support, task.query)
        adapted, info = self.adapt(meta, examples, key=key)
        known_loss = self.loss(adapted(examples.x, examples.mask), examples.y, examples.mask)
        distance = squared_distance(bind_support(meta, examples), jax.lax.stop_gradient(adapted))
        return distance / 2, dataclasses.replace(info, metrics={"known_loss": known_loss})

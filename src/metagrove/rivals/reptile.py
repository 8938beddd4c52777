"""Reptile (Nichol et al. 2018): go some steps on a task, then move the start towards where they led.

θᵏ = k steps of SGD from θ⁰ on all of the task's examples,   meta-gradient θ⁰ - θᵏ, that of ½‖θ⁰ - stopgrad(θᵏ)‖²
"""

import dataclasses

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.inner import GradientLearner, squared_distance
from metagrove.learner import Info, Predictor
from metagrove.nets.predictors import bind_support
from metagrove.task import Examples, Spec, Task, join


@dataclasses.dataclass(frozen=True)
class Reptile(GradientLearner):
    """Moves the initialisation towards the tasks' adapted parameters: no second derivative, no query loss."""

    def validation_errors(self) -> list[str]:
        needless = (
            ["first_order has no meaning here: Reptile never differentiates its steps"] if self.first_order else []
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
        """½‖θ⁰ - stopgrad(θᵏ)‖². In training all examples are known, so the query's are learned from as well."""
        examples = join(task.support, task.query)
        adapted, info = self.adapt(meta, examples, key=key)
        known_loss = self.loss(adapted(examples.x, examples.mask), examples.y, examples.mask)
        distance = squared_distance(bind_support(meta, examples), jax.lax.stop_gradient(adapted))
        return distance / 2, dataclasses.replace(info, metrics={"known_loss": known_loss})

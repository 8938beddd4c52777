"""MAML (Finn et al. 2017): one shared initialisation and k steps of gradient descent; eq. (1) of the HSML paper.

θᵗ⁺¹ = θᵗ - α∇L(θᵗ; support),   meta-loss L(θᵏ; query)

ANIL (Raghu et al. 2020) adapts only the last layer, `--adapts head`; BOIL (Oh et al. 2021) all but the last, `--adapts
body`; Proto-MAML (Triantafillou et al. 2020) sets the last layer from class prototypes, `--head prototypes`.
"""

import dataclasses

from jaxtyping import PRNGKeyArray

from metagrove.inner import GradientLearner
from metagrove.learner import Info, Predictor
from metagrove.task import Examples, Spec

__all__ = ["MAML"]


@dataclasses.dataclass(frozen=True)
class MAML(GradientLearner):
    """Model-agnostic meta-learning: one shared initialisation, adapted by gradient steps.

    From Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks (Finn et al. 2017); with `adapts="head"`
    it is ANIL (Raghu et al. 2020), with `adapts="body"` BOIL (Oh et al. 2021), with `head="prototypes"` Proto-MAML
    (Triantafillou et al. 2020). `meta` is the base net itself.

    Example:
        >>> import jax
        >>> import metagrove as mg
        >>> learner = mg.MAML(inner_lr=0.01, inner_steps=5)
        >>> task = mg.Functions().sample(jax.random.key(0))
        >>> meta = learner.init(mg.Functions().spec, key=jax.random.key(1))
        >>> predictor, info = learner.adapt(meta, task.support)
        >>> predictor(task.query.x).shape
        (10, 1)
    """

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Predictor:
        return self.make_net(spec, key=key)

    def adapt(
        self, meta: Predictor, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        adapted, path = self.fit(meta, support, steps)
        return adapted, Info(path)

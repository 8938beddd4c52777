"""MAML (Finn et al. 2017): one shared initialisation, k steps of gradient descent. HSML paper, eq. (1)."""

import dataclasses

from jaxtyping import PRNGKeyArray

from metagrove.inner import adapt_net, inner_problems, sgd
from metagrove.learner import Info, Learner, NetFn, Predictor
from metagrove.nets.mlp import MLPNet
from metagrove.task import Examples, Spec


@dataclasses.dataclass(frozen=True)
class MAML(Learner):
    """One shared initialisation for all tasks, adapted by gradient steps. `meta` is the base net itself."""

    net: MLPNet | NetFn = MLPNet()
    """The base net."""
    inner_lr: float = 0.001
    """α, the inner loop's step size."""
    inner_steps: int = 5
    """Inner steps in training."""
    first_order: bool = False
    """Leave second derivatives out of the meta-gradient."""

    def problems(self) -> list[str]:
        return inner_problems(self.inner_lr, self.inner_steps)

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Predictor:
        return self.net(spec, key=key)

    def adapt(
        self, meta: Predictor, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        del key  # nothing here is random
        steps = self.inner_steps if steps is None else steps
        adapted, path = adapt_net(meta, support, self.loss, sgd(self.inner_lr), steps, first_order=self.first_order)
        return adapted, Info(path)

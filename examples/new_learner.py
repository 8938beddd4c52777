"""A new learner in one file: copy this, rename the class, change `init` and `adapt`.

Name the paper and show its recursion here. This one is MAML with a learned inner learning rate:
θᵗ⁺¹ = θᵗ - exp(a) ∇L(θᵗ; support),   Θ = (θ⁰, a)

python examples/new_learner.py [meta-steps]
"""

import dataclasses
import sys

import jax.numpy as jnp
import optax

from metagrove.inner import GradientLearner
from metagrove.learner import Info


@dataclasses.dataclass(frozen=True)
class LearnedRate(GradientLearner):
    """MAML with a learned inner learning rate."""

    initial_rate: float = 0.01
    """A hyperparameter is a field; the docstring below it is its help on the command line."""

    def init(self, spec, *, key):
        """Θ, everything the outer loop trains: a pytree of arrays and modules."""
        return {"net": self.net(spec, key=key), "log_rate": jnp.log(jnp.float32(self.initial_rate))}

    def adapt(self, meta, support, *, key=None, steps=None):
        """Return the predictor after `steps` inner steps on the support set, and the predictors after each step."""
        predictor, path = self.fit(meta["net"], support, steps, rule=optax.sgd(jnp.exp(meta["log_rate"])))
        return predictor, Info(path)


if __name__ == "__main__":
    import metagrove as mg

    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    run = mg.train("toy-quick", learner=LearnedRate(), steps=n, validate_every=n, out="runs/example-new-learner")
    print(run.adapt([0.0, 1.0, 2.0], [0.0, 2.0, 4.0]).predict([3.0]))

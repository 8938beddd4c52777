"""A task source, a base net and a loss of one's own: python examples/own_problem.py [meta-steps]."""

import dataclasses
import sys

import equinox as eqx
import jax
import jax.numpy as jnp

import metagrove as mg

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000


@dataclasses.dataclass(frozen=True)
class Decays(mg.Source):
    """Exponential decays, five points each; the rate differs between tasks."""

    spec = property(lambda self: mg.Spec(x_shape=(1,), y_dim=1))

    def sample(self, key):
        rate_key, x_key = jax.random.split(key)
        x = jax.random.uniform(x_key, (10, 1), maxval=4.0)
        y = jnp.exp(-jax.random.uniform(rate_key, minval=0.2, maxval=3.0) * x)
        support, query = (mg.Examples(x[rows], y[rows], jnp.ones(5, bool)) for rows in (slice(0, 5), slice(5, 10)))
        return mg.Task(support, query, family=jnp.zeros((), int))


def net(spec, *, key):
    return mg.per_example(eqx.nn.MLP(spec.x_shape[0], spec.y_dim, width_size=16, depth=2, key=key))


def absolute_error(prediction, y, mask):
    return jnp.where(mask[:, None], jnp.abs(prediction - y), 0.0).sum() / mask.sum()


learner = mg.MAML(net=net, loss=absolute_error, inner_lr=0.05)
run = mg.train("toy-quick", source=Decays(), learner=learner, steps=steps, validate_every=steps, out="runs/own-problem")
print(run.adapt([0.5, 1.0, 2.0], [0.61, 0.37, 0.14]).predict([3.0]), "truth 0.05")

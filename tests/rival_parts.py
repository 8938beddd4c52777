"""What tests of rivals share: comparisons of two learners."""

import equinox as eqx
import jax
import numpy as np

from metagrove import Functions

SPEC = Functions().spec
KEY = jax.random.key(0)


def loss_and_grads(learner, meta, task):
    """The meta-loss of a task and its gradient, with the same randomness in each call."""
    fn = eqx.filter_value_and_grad(lambda meta: learner.meta_loss(meta, task, key=jax.random.key(2))[0])
    return eqx.filter_jit(fn)(meta)


def assert_trees_close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)

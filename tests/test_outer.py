"""The meta-gradient in groups."""

import equinox as eqx
import jax
import numpy as np
import pytest
from conftest import LEARNERS

from metagrove import Functions
from metagrove.outer import meta_gradient, num_groups


@pytest.mark.parametrize("in_flight", [1, 4, 5])
def test_groups_give_the_same_gradient(in_flight):
    learner = LEARNERS["maml"]
    meta = learner.init(Functions().spec, key=jax.random.key(0))
    tasks = jax.vmap(Functions().sample)(jax.random.split(jax.random.key(1), 12))
    gradient = eqx.filter_jit(meta_gradient)
    whole = gradient(learner, meta, tasks, key=jax.random.key(2))
    parts = gradient(learner, meta, tasks, key=jax.random.key(2), task_chunk_size=in_flight)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), whole, parts)


def test_groups_are_equal_and_small_enough():
    cases = [(25, 400), (1600, 400), (25, 24), (7, 3), (12, 5)]
    assert [num_groups(*case) for case in cases] == [1, 4, 5, 7, 3]

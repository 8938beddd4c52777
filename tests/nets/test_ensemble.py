"""Ensembles: members that convolve are computed one after another, with the same results."""

import equinox as eqx
import jax
import numpy as np

from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.ensemble import map_members
from metagrove.task import Spec


class Marked(eqx.Module):
    """A net with a leaf that is no array, as a person's own net may have."""

    net: eqx.Module
    activation: object


def test_convolving_members_one_after_another_are_what_they_are_at_once():
    make = Conv4Net(filters=2, blocks=1)
    nets = eqx.filter_vmap(lambda key: make(Spec((4, 4, 3), 2), key=key))(jax.random.split(jax.random.key(0), 3))
    x = jax.random.uniform(jax.random.key(1), (5, 4, 4, 3))

    def answers(one):
        return one.net(x), one

    members = Marked(nets, jax.nn.relu)
    (found, again), (expected, _) = map_members(answers, members), eqx.filter_vmap(answers)(members)
    assert found.shape == (3, 5, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert again.activation is jax.nn.relu
    jax.tree.map(np.testing.assert_array_equal, eqx.filter(again, eqx.is_array), eqx.filter(members, eqx.is_array))
    loop = jax.make_jaxpr(lambda arrays: map_members(lambda net: net(x), arrays))(nets)
    assert any(equation.primitive.name == "scan" for equation in loop.eqns)

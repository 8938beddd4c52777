"""A gate whose nodes own little: masses, what it starts as, what it changes, and path dropout."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import hsml

from metagrove import Functions
from metagrove.config.config import Config, Growth, Training, check_config
from metagrove.errors import InputError
from metagrove.hsml.small_gate import TaskShifts, node_masses
from metagrove.nets.few_shot import small_parameters
from metagrove.rivals.maml import MAML

SOURCE = Functions()
TASK = SOURCE.sample(jax.random.key(3))
LEARNER = hsml(embed="mean", gate="small", layer_rates=True)
META = LEARNER.init(SOURCE.spec, key=jax.random.key(0))


def test_mass_flows_up_the_tree():
    first, second = np.array([[0.7, 0.2, 0.1]]), np.array([[0.9, 0.1], [0.5, 0.5], [0.0, 1.0]])
    masses = node_masses((jnp.array(first), jnp.array(second), jnp.ones((2, 1))))
    np.testing.assert_allclose(masses, [0.7, 0.2, 0.1, 0.73, 0.27], rtol=1e-6)
    assert node_masses((jnp.ones((1, 1)),)).shape == (0,)


def test_it_starts_as_maml_and_a_node_moves_only_what_it_owns():
    maml = MAML(net=LEARNER.net, inner_steps=LEARNER.inner_steps, layer_rates=True)
    expected = maml.adapt(META.net, TASK.support)[0](TASK.query.x)
    np.testing.assert_allclose(LEARNER.adapt(META, TASK.support)[0](TASK.query.x), expected, rtol=1e-5)
    nodes, owned = META.gate.shifts.shape
    assert (nodes, owned) == (3 + 2, 8 + 2)  # shifts of eight hidden units, rates of two layers
    shifts = jax.random.normal(jax.random.key(1), (nodes, owned))
    moved = eqx.tree_at(lambda meta: meta.gate.shifts, META, shifts)
    placement, _ = LEARNER.place(moved, TASK.support)
    gated = moved.gate(moved.net, placement)
    change = node_masses(placement.assignments) @ shifts
    (film, rates) = small_parameters(gated, ("film", "rates"))
    np.testing.assert_allclose(film[0], META.net.net.biases[0] + change[:8], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rates, META.net.log_rates + change[8:], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(gated.net.weights[0], META.net.net.weights[0])
    np.testing.assert_array_equal(gated.head[1], META.net.head[1])


def test_path_dropout_uses_the_root_alone_in_a_part_of_training_tasks():
    gate = TaskShifts(jnp.ones((5, 10)), META.gate.owns, 0.2)
    placement, _ = LEARNER.place(META, TASK.support)

    def moves(key):
        return jnp.abs(gate(META.net, placement, key=key).log_rates - META.net.log_rates).max() > 0

    assert moves(None)
    share = np.asarray(jax.vmap(moves)(jax.random.split(jax.random.key(0), 2000))).mean()
    assert share == pytest.approx(0.8, abs=0.03)  # sd .009


def test_what_it_cannot_do_is_refused_in_words():
    evidence = dataclasses.replace(LEARNER, cluster=hsml(cluster="evidence").cluster)
    assert "a small gate needs clusters by distance: use --gate node with evidence clusters" in (
        evidence.validation_errors()
    )
    assert hsml(gate="small", path_dropout=1.0).validation_errors() == [
        "path_dropout must be from 0 to below 1, got 1.0"
    ]
    with pytest.raises(InputError, match="growth_window must be 0 with a small gate"):
        check_config(Config(SOURCE, LEARNER, Training(growth=Growth(growth_window=100))))

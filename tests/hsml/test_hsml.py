"""HSML as a whole: the authors' parameter count, the gate's equation, and MAML as its special case."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS, TINY_NET, hsml

from metagrove import HSML, MAML, Functions
from metagrove.hsml.gate import NoGate, ParameterGate
from metagrove.learner import num_parameters
from metagrove.nets.gate import GateLayer
from metagrove.task import unpadded

SPEC = Functions().spec


def test_every_parameter_of_the_authors_configuration_is_accounted_for():
    meta = HSML().init(SPEC, key=jax.random.key(0))
    d = 40
    assert num_parameters(meta.net) == 1_761
    assert num_parameters(meta.gate) == 142_641
    authors = 171_644
    a_bias_more_in_each_gru = 2 * d  # equinox's cell has a bias of its own for the candidate's recurrent part
    two_centers_for_a_linear_gate = 2 * d - (2 * d + 2)  # eq. (6) at level 2, where the authors' code has a softmax
    assert num_parameters(meta) == authors + a_bias_more_in_each_gru + two_centers_for_a_linear_gate == 171_722


def test_first_values_are_those_of_the_authors_code():
    meta = HSML().init(SPEC, key=jax.random.key(0))
    encoder = meta.embed.aggregator.encoder
    np.testing.assert_array_equal(encoder.bias, np.repeat([1.0, 1.0, 0.0], 40))
    assert float(jnp.abs(meta.net.weights[1]).max()) <= 0.02
    assert float(meta.net.weights[1].std()) == pytest.approx(0.0088, rel=0.1)  # .01, truncated at two sd
    centers = meta.cluster.levels[0].centers
    limit = math.sqrt(6 / 41)
    assert 0.9 * limit < float(jnp.abs(centers).max()) <= limit
    assert float(meta.embed.aggregator.head.weight.std()) == pytest.approx(1.0, rel=0.1)
    assert [level.scale for level in meta.cluster.levels] == [math.sqrt(2), 1.0, 1.0]


def test_gate_equals_its_equation_tensor_by_tensor():
    params = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.array([4.0])}
    gate = GateLayer(3, params, "sigmoid", key=jax.random.key(0))
    place = np.array([0.3, -1.0, 2.0], np.float32)
    gated = gate(jnp.asarray(place), params)
    weight = np.array(gate.weight)  # tensors side by side, in the order of the tree: b, then w
    for name, columns in (("b", slice(0, 1)), ("w", slice(1, 5))):
        o = 1 / (1 + np.exp(-(place @ weight[:, columns])))
        np.testing.assert_allclose(gated[name], np.array(params[name]) * o.reshape(params[name].shape), rtol=1e-5)


def test_gate_starts_near_a_half_and_the_affine_one_near_the_identity():
    params, place = jnp.ones(500), jax.random.normal(jax.random.key(1), (80,))
    sigmoid = GateLayer(80, params, "sigmoid", key=jax.random.key(0))(place, params)
    affine = GateLayer(80, params, "affine", key=jax.random.key(0))(place, params)
    assert float(sigmoid.mean()) == pytest.approx(0.5, abs=0.05)
    assert float(affine.mean()) == pytest.approx(1.0, abs=0.05)


def test_affine_gate_equals_its_equation():
    params = jnp.array([2.0, -1.0])
    gate = GateLayer(1, params, "affine", key=jax.random.key(0))
    gate = eqx.tree_at(lambda g: g.weight, gate, jnp.array([[0.5, 1.0, 3.0, -4.0]]))
    np.testing.assert_allclose(gate(jnp.array([2.0]), params), [2 * (1 + 1) + 6, -1 * (1 + 2) - 8], rtol=1e-6)


def test_gate_of_a_rank_is_a_product_of_two_layers():
    params, place = jnp.array([2.0, -1.0, 3.0]), np.array([0.3, -1.0, 2.0, 1.0], np.float32)
    gate = GateLayer(4, params, "sigmoid", rank=2, key=jax.random.key(0))
    assert (gate.inward.shape, gate.weight.shape, gate.bias.shape) == ((4, 2), (2, 3), (3,))
    out = place @ np.array(gate.inward) @ np.array(gate.weight)
    np.testing.assert_allclose(gate(jnp.asarray(place), params), np.array(params) / (1 + np.exp(-out)), rtol=1e-5)
    assert (
        num_parameters(HSML(gate=ParameterGate(gate_rank=3)).init(SPEC, key=jax.random.key(0)).gate)
        == 80 * 3 + 3 * 1_761 + 1_761
    )


def test_the_two_layers_of_a_low_rank_gate_start_apart():
    gate = GateLayer(50, {"w": jnp.zeros(10)}, "sigmoid", rank=10, key=jax.random.key(0))
    first, second = np.ravel(gate.inward)[:100], np.ravel(gate.weight)[:100]
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.5  # 1, if both were drawn with one key


def test_whole_forward_pass_is_embed_then_cluster_then_gate_on_g_and_h():
    learner = LEARNERS["hsml-mean"]
    meta = learner.init(SPEC, key=jax.random.key(3))
    support = unpadded(jnp.array([[1.0], [2.0], [-1.0]]), jnp.array([[0.5], [1.0], [2.0]]))
    _, info = learner.adapt(meta, support, steps=0)
    placement = meta.cluster(info.task_embedding, support)
    flat, _ = jax.flatten_util.ravel_pytree(meta.net)
    place = np.concatenate([info.task_embedding, placement.root_repr])
    gate = 1 / (1 + np.exp(-(place @ np.array(meta.gate.layer.weight) + np.array(meta.gate.layer.bias))))
    first_net = jax.tree.map(lambda leaf: leaf[0], info.path)
    np.testing.assert_allclose(jax.flatten_util.ravel_pytree(first_net)[0], np.array(flat) * gate, rtol=1e-5)
    jax.tree.map(np.testing.assert_allclose, meta.gate(meta.net, placement), first_net)


def test_without_gate_and_reconstruction_it_is_maml_exactly():
    ungated = dataclasses.replace(LEARNERS["hsml-gru"], gate=NoGate(), reconstruction_weight=0.0, inner_lr=0.01)
    maml = MAML(net=TINY_NET, inner_steps=ungated.inner_steps, inner_lr=0.01)
    meta = ungated.init(SPEC, key=jax.random.key(0))
    task = Functions().sample(jax.random.key(5))

    def loss_of(learner):
        return jax.jit(jax.value_and_grad(lambda meta: learner.meta_loss(meta, task, key=jax.random.key(1))[0]))

    loss, grads = loss_of(ungated)(meta)
    maml_loss, maml_grads = loss_of(maml)(meta.net)
    assert float(loss) == float(maml_loss)
    jax.tree.map(np.testing.assert_array_equal, grads.net, maml_grads)
    assert all((np.array(leaf) == 0).all() for leaf in jax.tree.leaves((grads.embed, grads.cluster)))


def test_reconstruction_enters_the_meta_loss_with_its_weight():
    learner = LEARNERS["hsml-mean"]
    meta = learner.init(SPEC, key=jax.random.key(0))
    task = Functions().sample(jax.random.key(5))
    losses = {}
    for weight in (0.0, 0.01, 1.0):
        variant = dataclasses.replace(learner, reconstruction_weight=weight)
        loss, info = variant.meta_loss(meta, task, key=jax.random.key(1))
        losses[weight] = float(loss)
    reconstruction = float(info.metrics["reconstruction_loss"])
    assert reconstruction > 0
    assert losses[1.0] - losses[0.0] == pytest.approx(reconstruction, rel=1e-4)
    assert losses[0.01] - losses[0.0] == pytest.approx(0.01 * reconstruction, rel=1e-2)


def test_query_never_reaches_the_embedding():
    learner = LEARNERS["hsml-attention"]
    meta = learner.init(SPEC, key=jax.random.key(0))
    task = Functions().sample(jax.random.key(5))
    other = dataclasses.replace(task, query=jax.tree.map(lambda rows: rows[:3], task.query), family=task.family + 1)
    infos = [learner.meta_loss(meta, t, key=jax.random.key(1))[1] for t in (task, other)]
    np.testing.assert_array_equal(infos[0].task_embedding, infos[1].task_embedding)


SUPPORT = unpadded(jnp.array([[1.0], [2.0], [-1.0]]), jnp.array([[0.5], [1.0], [2.0]]))


def first_net(learner, meta):
    """θ₀ᵢ of one task, and what the gate read."""
    _, info = learner.adapt(meta, SUPPORT, steps=0)
    return jax.tree.map(lambda leaf: leaf[0], info.path), info


def test_a_directly_generated_initialisation_is_a_layer_with_the_shared_one_as_its_bias():
    learner = hsml(embed="mean", gate="direct")
    meta = learner.init(SPEC, key=jax.random.key(3))
    net, info = first_net(learner, meta)
    assert meta.gate.layer.bias is None
    place = np.concatenate([info.task_embedding, meta.cluster(info.task_embedding, SUPPORT).root_repr])
    shared, _ = jax.flatten_util.ravel_pytree(meta.net)
    generated = place @ np.array(meta.gate.layer.weight) + np.array(shared)
    np.testing.assert_allclose(jax.flatten_util.ravel_pytree(net)[0], generated, rtol=1e-5, atol=1e-6)


def test_film_modulates_hidden_layers_and_inner_steps_leave_its_codes_alone():
    learner = hsml(embed="mean", gate="film", inner_lr=0.01)
    meta = learner.init(SPEC, key=jax.random.key(3))
    adapted, info = learner.adapt(meta, SUPPORT)
    place = np.concatenate([info.task_embedding, meta.cluster(info.task_embedding, SUPPORT).root_repr])
    (layer,) = meta.gate.layers
    gamma, beta = np.split(place @ np.array(layer.weight) + np.array(layer.bias), 2)
    np.testing.assert_allclose(info.path.codes[0], np.tile(np.concatenate([gamma, beta]), (3, 1)), rtol=1e-5)
    assert float(jnp.abs(adapted.net.weights[0] - meta.net.weights[0]).max()) > 0
    before = np.array(SUPPORT.x) @ np.array(meta.net.weights[0]) + np.array(meta.net.biases[0])
    hidden = np.maximum(before * (1 + gamma) + beta, 0)
    output = hidden @ np.array(meta.net.weights[1]) + np.array(meta.net.biases[1])
    np.testing.assert_allclose(first_net(learner, meta)[0](SUPPORT.x), output, rtol=1e-4, atol=1e-6)


def test_without_clusters_the_gate_reads_the_task_embedding_alone():
    learner = hsml(embed="mean", cluster="none")
    meta = learner.init(SPEC, key=jax.random.key(3))
    net, info = first_net(learner, meta)
    weight = np.array(meta.gate.layer.weight)
    assert weight.shape[0] == learner.embed.task_dim == len(info.task_embedding)
    gate = 1 / (1 + np.exp(-(np.array(info.task_embedding) @ weight)))
    flat, _ = jax.flatten_util.ravel_pytree(meta.net)
    np.testing.assert_allclose(jax.flatten_util.ravel_pytree(net)[0], np.array(flat) * gate, rtol=1e-5)
    assert (learner.clusters, learner.cluster_centers(meta), info.assignments[0].tolist()) == ((1,), None, [[1.0]])
    assert hsml(cluster="none", clusters=(4, 1)).validation_errors() == [
        "clusters must be (1,) without clustering, got (4, 1)"
    ]


def test_the_last_state_replaces_the_mean_of_the_outputs():
    learner = hsml(row_order="sorted")
    meta = learner.init(SPEC, key=jax.random.key(3))
    rows = meta.embed.embed_examples(SUPPORT)
    outputs, _ = meta.embed.aggregator.encode(rows, SUPPORT.mask)
    last = hsml(row_order="sorted", summary="last").init(SPEC, key=jax.random.key(3)).embed.aggregator
    np.testing.assert_allclose(meta.embed.aggregator(rows, SUPPORT.mask)[0], outputs.mean(0), rtol=1e-6)
    np.testing.assert_array_equal(last(rows, SUPPORT.mask)[0], outputs[-1])

"""What is special to each rival, by hand or against a slow oracle; what they have in common is in test_learners."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS, TINY_NET

from metagrove import (
    ARML,
    BMAML,
    MAML,
    MUMOMAML,
    Functions,
    MetaSGD,
    MTNet,
    NeuralProcess,
    Reptile,
    Scratch,
    per_example,
)
from metagrove.errors import InputError
from metagrove.losses import cross_entropy
from metagrove.nets.modulation import modulate
from metagrove.nets.recurrent import BidirectionalLSTM
from metagrove.rivals.bmaml import Particles, squared_distances, stein_direction
from metagrove.rivals.mt_net import gumbel_mask
from metagrove.task import Task, unpadded

SPEC = Functions().spec
sample = jax.jit(Functions().sample)
direction_of = jax.jit(stein_direction)


def started(learner):
    return eqx.filter_jit(learner.init)(SPEC, key=jax.random.key(0))


@eqx.filter_jit
def adapt(learner, meta, support, key=None, steps=None):
    return learner.adapt(meta, support, key=key, steps=steps)


@eqx.filter_jit
def loss_of(learner, meta, task):
    return learner.meta_loss(meta, task, key=jax.random.key(2))[0]


class Slope(eqx.Module):
    """y = w x: the smallest net there is, so that every derivative fits on paper."""

    w: jax.Array

    def __call__(self, x, mask=None):
        return self.w * x


def slope_net(spec, *, key):
    return Slope(jnp.full((), 2.0))


def one_point_task():
    """Support (1, 5), query (2, 3). At w the support gradient is 2(w - 5), and the query's 2·2(2w - 3)."""
    point = lambda x, y: unpadded(jnp.array([[x]]), jnp.array([[y]]))  # noqa: E731
    return Task(point(1.0, 5.0), point(2.0, 3.0), jnp.asarray(0))


def grads_of(learner, meta, task):
    return eqx.filter_jit(eqx.filter_grad(lambda meta: learner.meta_loss(meta, task, key=jax.random.key(0))[0]))(meta)


def test_maml_by_hand():
    learner = MAML(net=slope_net, inner_lr=0.1, inner_steps=1)
    meta = started(learner)
    adapted = 2 - 0.1 * 2 * (2 - 5)  # 2.6
    query_gradient = 4 * (2 * adapted - 3)
    assert float(adapt(learner, meta, one_point_task().support)[0].w) == pytest.approx(adapted)
    assert float(grads_of(learner, meta, one_point_task()).w) == pytest.approx(query_gradient * (1 - 0.1 * 2))
    first = dataclasses.replace(learner, first_order=True)
    assert float(grads_of(first, meta, one_point_task()).w) == pytest.approx(query_gradient)


def test_anil_changes_the_head_alone_and_trains_the_body_too():
    learner = LEARNERS["anil"]
    meta, task = started(learner), sample(jax.random.key(1))
    adapted, _ = adapt(learner, meta, task.support)
    np.testing.assert_array_equal(adapted.weights[0], meta.weights[0])
    assert np.abs(np.array(adapted.weights[1] - meta.weights[1])).max() > 0
    assert np.abs(np.array(grads_of(learner, meta, task).weights[0])).max() > 0


def test_meta_sgd_gradient_of_the_step_sizes_by_hand():
    """θ' = θ - a g, so dL/da = -g dL/dθ'."""
    learner = MetaSGD(net=slope_net, inner_lr=0.1, inner_steps=1)
    meta = started(learner)
    assert float(meta.rates.w) == pytest.approx(0.1)
    grads = grads_of(learner, meta, one_point_task())
    support_gradient, query_gradient = 2 * (2 - 5), 4 * (2 * 2.6 - 3)
    assert float(grads.rates.w) == pytest.approx(-support_gradient * query_gradient, rel=1e-5)
    assert float(grads.net.w) == pytest.approx(query_gradient * (1 - 0.1 * 2), rel=1e-5)


def test_meta_sgd_may_step_uphill():
    learner = MetaSGD(net=slope_net, inner_steps=1)
    meta = eqx.tree_at(lambda m: m.rates.w, started(learner), jnp.asarray(-0.1))
    assert float(adapt(learner, meta, one_point_task().support)[0].w) == pytest.approx(2 - 0.6)


def test_gumbel_mask_is_hard_forwards_and_soft_backwards():
    logits, key = jnp.array([0.3, -1.0, 2.0, 0.0]), jax.random.key(4)
    noise = np.array(jax.random.logistic(key, (4,)))
    soft = 1 / (1 + np.exp(-(np.array(logits) + noise) / 0.5))
    mask = gumbel_mask(logits, 0.5, key=key)
    np.testing.assert_allclose(mask, soft > 0.5, atol=1e-6)
    gradient = jax.grad(lambda z: gumbel_mask(z, 0.5, key=key).sum())(logits)
    np.testing.assert_allclose(gradient, soft * (1 - soft) / 0.5, rtol=1e-4)


def test_gumbel_mask_is_one_as_often_as_its_logit_says():
    keys = jax.random.split(jax.random.key(0), 4000)
    masks = jax.jit(jax.vmap(lambda k: gumbel_mask(jnp.array([-1.0, 0.0, 2.0]), 1.0, key=k)))(keys)
    np.testing.assert_allclose(masks.mean(0), 1 / (1 + np.exp([1.0, 0.0, -2.0])), atol=0.03)


def test_mt_net_steps_only_units_that_are_on_and_never_its_transforms():
    learner = LEARNERS["mt-net"]
    meta = started(learner)
    logits = (jnp.where(jnp.arange(8) < 3, 99.0, -99.0), jnp.array([99.0]))
    meta = eqx.tree_at(lambda m: m.logits, meta, logits)
    adapted, _ = adapt(learner, meta, sample(jax.random.key(1)).support, key=jax.random.key(2))
    moved = np.array(adapted.net.weights[0] != meta.predictor.net.weights[0])[0]
    assert not moved[3:].any()
    assert moved[:3].any()
    jax.tree.map(np.testing.assert_array_equal, adapted.transforms, meta.predictor.transforms)


def test_mt_net_layer_is_act_of_xw_plus_b_times_t():
    meta = started(LEARNERS["mt-net"])
    drawn = tuple(jax.random.normal(jax.random.key(i), t.shape) for i, t in enumerate(meta.predictor.transforms))
    predictor = eqx.tree_at(lambda p: p.transforms, meta.predictor, drawn)
    x, net = np.array([[0.5], [-2.0]], np.float32), meta.predictor.net
    hidden = np.maximum((x @ np.array(net.weights[0]) + np.array(net.biases[0])) @ np.array(drawn[0]), 0)
    expected = (hidden @ np.array(net.weights[1]) + np.array(net.biases[1])) @ np.array(drawn[1])
    np.testing.assert_allclose(predictor(jnp.asarray(x)), expected, rtol=1e-4)


@pytest.mark.parametrize("transform", [True, False])
def test_mt_net_with_all_units_on_starts_as_maml(transform):
    learner = MTNet(net=TINY_NET, inner_steps=2, inner_lr=0.01, transform=transform)
    meta = started(learner)
    meta = eqx.tree_at(lambda m: m.logits, meta, jax.tree.map(lambda z: z + 99.0, meta.logits))
    task, maml = sample(jax.random.key(1)), MAML(net=TINY_NET, inner_steps=2, inner_lr=0.01)
    maml_loss = loss_of(maml, meta.predictor.net, task)
    assert float(loss_of(learner, meta, task)) == pytest.approx(float(maml_loss), rel=1e-5)


def test_film_with_zero_codes_is_maml():
    learner = LEARNERS["mumomaml"]
    meta = started(learner)
    meta = eqx.tree_at(lambda m: m.code_layers, meta, jax.tree.map(jnp.zeros_like, meta.code_layers))
    task = sample(jax.random.key(1))
    maml = MAML(net=TINY_NET, inner_steps=learner.inner_steps, inner_lr=learner.inner_lr)
    loss, plain = loss_of(learner, meta, task), loss_of(maml, meta.net, task)
    assert float(loss) == pytest.approx(float(plain), rel=1e-6)
    ours, theirs = grads_of(learner, meta, task), grads_of(maml, meta.net, task)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours.net, theirs)


def test_modulation_by_hand():
    values = jnp.array([[1.0, -2.0]])
    film = modulate(values, jnp.array([0.5, 1.0, 3.0, -4.0]), "film")
    np.testing.assert_allclose(film, [[1 * 1.5 + 3, -2 * 2 - 4]], rtol=1e-6)
    code = jnp.array([0.0, math.log(3)])
    np.testing.assert_allclose(modulate(values, code, "sigmoid"), [[0.5, -2 * 0.75]], rtol=1e-6)
    np.testing.assert_allclose(modulate(values, code, "softmax"), [[0.25, -2 * 0.75]], rtol=1e-6)


@pytest.mark.parametrize("modulation", ["sigmoid", "softmax"])
def test_every_modulation_adapts_the_net_and_not_the_code(modulation):
    learner = dataclasses.replace(LEARNERS["mumomaml"], modulation=modulation, inner_lr=0.1)
    meta = started(learner)
    adapted, info = adapt(learner, meta, sample(jax.random.key(1)).support)
    assert np.abs(np.array(adapted.net.weights[0] - meta.net.weights[0])).max() > 0
    np.testing.assert_array_equal(info.path.codes[0][0], info.path.codes[0][-1])
    assert adapted.codes[0].shape == (8,)


def test_bidirectional_lstm_reads_both_ways_and_skips_padding():
    lstm = BidirectionalLSTM(2, 3, 1, key=jax.random.key(0))
    rows = jax.random.normal(jax.random.key(1), (4, 2))
    read = eqx.filter_jit(lstm)
    code = read(rows, jnp.ones(4, bool))

    def run(cell, order):
        step, state = eqx.filter_jit(cell), (jnp.zeros(3), jnp.zeros(3))
        for i in order:
            state = step(rows[i], state)
        return state[0]

    expected = np.concatenate([run(lstm.forwards[0], range(4)), run(lstm.backwards[0], range(3, -1, -1))])
    np.testing.assert_allclose(code, expected, rtol=1e-5)
    padded = jnp.concatenate([rows, jnp.full((2, 2), 7.0)])
    np.testing.assert_allclose(read(padded, jnp.arange(6) < 4), expected, rtol=1e-5)


def test_stein_direction_of_two_particles_by_hand():
    """Two particles at distance 2: off-diagonal squared distances 4, the median of (0, 0, 4, 4) is 2."""
    particles, scores = jnp.array([[0.0], [2.0]]), jnp.array([[1.0], [10.0]])
    h = 2 / math.log(2)
    k = math.exp(-4 / h)  # exp(-2 log 2) = 1/4
    assert k == pytest.approx(0.25)
    push = 2 / h * k * 2  # of particle 2, away from particle 1
    expected = [[(1 + k * 10 - push) / 2], [(10 + k * 1 + push) / 2]]
    np.testing.assert_allclose(direction_of(particles, scores), expected, rtol=1e-5)


def test_stein_direction_equals_its_definition():
    particles = {"a": jax.random.normal(jax.random.key(0), (5, 2, 3)), "b": jax.random.normal(jax.random.key(1), (5,))}
    scores = jax.tree.map(lambda leaf: leaf**2 - 1, particles)
    flat, flat_scores = (
        np.concatenate([np.array(t["a"]).reshape(5, -1), np.array(t["b"])[:, None]], axis=1)
        for t in (particles, scores)
    )
    distances = np.array([[((p - q) ** 2).sum() for q in flat] for p in flat])
    np.testing.assert_allclose(jax.jit(squared_distances)(particles), distances, rtol=1e-4, atol=1e-5)
    h = np.median(distances) / math.log(5)
    kernel = jax.jit(jax.value_and_grad(lambda p, q: jnp.exp(-((p - q) ** 2).sum() / h)))
    phi = np.zeros_like(flat)
    for i in range(5):
        for j in range(5):
            value, gradient = kernel(flat[j], flat[i])
            phi[i] += value * flat_scores[j] + gradient
    direction = direction_of(particles, scores)
    np.testing.assert_allclose(direction["a"].reshape(5, -1), phi[:, :6] / 5, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(direction["b"], phi[:, 6] / 5, rtol=1e-3, atol=1e-4)


def test_particles_in_one_place_stay_finite():
    same = jnp.ones((3, 2))
    assert np.isfinite(direction_of(same, same)).all()
    assert np.isfinite(jax.jit(jax.grad(lambda p: stein_direction(p, p).sum()))(same)).all()


def test_log_posterior_by_hand():
    learner = BMAML(net=slope_net, noise_prior=(2.0, 0.5), weight_prior=(3.0, 0.25))
    log_noise, log_weight, w = 0.3, -0.2, 2.0
    particle = Particles(Slope(jnp.asarray(w)), jnp.asarray(log_noise), jnp.asarray(log_weight), classifies=False)
    examples = unpadded(jnp.array([[1.0], [2.0]]), jnp.array([[5.0], [3.0]]))
    squares = (2 - 5) ** 2 + (4 - 3) ** 2
    expected = (
        (2 * log_noise - math.exp(log_noise) * squares) / 2
        + (log_weight - math.exp(log_weight) * w**2) / 2
        + (2 * log_noise - 0.5 * math.exp(log_noise))
        + (3 * log_weight - 0.25 * math.exp(log_weight))
    )
    assert float(eqx.filter_jit(learner.log_posterior)(particle, examples)) == pytest.approx(expected, rel=1e-5)


def test_weight_precision_starts_where_its_posterior_is_highest():
    learner = BMAML(net=TINY_NET, weight_prior=(3.0, 5.0))
    meta = started(learner)
    one = jax.tree.map(lambda leaf: leaf[0], meta)
    nothing = unpadded(jnp.zeros((1, 1)), one.nets(jnp.zeros((1, 1))))
    grads = jax.jit(
        jax.grad(lambda log: learner.log_posterior(eqx.tree_at(lambda p: p.log_weight_precision, one, log), nothing))
    )
    assert float(grads(one.log_weight_precision)) == pytest.approx(0.0, abs=1e-3)


def test_chaser_gradient_stops_at_the_leader():
    """The gradient is that of the distance to a constant: 2 (follower - leader) through the follower alone."""
    learner = LEARNERS["bmaml"]
    meta, task = started(learner), sample(jax.random.key(1))
    everything = unpadded(*(jnp.concatenate([getattr(task.support, n), getattr(task.query, n)]) for n in ("x", "y")))

    @eqx.filter_jit
    def through_the_follower(meta):
        follower, vjp = eqx.filter_vjp(lambda meta: learner.adapt(meta, task.support)[0], meta)
        leader, _ = learner.run_svgd(follower, everything, learner.leader_steps)
        return vjp(jax.tree.map(lambda f, lead: 2 * (f - lead), follower, leader))[0]

    expected, grads = through_the_follower(meta), grads_of(learner, meta, task)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), grads, expected)


def test_particles_predict_their_mean_and_their_std():
    particles = Particles(Slope(jnp.array([1.0, 3.0])), jnp.zeros(2) + math.log(4), jnp.zeros(2), classifies=False)
    x = jnp.array([[0.0], [2.0]])
    np.testing.assert_allclose(particles(x), [[0.0], [4.0]])
    np.testing.assert_allclose(particles.std(x), [[0.5], [math.sqrt(4 + 0.25)]], rtol=1e-6)


class Odds(eqx.Module):
    """Log-probabilities that do not look at x."""

    logits: jax.Array

    def __call__(self, x, mask=None):
        return jnp.broadcast_to(jax.nn.log_softmax(self.logits)[None], (len(x), len(self.logits)))


def test_particles_that_classify_average_probabilities():
    """One says 3 : 1, the other 1 : 1."""
    odds = Odds(jnp.array([[math.log(3), 0.0], [0.0, 0.0]]))
    particles = Particles(odds, jnp.zeros(2), jnp.zeros(2), classifies=True)
    x = jnp.zeros((3, 1))
    np.testing.assert_allclose(np.exp(particles(x)), np.tile([(0.75 + 0.5) / 2, (0.25 + 0.5) / 2], (3, 1)), rtol=1e-6)
    np.testing.assert_allclose(particles.std(x), np.full((3, 2), 0.125), rtol=1e-5)


def test_log_posterior_of_a_classifier_by_hand():
    """Its likelihood is a sum over examples, and has no noise."""
    learner = BMAML(net=slope_net, loss=cross_entropy, noise_prior=(2.0, 0.5), weight_prior=(3.0, 0.25))
    particle = Particles(Odds(jnp.array([math.log(3), 0.0])), jnp.asarray(0.3), jnp.asarray(-0.2), classifies=True)
    examples = unpadded(jnp.zeros((3, 1)), jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    expected = (
        2 * math.log(0.75)
        + math.log(0.25)
        + (2 * -0.2 - math.exp(-0.2) * math.log(3) ** 2) / 2
        + (2 * 0.3 - 0.5 * math.exp(0.3))
        + (3 * -0.2 - 0.25 * math.exp(-0.2))
    )
    assert float(eqx.filter_jit(learner.log_posterior)(particle, examples)) == pytest.approx(expected, rel=1e-5)


def test_reptile_moves_towards_the_adapted_parameters():
    learner = Reptile(net=slope_net, inner_lr=0.1, inner_steps=1)
    meta = started(learner)
    gradient = (2 * (2 - 5) + 4 * (2 * 2 - 3)) / 2  # the mean over the task's two examples
    end = 2 - 0.1 * gradient
    assert float(grads_of(learner, meta, one_point_task()).w) == pytest.approx(2 - end, rel=1e-5)


def test_arml_equals_its_equations():
    learner = ARML(net=TINY_NET, prototypes=2, vertices=3, example_dim=4, task_dim=5, scale=1.3)
    meta = started(learner)
    support = unpadded(jnp.array([[1.0], [2.0], [-1.0]]), jnp.array([[0.5], [1.0], [2.0]]))
    _, info = adapt(learner, meta, support, steps=0)
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    softmax = lambda v, axis: np.exp(v) / np.exp(v).sum(axis, keepdims=True)  # noqa: E731
    weights = {name: np.array(layer.weight) for name, layer in (("f", meta.example_net), ("p", meta.prototype_net))}
    examples = np.concatenate([support.x, support.y], axis=1) @ weights["f"]
    prototypes = softmax(examples @ weights["p"], 0).T @ examples
    vertices = np.array(meta.graph.vertices)

    def edges(nodes, layer):
        return np.array([[sigmoid(np.abs(a - b) @ np.array(layer.weight))[0] for b in nodes] for a in nodes])

    squares = np.array([[(((c - h) / 1.3) ** 2).sum() for h in vertices] for c in prototypes])
    links = softmax(-squares / 2, 1)
    np.testing.assert_allclose(info.assignments[0], links.mean(0, keepdims=True), rtol=1e-4)
    adjacency = np.block(
        [[edges(prototypes, meta.graph.task_edge), links], [links.T, edges(vertices, meta.graph.knowledge_edge)]]
    )
    propagated = np.tanh(adjacency @ np.concatenate([prototypes, vertices]) @ np.array(meta.graph.weight))[:2]
    everything = jnp.ones(2, bool)
    place = [
        meta.raw_aggregator(jnp.asarray(prototypes), everything)[0],
        meta.propagated_aggregator(jnp.asarray(propagated), everything)[0],
    ]
    np.testing.assert_allclose(info.task_embedding, np.concatenate(place), rtol=1e-3, atol=1e-5)
    gate = sigmoid(np.concatenate(place) @ np.array(meta.gate.weight) + np.array(meta.gate.bias))
    flat, _ = jax.flatten_util.ravel_pytree(meta.net)
    first_net = jax.tree.map(lambda leaf: leaf[0], info.path)
    np.testing.assert_allclose(jax.flatten_util.ravel_pytree(first_net)[0], np.array(flat) * gate, rtol=1e-3)


def test_neural_process_tells_its_decoder_the_mean_of_the_encodings():
    learner = NeuralProcess(encoder="mean", width=4, input_scale=0.5, attention_heads=1)
    meta = started(learner)
    support = unpadded(jnp.array([[1.0], [2.0]]), jnp.array([[0.5], [1.0]]))
    predictor, info = adapt(learner, meta, support, steps=7)
    each = meta.encoder.net(jax.nn.relu(meta.encoder.inward(jnp.concatenate([support.x, support.y], axis=1) * 0.5)))
    np.testing.assert_allclose(info.task_embedding, each.mean(0), rtol=1e-5)
    told = jnp.concatenate([jnp.array([[3.0 * 0.5]]), each.mean(0)[None]], axis=1)
    np.testing.assert_allclose(predictor(jnp.array([[3.0]])), meta.decoder(told), rtol=1e-5)


def test_scratch_fits_its_support_and_stays_as_it_was_drawn():
    learner = Scratch(inner_steps=5)
    meta, task = started(learner), sample(jax.random.key(3))
    fitted, _ = adapt(learner, meta, task.support)
    assert float(learner.loss(fitted(task.support.x), task.support.y, task.support.mask)) < 0.01
    grads = grads_of(dataclasses.replace(learner, inner_steps=1, updates_per_step=2), meta, task)
    assert all((np.array(leaf) == 0).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("learner", [MTNet, MUMOMAML, lambda net: MAML(net=net, adapts="head")])
def test_a_net_that_cannot_be_looked_into_is_refused(learner):
    def own_net(spec, *, key):
        return per_example(eqx.nn.MLP(1, 1, 4, 1, key=key))

    with pytest.raises(InputError, match="needs a base net with layers, and per_example has no layer_sizes"):
        learner(net=own_net).init(SPEC, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("learner", "problem"),
    [
        (BMAML(particles=1), "particles must be at least 2 (one has no kernel), got 1"),
        (BMAML(weight_prior=(1.0, 0.0)), "weight_prior must be positive, got (1.0, 0.0)"),
        (MAML(inner_clip=-1.0), "inner_clip must be 0 or more, got -1.0"),
        (MTNet(temperature=0.0), "temperature must be positive, got 0.0"),
        (MUMOMAML(encoder_layers=0), "encoder_layers must be at least 1, got 0"),
        (NeuralProcess(width=10, attention_heads=4), "width must be a multiple of attention_heads, got 10 and 4"),
        (Reptile(first_order=True), "first_order has no effect here: Reptile never differentiates its inner steps"),
        (Scratch(updates_per_step=0), "updates_per_step must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_work_are_named(learner, problem):
    assert learner.validation_errors() == [problem]

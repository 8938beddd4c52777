"""Options of any gradient-based learner: each against a value worked out by hand or in NumPy."""

import dataclasses
import hashlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove import ARML, BMAML, HSML, MAML, MUMOMAML, Conv4Net, MetaLSTM, MetaSGD, MLPNet, MTNet, ProtoNet, Reptile
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.embed import PoolingEmbedding
from metagrove.hsml.gate import ParameterGate
from metagrove.losses import cross_entropy
from metagrove.nets.few_shot import FewShotNet, start_head
from metagrove.nets.predictors import bind_support
from metagrove.nets.prototypes import SetAttention
from metagrove.outer import meta_gradient
from metagrove.task import Spec, Task, pad_rows, unpadded

SPEC = Spec(x_shape=(4,), y_dim=3)
IMAGES = Spec(x_shape=(4, 4, 3), y_dim=3)
NET = MLPNet(hidden=(6,), init_sd=0.5, classifies=True)
COMMON = {"loss": cross_entropy, "net": NET, "inner_lr": 0.1, "inner_steps": 1}
TINY_HSML = HSML(
    embed=PoolingEmbedding(example_dim=5, task_dim=4),
    cluster=DistanceClusters(clusters=(2, 2, 1)),
    gate=ParameterGate(gate_form="affine"),
    **COMMON,
)


def examples(seed, labels, spec=SPEC):
    x = jax.random.normal(jax.random.key(seed), (len(labels), *spec.x_shape))
    return unpadded(x, jnp.eye(spec.y_dim)[jnp.array(labels)])


SUPPORT = examples(0, [0, 0, 0, 1, 2])  # three, one and one of a class
QUERY = examples(1, [0, 1, 2, 1])
TASK = Task(SUPPORT, QUERY, jnp.zeros((), int))
TASKS = jax.tree.map(lambda leaf: leaf[None], TASK)


def proto(learner=MAML, **settings):
    return learner(**{**COMMON, "head": "prototypes", **settings})


gradient = eqx.filter_jit(meta_gradient)


def started(learner):
    return eqx.filter_jit(learner.init)(SPEC, key=jax.random.key(1))


@eqx.filter_jit
def adapt(learner, meta, support, steps=None):
    return learner.adapt(meta, support, steps=steps)


def distances(features, centers):
    return np.square(features[:, None] - centers[None]).sum(-1)


def test_the_head_is_the_softmax_of_scaled_distances_to_class_means():
    learner = proto(inner_steps=0)
    net = eqx.tree_at(lambda net: net.log_scale, started(learner), jnp.log(0.7))
    predictor, _ = adapt(learner, net, pad_rows(SUPPORT, 8))
    support, query = (np.asarray(net.features(rows.x)) for rows in (SUPPORT, QUERY))
    labels = np.asarray(SUPPORT.y).argmax(1)
    centers = np.stack([support[labels == k].mean(0) for k in range(3)])
    expected = jax.nn.log_softmax(-0.7 * distances(query, centers))
    np.testing.assert_allclose(predictor(QUERY.x), expected, rtol=1e-4, atol=1e-5)
    weight, bias = predictor.head
    np.testing.assert_allclose(weight, 2 * 0.7 * centers.T, rtol=1e-5)
    np.testing.assert_allclose(bias, -0.7 * np.square(centers).sum(1), rtol=1e-5)


def test_an_absent_class_is_never_predicted_and_gives_finite_gradients():
    two = unpadded(SUPPORT.x[:4], SUPPORT.y[:4])
    learner = proto()
    predictor, _ = adapt(learner, started(learner), two)
    assert float(jnp.exp(predictor(QUERY.x))[:, 2].max()) == 0
    tasks = jax.tree.map(lambda leaf: leaf[None], Task(two, examples(1, [0, 1]), TASK.family))
    _, _, grads = gradient(learner, started(learner), tasks, key=jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_gradients_flow_through_the_head_to_body_and_scale():
    learner = proto()
    net = started(learner)
    arrays, static = eqx.partition(net, eqx.is_inexact_array)

    @jax.jit
    def loss(arrays):
        return learner.meta_loss(eqx.combine(arrays, static), TASK, key=jax.random.key(0))[0]

    grads = jax.grad(loss)(arrays)
    along_scale = eqx.tree_at(lambda net: net.log_scale, jax.tree.map(jnp.zeros_like, arrays), jnp.ones(()))
    along_body = eqx.tree_at(lambda net: net.net, jax.tree.map(jnp.zeros_like, arrays), arrays.net)
    for direction in (along_scale, along_body):
        there, back = (loss(jax.tree.map(lambda a, d, e=e: a + e * d, arrays, direction)) for e in (1e-2, -1e-2))
        slope = sum(jnp.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (grads, direction)), strict=True))
        assert abs(slope) > 1e-4
        np.testing.assert_allclose(slope, (there - back) / 2e-2, rtol=2e-2)


def test_steps_change_the_head_from_its_prototypes_and_leave_the_scale():
    learner = proto()
    net = started(learner)
    predictor, info = adapt(learner, net, SUPPORT, steps=3)
    first = jax.tree.map(lambda leaf: leaf[0] if eqx.is_inexact_array(leaf) else leaf, info.path)
    for at_start, now in zip(first.head, start_head(net, SUPPORT).head, strict=True):
        np.testing.assert_array_equal(at_start, now)
    assert not np.allclose(predictor.head[0], first.head[0])
    np.testing.assert_array_equal(predictor.log_scale, net.log_scale)


ADAPTING = [
    MAML(**COMMON),
    proto(),
    TINY_HSML,
    dataclasses.replace(TINY_HSML, head="prototypes"),
    MUMOMAML(**COMMON, hidden_dim=3, encoder_layers=1, test_permutations=1),
]


@pytest.mark.parametrize("learner", ADAPTING)
@pytest.mark.parametrize("adapts", ["all", "head", "body"])
def test_what_inner_steps_adapt(learner, adapts):
    learner = dataclasses.replace(learner, adapts=adapts)
    assert learner.validation_errors() == []
    _, info = adapt(learner, started(learner), SUPPORT, steps=1)
    net = info.path.net if hasattr(info.path, "codes") else info.path
    net = net.net if isinstance(net, FewShotNet) else net
    moved = [not np.array_equal(path[0], path[1]) for path in (*net.weights, *net.biases)]
    expected = {"all": [True] * 4, "head": [False, True] * 2, "body": [True, False] * 2}
    assert moved == expected[adapts]


def test_rates_of_layers_multiply_the_inner_learning_rate():
    plain, learner = MAML(**COMMON), MAML(**COMMON, layer_rates=True)
    net = started(learner)

    def after(learner, net):
        adapted = adapt(learner, net, SUPPORT, steps=2)[0]
        return jax.tree.leaves(adapted.net if isinstance(adapted, FewShotNet) else adapted)

    for log_rates, same in (
        (jnp.zeros(2), plain),
        (jnp.full(2, jnp.log(3.0)), dataclasses.replace(plain, inner_lr=0.3)),
        (jnp.array([-jnp.inf, 0.0]), dataclasses.replace(plain, adapts="head")),
    ):
        rated = eqx.tree_at(lambda net: net.log_rates, net, log_rates)
        pairs = zip(after(learner, rated), after(same, net.net), strict=True)
        assert all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)
    _, _, grads = gradient(learner, net, TASKS, key=jax.random.key(0))
    assert np.abs(grads.log_rates).min() > 0


def test_attention_starts_as_class_means_and_ignores_absent_classes():
    attention = SetAttention(6, key=jax.random.key(0))
    centers, known = jax.random.normal(jax.random.key(1), (4, 6)), jnp.array([True, True, True, False])
    np.testing.assert_array_equal(attention(centers, known), centers)
    weight = jax.random.normal(jax.random.key(2), (6, 6))
    layer = eqx.tree_at(lambda one: one.mix.weight, attention, weight)
    attention = eqx.filter_jit(layer)
    found = attention(centers, known)
    assert np.abs(found - centers)[:3].min() > 0
    np.testing.assert_array_equal(found[3], centers[3])
    other = attention(centers.at[3].set(100.0), known)
    np.testing.assert_allclose(other[:3], found[:3], rtol=1e-5)
    order = jnp.array([2, 0, 1, 3])
    np.testing.assert_allclose(attention(centers[order], known), found[order], rtol=1e-4, atol=1e-5)
    rows = jax.jit(jax.vmap(layer.norm))(centers)[:3]
    query, key, value = np.split(np.asarray(layer.query_key_value(rows)), 3, axis=1)
    by_hand = np.asarray(jax.nn.softmax(query @ key.T / np.sqrt(6))) @ value @ np.asarray(weight)
    np.testing.assert_allclose(found[:3], centers[:3] + by_hand, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("learner", [proto(set_attention=True), ProtoNet(net=NET, set_attention=True)])
def test_attention_serves_prototype_heads_and_protonet(learner):
    plain = dataclasses.replace(learner, set_attention=False)
    meta, key = started(learner), jax.random.key(0)
    loss, _, _ = gradient(learner, meta, TASKS, key=key)
    np.testing.assert_allclose(loss, gradient(plain, started(plain), TASKS, key=key)[0], rtol=1e-5)
    mix = jax.random.normal(key, meta.attention.mix.weight.shape)
    meta = eqx.tree_at(lambda meta: meta.attention.mix.weight, meta, mix)
    other, _, grads = gradient(learner, meta, TASKS, key=key)
    assert abs(float(other - loss)) > 1e-4
    assert np.abs(grads.attention.query_key_value.weight).max() > 0


def test_scales_of_channels_follow_the_normalisation():
    nets = (Conv4Net(filters=3, blocks=2, channel_scales=own) for own in (False, True))
    plain, scaled = (net(IMAGES, key=jax.random.key(0)) for net in nets)
    x = SUPPORT_IMAGES.x
    np.testing.assert_array_equal(plain.features(x), scaled.features(x))
    scales = tuple(jax.random.normal(jax.random.key(i), (3,)) for i in range(2))
    biases = tuple(jnp.full(3, 0.3) for _ in range(2))
    scaled = eqx.tree_at(lambda net: (net.log_scales, net.biases), scaled, (scales, biases))
    hooked = eqx.tree_at(lambda net: net.biases, plain, (jnp.zeros(3), jnp.zeros(3)))

    def film(layer, values):  # FiLM by hand, after the normalisation
        if layer == 2:
            return values
        return values * jnp.exp(scales[layer])[None, None, None] + biases[layer][None, None, None]

    np.testing.assert_allclose(scaled(x), hooked(x, after_layer=film), rtol=1e-4, atol=1e-5)
    kernels = bind_support(scaled, SUPPORT_IMAGES, "support").as_layers().layers
    unscaled = bind_support(plain, SUPPORT_IMAGES, "support").as_layers().layers
    np.testing.assert_allclose(kernels[0][0], unscaled[0][0] * jnp.exp(scales[0])[None, None, None], rtol=1e-4)


SUPPORT_IMAGES = examples(0, [0, 0, 1, 2], IMAGES)
REFUSED = [
    (MAML(head="prototypes"), "head prototypes is for classification: use --head learned"),
    (MAML(**COMMON, set_attention=True), "set_attention needs prototypes to attend to: use --head prototypes"),
    (proto(Reptile), "head must be learned for Reptile, got prototypes"),
    (BMAML(**{**COMMON, "adapts": "body"}), "adapts must be all for BMAML, got body"),
    (MetaSGD(**COMMON, layer_rates=True), "layer_rates must be False for MetaSGD, got True"),
]


@pytest.mark.parametrize(("learner", "message"), REFUSED)
def test_what_an_option_cannot_do_is_refused_in_words(learner, message):
    assert message in learner.validation_errors()


OPTIONAL = [
    proto(MetaSGD, adapts="head"),
    proto(MTNet),
    proto(MetaLSTM, hidden_dim=2),
    proto(ARML, prototypes=2, vertices=2, example_dim=4, task_dim=4),
    proto(MUMOMAML, layer_rates=True, hidden_dim=3, encoder_layers=1, test_permutations=1),
]


@pytest.mark.parametrize("learner", OPTIONAL, ids=lambda learner: type(learner).__name__)
def test_other_learners_take_the_head_too(learner):
    assert learner.validation_errors() == []
    loss, _, grads = gradient(learner, started(learner), TASKS, key=jax.random.key(0))
    assert np.isfinite(loss)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert adapt(learner, started(learner), SUPPORT, steps=0)[0](QUERY.x).shape == (4, 3)


IMAGE = {**COMMON, "net": Conv4Net(filters=3, blocks=2), "inner_steps": 2}
RECORDED = {  # by the version before these options: checksum of the first meta-parameters, and the meta-loss
    "maml": (MAML(**IMAGE), "36af2651edefc910", 1.4825851),
    "anil": (MAML(**IMAGE, adapts="head"), "36af2651edefc910", 1.0174123),
    "mumomaml": (MUMOMAML(**IMAGE, hidden_dim=3), "f967e85d045518ab", 1.3661056),
    "meta-sgd": (MetaSGD(**IMAGE), "f14d359ceca792ad", 1.4825851),
    "mt-net": (MTNet(**IMAGE), "f6b9ea67aefe81e4", 1.3331102),
    "hsml": (dataclasses.replace(TINY_HSML, net=IMAGE["net"]), "9a54e32ed3865fa0", 1.5629451),
    "protonet": (ProtoNet(net=IMAGE["net"]), "4868c1b28ff875e4", 1.3944278),
}


@pytest.mark.parametrize("name", RECORDED)
def test_without_options_results_are_what_they_were(name):
    learner, checksum, recorded = RECORDED[name]
    meta = learner.init(IMAGES, key=jax.random.key(1))  # as recorded: compiled as a whole, it rounds otherwise
    arrays = jax.tree.leaves(eqx.filter(meta, eqx.is_inexact_array))
    task = Task(SUPPORT_IMAGES, examples(1, [0, 1, 2], IMAGES), jnp.zeros((), int))
    loss, _, _ = gradient(learner, meta, jax.tree.map(lambda a: a[None], task), key=jax.random.key(2))
    assert hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in arrays)).hexdigest()[:16] == checksum
    np.testing.assert_allclose(loss, recorded, rtol=1e-5)  # rounding differs between processors

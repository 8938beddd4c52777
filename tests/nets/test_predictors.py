"""What predictors offer beyond being called: how they bind to a support set, their std, their plain layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove.errors import InputError
from metagrove.nets.conv4 import EPSILON, Conv4, Conv4Net, convolve
from metagrove.nets.layers import without_head
from metagrove.nets.mlp import MLP
from metagrove.nets.modulation import Modulated
from metagrove.nets.per_example import per_example
from metagrove.nets.predictors import BindsSupport, HasLayers, HasStd, bind_support, plain_layers
from metagrove.rivals.bmaml import Particles
from metagrove.rivals.matching_net import Matched
from metagrove.rivals.mt_net import Transformed
from metagrove.rivals.neural_process import Conditioned
from metagrove.rivals.protonet import Prototypes
from metagrove.task import Spec, unpadded

KEYS = jax.random.split(jax.random.key(3), 6)
SPEC = Spec((8, 8, 3), 2)
SUPPORT = unpadded(jax.random.uniform(KEYS[0], (4, 8, 8, 3)), jnp.eye(2)[jnp.array([0, 1, 0, 1])])


def conv4(**settings):
    return Conv4Net(filters=4, blocks=2, **settings)(SPEC, key=KEYS[1])


@pytest.mark.parametrize(
    ("cls", "protocols"),
    [
        (MLP, {HasLayers}),
        (Conv4, {BindsSupport, HasLayers}),
        (Transformed, {HasLayers}),
        (Modulated, {HasLayers}),
        (Conditioned, {HasLayers}),
        (Prototypes, {HasLayers}),
        (Particles, {BindsSupport, HasStd, HasLayers}),
        (Matched, set()),
        (per_example, set()),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_capabilities(cls, protocols):
    methods = {BindsSupport: "bind_support", HasStd: "std", HasLayers: "as_layers"}
    assert {protocol for protocol, method in methods.items() if hasattr(cls, method)} == protocols
    blank = object.__new__(cls)
    assert {protocol for protocol in methods if isinstance(blank, protocol)} == protocols


@pytest.mark.parametrize("trained", ["batch", "support"])
def test_a_net_is_bound_as_trained_or_as_asked(trained):
    net = conv4(statistics=trained)
    assert (bind_support(net, SUPPORT).context is None) == (trained == "batch")
    bound = bind_support(net, SUPPORT, "support")
    assert bound.context.x is SUPPORT.x
    assert bind_support(bound, SUPPORT, "query").context is None


def test_every_particle_is_bound():
    nets = eqx.filter_vmap(lambda key: Conv4Net(filters=4, blocks=1)(SPEC, key=key))(KEYS[:3])
    particles = Particles(nets, jnp.zeros(3), jnp.zeros(3), classifies=True)
    bound = bind_support(particles, SUPPORT, "support")
    x = jax.random.uniform(KEYS[2], (3, 8, 8, 3))
    alone = [bind_support(jax.tree.map(lambda leaf, i=i: leaf[i], nets), SUPPORT, "support")(x) for i in range(3)]
    np.testing.assert_allclose(bound.each(x), np.stack(alone), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="Particles cannot be written as plain layers"):
        plain_layers(bound)


def through_layers(plain, x):
    """Plain layers of images by their definition."""
    for weight, bias in plain.layers[:-1]:
        values = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        n, h, w, c = values.shape
        x = jax.nn.relu(values + bias[None, None, None]).reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
    weight, bias = plain.layers[-1]
    return jax.nn.log_softmax(x.reshape(len(x), -1) @ weight + bias[None])


WRAPPED = {
    "net": lambda net: net,
    "protonet": lambda net: Prototypes(
        without_head(net, "it"), 0.1 * jax.random.normal(KEYS[3], (2, 16)), jnp.array([True, True])
    ),
    "mt-net": lambda net: Transformed(net, tuple(jax.random.normal(KEYS[3], (size, size)) for size in (4, 4, 2))),
    "film": lambda net: Modulated(net, tuple(jax.random.normal(KEYS[4], (8,)) for _ in range(2)), "film"),
    "softmax": lambda net: Modulated(net, tuple(jax.random.normal(KEYS[4], (4,)) for _ in range(2)), "softmax"),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_layers_of_images_say_what_the_predictor_says(name):
    predictor = bind_support(WRAPPED[name](conv4()), SUPPORT, "support")
    x = jax.random.uniform(KEYS[2], (3, 8, 8, 3))

    @eqx.filter_jit
    def both(predictor, x):
        return predictor(x), through_layers(plain_layers(predictor), x)

    np.testing.assert_allclose(*both(predictor, x), rtol=1e-4, atol=1e-4)


def test_a_variance_that_rounds_below_zero_is_exported_as_zero():
    """Of equal values and large weights E[x²] - E[x]² is far below 0 in single precision."""
    kernels = jnp.zeros((3, 3, 3, 3)), jnp.zeros((3, 3, 3, 64)).at[1, 1].set(1e3 * jax.random.normal(KEYS[5], (3, 64)))
    support = unpadded(jnp.zeros((3, 4, 4, 3)), jnp.eye(3))
    second = jnp.full((3, 2, 2, 3), 0.7)  # what the first block puts out: its bias
    _, _, variance = jax.jit(lambda x: convolve(x, kernels[1], support.mask, pixels=False))(second)
    assert variance.min() < -EPSILON
    net = Conv4(kernels, (jnp.full(3, 0.7), jnp.zeros(64)), jnp.zeros((64, 2)), jnp.zeros(2), context=support)
    _, (weight, bias), _ = eqx.filter_jit(plain_layers)(net).layers
    assert np.isfinite(np.asarray(bias)).all()
    largest = EPSILON**-0.5 * np.abs(np.asarray(kernels[1]))
    assert (np.abs(np.asarray(weight)) <= largest * (1 + 1e-5)).all()


def test_a_net_that_normalises_by_the_queries_has_no_plain_layers():
    with pytest.raises(InputError, match='adapt with statistics="support"'):
        plain_layers(conv4())

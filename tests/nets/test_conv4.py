"""Conv-4 and its parts, in float64, against slow ones written from their definitions, to the second derivative."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove.learner import num_parameters
from metagrove.losses import cross_entropy
from metagrove.nets.conv4 import EPSILON, Conv4Net
from metagrove.nets.convolution import FEW_CHANNELS, conv, fast_conv, plain_conv
from metagrove.nets.max_pool import max_pool
from metagrove.nets.predictors import bind_support
from metagrove.rivals.mt_net import Transformed
from metagrove.task import Examples, Spec

MANY = FEW_CHANNELS + 1


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def assert_close(ours, theirs, tolerance=1e-9):
    """Every array, relative to its largest number."""

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(float(jnp.abs(b).max()), 1e-30))

    jax.tree.map(close, ours, theirs)


def with_derivatives(fn, *args):
    """fn(*args), the gradient of a loss of it, and the gradient of that loss after a gradient step."""

    def loss(*args):
        return jnp.sin(fn(*args)).sum()

    places = tuple(range(len(args)))

    def loss_after_a_step(*args):
        return loss(*(a - 0.1 * g for a, g in zip(args, jax.grad(loss, places)(*args), strict=True)))

    return fn(*args), jax.grad(loss, places)(*args), jax.grad(loss_after_a_step, places)(*args)


@functools.partial(jax.jit, static_argnums=0)
def each_with_derivatives(fns, *args):
    return [with_derivatives(fn, *args) for fn in fns]


@pytest.mark.parametrize(
    ("size", "channels", "filters", "height", "width"),
    [(3, 2, MANY, 5, 7), (5, 3, 2, 6, 5), (3, MANY, 2, 4, 3), (5, MANY, MANY + 1, 1, 4)],
)
def test_fast_convolution_equals_the_plain_one(size, channels, filters, height, width):
    """`conv`, that is: over gathered neighbours of few channels, by `fast_conv` of many."""
    x, kernel = normal(0, 2, height, width, channels), normal(1, size, size, channels, filters)
    assert_close(*each_with_derivatives((conv, plain_conv), x, kernel), tolerance=1e-12)


def test_derivatives_agree_with_finite_differences():
    """Of convolution and pooling, along a line through images and kernel."""
    start, direction = (normal(0, 1, 5, 4, 2), normal(1, 3, 3, 2, 3)), (normal(2, 1, 5, 4, 2), normal(3, 3, 3, 2, 3))

    def along(t):
        return jnp.sin(max_pool(fast_conv(*(a + t * d for a, d in zip(start, direction, strict=True))))).sum()

    derivatives = jax.jit(lambda t: (along(t), jax.grad(along)(t), jax.grad(jax.grad(along))(t)))
    before, now, after = (np.array(derivatives(t)) for t in (-1e-5, 0.0, 1e-5))
    np.testing.assert_allclose((after[:2] - before[:2]) / 2e-5, now[1:], rtol=1e-6)


def test_a_kernel_for_each_of_several_sets_of_images():
    x, kernels = normal(0, 3, 2, 4, 4, 2), normal(1, 3, 3, 3, 2, 4)
    each = jnp.stack([plain_conv(*pair) for pair in zip(x, kernels, strict=True)])
    assert_close(jax.vmap(fast_conv)(x, kernels), each, 1e-12)


def test_max_pool_equals_a_loop_and_leaves_an_odd_last_row_out():
    x = normal(0, 2, 5, 7, 3)
    expected = np.zeros((2, 2, 3, 3))
    for n, i, j, c in np.ndindex(expected.shape):
        expected[n, i, j, c] = max(x[n, 2 * i + k, 2 * j + m, c] for k in (0, 1) for m in (0, 1))
    np.testing.assert_array_equal(max_pool(x), expected)
    gradient = jax.grad(lambda x: max_pool(x).sum())(x)
    assert not gradient[:, 4].any()
    assert not gradient[:, :, 6].any()
    assert float(gradient.sum()) == expected.size


def test_the_first_of_equals_has_the_gradient():
    x = jnp.array([[1.0, 1.0, 0.0, 5.0], [1.0, 1.0, 5.0, -5.0]])[None, :, :, None]
    gradient = jax.grad(lambda x: (jnp.array([8.0, 6.0])[None, None, :, None] * max_pool(x)).sum())(x)
    np.testing.assert_array_equal(gradient[0, ..., 0], [[8, 0, 0, 6], [0, 0, 0, 0]])


def blocks_of_four(x):
    n, h, w, c = x.shape
    return x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c)


def first_largest(x):
    x = blocks_of_four(x)
    four = jnp.stack([x[:, :, i, :, j] for i in (0, 1) for j in (0, 1)])
    return jnp.take_along_axis(four, four.argmax(0)[None], axis=0)[0]


@pytest.mark.parametrize("values", ["different", "with equals"])
def test_derivatives_of_max_pool_are_those_of_a_plain_maximum(values):
    """Each of a product: what the compiler computes twice it may round in two ways, and then no four has a largest."""
    x, weight = normal(0, 2, 5, 6, 2), normal(1, 2, 3)
    x, weight = (x, weight) if values == "different" else (x.round(), weight.round())
    ours, theirs = each_with_derivatives((lambda x, w: max_pool(x @ w), lambda x, w: first_largest(x @ w)), x, weight)
    assert_close(ours, theirs, 1e-12)


def larger_of_four(x):
    x = blocks_of_four(x)
    return functools.reduce(lambda a, b: jnp.where(a > b, a, b), [x[:, :, i, :, j] for i in (0, 1) for j in (0, 1)])


def test_max_pool_stands_what_is_rounded_in_two_ways():
    """Here x is not stored but computed where it is needed, without optimisation not always to the same last digit."""
    assert_close(*each_with_derivatives((max_pool, larger_of_four), normal(0, 2, 5, 6, 3)), tolerance=1e-12)


SPEC = Spec(x_shape=(9, 8, 3), y_dim=3)


def make_net(**settings):
    """With biases off zero, and blocks of few and of many channels."""
    net = Conv4Net(filters=MANY, blocks=2, **settings)(SPEC, key=jax.random.key(0))
    return eqx.tree_at(lambda net: net.biases, net, tuple(b + normal(7, *b.shape) for b in net.biases))


def images(seed, count, mask=None):
    x = jnp.asarray(np.random.default_rng(seed).uniform(size=(count, *SPEC.x_shape)))
    return Examples(x, jnp.eye(3)[np.arange(count) % 3], jnp.ones(count, bool) if mask is None else mask)


def slow_net(net, x, mask=None, of=slice(None)):
    """Block by block from the definition; the statistics are those of the rows `of`, a mask is not looked at."""
    for kernel, bias in zip(net.kernels, net.biases, strict=True):
        around = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        height, width = x.shape[1:3]
        x = sum(around[:, i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3))
        mean, variance = x[of].mean((0, 1, 2), keepdims=True), x[of].var((0, 1, 2), keepdims=True)
        x = (x - mean) / jnp.sqrt(variance + EPSILON) + bias[None, None, None]
        x = larger_of_four(jnp.where(x > 0, x, 0))
    scores = x.reshape(len(x), -1) @ net.head_weight + net.head_bias[None]
    return scores - jnp.log(jnp.exp(scores).sum(1, keepdims=True))


def through_a_step(call, net, support, query):
    """Predictions, the support loss's gradient, and the query loss after an inner step with its gradient."""

    def loss(net, examples):
        return cross_entropy(call(net, examples.x, examples.mask), examples.y, examples.mask)

    def meta_loss(net):
        adapted = jax.tree.map(lambda p, g: p - 0.4 * g, net, jax.grad(loss)(net, support))
        return loss(adapted, query)

    return call(net, query.x, query.mask), jax.grad(loss)(net, support), jax.value_and_grad(meta_loss)(net)


def plain_call(net, x, mask):
    return net(x, mask)


def hooked_call(net, x, mask):
    """With a product that changes nothing."""
    return net(x, mask, after_layer=lambda _, values: values @ jnp.eye(values.shape[-1]))


def masked_call(net, x, mask):
    """With rows of junk among the real ones."""
    real = np.arange(len(x)) * 2
    among = jnp.full((2 * len(x), *x.shape[1:]), 1000.0).at[real].set(x)
    return net(among, jnp.zeros(2 * len(x), bool).at[real].set(mask))[real]


@pytest.mark.parametrize("call", [plain_call, hooked_call, masked_call])
def test_conv4_equals_its_definition_through_an_inner_step(call, by_definition):
    ours = jax.jit(lambda net: through_a_step(call, net, images(1, 3), images(2, 4)))(make_net())
    assert_close(ours, by_definition)


@pytest.fixture(scope="module")
def by_definition():
    with jax.enable_x64(True):
        return jax.jit(lambda net: through_a_step(slow_net, net, images(1, 3), images(2, 4)))(make_net())


def test_a_hook_is_given_every_layer():
    seen = {}
    jax.eval_shape(lambda x: make_net()(x, after_layer=lambda i, v: seen.setdefault(i, v)), images(0, 4).x)
    assert {layer: values.shape for layer, values in seen.items()} == {
        0: (4, 9, 8, MANY),
        1: (4, 4, 4, MANY),
        2: (4, 3),
    }


def test_statistics_of_the_support_or_of_the_images_that_are_looked_at():
    support, x = images(1, 4, jnp.array([True, True, False, True])), images(2, 5).x
    own, batch = make_net(statistics="support").bind_support(support), make_net().bind_support(support)
    assert batch.context is None

    @jax.jit
    def predict(own, batch, x):
        slow = slow_net(own, jnp.concatenate([support.x, x]), of=np.array([0, 1, 3]))[4:]
        return own(x), own(x[:2]), slow, batch(x), batch(x[:2])

    of_five, of_two, slow, batch_of_five, batch_of_two = predict(own, batch, x)
    assert_close(of_five[:2], of_two, 1e-12)
    assert_close(of_five, slow)
    assert np.abs(np.array(batch_of_five[:2] - batch_of_two)).max() > 1e-3


def test_a_net_deep_in_a_predictor_is_told_its_support_set():
    support = images(1, 4)
    told = bind_support(Transformed(make_net(statistics="support"), (jnp.eye(3),)), support)
    assert told.net.context.x is support.x


def test_parameters_of_the_paper():
    """Three and 32 colours to 32, a bias each, and a linear layer from 5 × 5 pixels."""
    net = Conv4Net()(Spec(x_shape=(84, 84, 3), y_dim=5), key=jax.random.key(0))
    assert num_parameters(net) == 9 * 3 * 32 + 3 * 9 * 32 * 32 + 4 * 32 + 25 * 32 * 5 + 5 == 32_645


def test_a_look_at_the_layers():
    net = make_net()
    assert net.layer_sizes == (MANY, MANY, 3)
    assert net.head == (net.head_weight, net.head_bias)
    marked = net.by_layer(("first", "second", "head"))
    assert marked.kernels == marked.biases == ("first", "second")
    assert marked.head == ("head", "head")
    assert jax.eval_shape(net.features, images(0, 3).x).shape == (3, 2 * 2 * MANY)


def test_settings_that_cannot_work_are_named():
    assert Conv4Net(filters=0, blocks=-1).validation_errors() == [
        "filters must be at least 1, got 0",
        "blocks must be at least 1, got -1",
    ]

"""Task embedding against NumPy written from eqs. (2)-(5), and what must not matter to it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS

from metagrove import Functions
from metagrove.nets.order import permuted_order, sorted_order
from metagrove.task import Examples, unpadded

SPEC = Functions().spec
X = np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)
Y = np.array([[0.2], [1.5], [-1.0], [2.0]], np.float32)


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def gru_step(cell, x, h):
    """r, z and the candidate, gate by gate."""
    d = cell.hidden_size
    wi, wh, b, bn = (np.array(a) for a in (cell.weight_ih, cell.weight_hh, cell.bias, cell.bias_n))
    r = sigmoid(wi[:d] @ x + b[:d] + wh[:d] @ h)
    z = sigmoid(wi[d : 2 * d] @ x + b[d : 2 * d] + wh[d : 2 * d] @ h)
    n = np.tanh(wi[2 * d :] @ x + b[2 * d :] + r * (wh[2 * d :] @ h + bn))
    return (1 - z) * n + z * h


def lstm_step(cell, x, state):
    h, c = state
    i, f, g, o = np.split(np.array(cell.weight_ih) @ x + np.array(cell.weight_hh) @ h + np.array(cell.bias), 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def embed_fn(name):
    learner = LEARNERS[name]
    meta = jax.tree.map(lambda leaf: leaf + 0.05, learner.init(SPEC, key=jax.random.key(1)))  # biases off zero
    return meta.embed


@eqx.filter_jit
def embed(module, examples, *, key=None):
    return module(examples, key=key)


@eqx.filter_jit
def as_they_come(module, examples):
    return module.aggregate(module.embed_examples(examples), examples.mask)


def example_embeddings(module, x, y):
    net = module.example_net
    return np.concatenate([x, y], 1) * module.input_scale @ np.array(net.weight) + np.array(net.bias)


@pytest.mark.parametrize("name", ["hsml-gru", "hsml-lstm"])
def test_recurrent_aggregator_equals_the_recursion(name):
    module = embed_fn(name)
    rows = example_embeddings(module, X, Y)
    encoder, decoder, head = module.aggregator.encoder, module.aggregator.decoder, module.aggregator.head
    zeros = np.zeros(encoder.hidden_size, np.float32)
    state = zeros if name == "hsml-gru" else (zeros, zeros)
    step = gru_step if name == "hsml-gru" else lstm_step
    outputs, reconstructed = [], []
    for row in rows:
        state = step(encoder, row, state)
        outputs.append(state if name == "hsml-gru" else state[0])
    previous = np.zeros(rows.shape[1], np.float32)
    for _ in rows:
        state = step(decoder, previous, state)
        previous = (state if name == "hsml-gru" else state[0]) @ np.array(head.weight) + np.array(head.bias)
        reconstructed.append(previous)
    embedding, loss = as_they_come(module, unpadded(jnp.asarray(X), jnp.asarray(Y)))
    expected = np.mean(outputs, 0) if name == "hsml-gru" else outputs[-1]  # its summary is the last state
    np.testing.assert_allclose(embedding, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, np.mean((np.array(reconstructed[::-1]) - rows) ** 2), rtol=1e-5)


@pytest.mark.parametrize(("name", "pool"), [("hsml-mean", np.mean), ("hsml-max", np.max)])
def test_pooling_aggregator_equals_its_equations(name, pool):
    module = embed_fn(name)
    rows = example_embeddings(module, X, Y)

    def fc(layer, v):
        return v @ np.array(layer.weight) + np.array(layer.bias)

    def relu(v):
        return np.maximum(v, 0)

    (enc1, enc2), (dec1, dec2) = module.aggregator.encoder, module.aggregator.decoder
    encoded = fc(enc2, relu(fc(enc1, rows)))
    decoded = fc(dec2, relu(fc(dec1, encoded)))
    embedding, loss = embed(module, unpadded(jnp.asarray(X), jnp.asarray(Y)))
    np.testing.assert_allclose(embedding, pool(encoded, axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, np.mean((decoded - rows) ** 2), rtol=1e-5)


HSMLS = [name for name in LEARNERS if name.startswith("hsml")]


@pytest.mark.parametrize("name", HSMLS)
def test_order_of_rows_does_not_matter_at_test(name):
    module = embed_fn(name)
    forward = embed(module, unpadded(jnp.asarray(X), jnp.asarray(Y)))
    backward = embed(module, unpadded(jnp.asarray(X[::-1]), jnp.asarray(Y[::-1])))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), forward, backward)


def test_order_does_matter_to_a_recurrent_aggregator_in_training():
    module, examples = embed_fn("hsml-gru"), unpadded(jnp.asarray(X), jnp.asarray(Y))
    first, second = (embed(module, examples, key=jax.random.key(seed))[0] for seed in (0, 1))
    assert not np.allclose(first, second, atol=1e-4)


def test_rows_are_sorted_by_x_then_y_real_ones_first():
    x = jnp.array([[3.0], [1.0], [-9.0], [1.0]])
    y = jnp.array([[0.0], [7.0], [0.0], [2.0]])
    places = sorted_order(Examples(x, y, jnp.array([True, True, False, True])))
    np.testing.assert_array_equal(places, [3, 1, 0, 2])


def test_permutations_are_uniform_and_do_not_depend_on_padding():
    keys = jax.random.split(jax.random.key(0), 600)
    orders = jax.vmap(lambda key: permuted_order(jnp.ones(3, bool), key))(keys)
    _, counts = np.unique(np.array(orders), axis=0, return_counts=True)
    assert len(counts) == 6
    assert counts.min() > 60  # 100 expected, sd 9
    longer = jax.vmap(lambda key: permuted_order(jnp.arange(8) < 3, key))(keys)
    np.testing.assert_array_equal(longer[:, :3], orders)
    np.testing.assert_array_equal(np.sort(longer[:, 3:], axis=1), np.tile(np.arange(3, 8), (600, 1)))

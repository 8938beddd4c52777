"""mAP-DLM, SNAIL, relation networks and the graph, by hand or against slow oracles."""

import dataclasses
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import LEARNERS
from rival_parts import KEY, SPEC

from metagrove import GNN, SNAIL, Conv4Net, Functions, MLPNet, RelationNet
from metagrove.errors import InputError
from metagrove.losses import cross_entropy
from metagrove.nets.order import row_orders
from metagrove.nets.predictors import bind_support
from metagrove.rivals.gnn import Adjacency
from metagrove.rivals.map_dlm import augmented_ranking, average_precisions, direct_loss
from metagrove.task import Spec, Task, unpadded

ranking = eqx.filter_jit(augmented_ranking)


@pytest.fixture(scope="module")
def task():
    return Functions().sample(jax.random.key(1))


# mAP-DLM


def every_ranking(num_positives, num_negatives):
    """y of every ranking in which positives, and negatives, keep their order: 1 where i stands before j, else -1."""
    total = num_positives + num_negatives
    for places in itertools.combinations(range(total), num_positives):
        others = [place for place in range(total) if place not in places]
        yield np.where(np.array(places)[:, None] < np.array(others)[None], 1.0, -1.0)


def score_of(y, positives, negatives):
    return (y * (positives[:, None] - negatives[None])).sum() / y.size


def precision_of(y):
    ranks = np.arange(1, len(y) + 1)
    return (ranks / (ranks + (y < 0).sum(1))).mean()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("perturbation", [0.2, 1.0, 5.0])
def test_the_augmented_ranking_is_the_best_of_all(seed, perturbation):
    rng = np.random.default_rng(seed)
    positives, negatives = (-np.sort(-rng.uniform(-1, 1, n)) for n in (2, 3))
    rankings = list(every_ranking(2, 3))
    assert len(rankings) == 10

    def objective(y):
        return score_of(y, positives, negatives) + perturbation * (1 - precision_of(y))

    padded = (np.append(part, [-1e9] * 2).astype(np.float32) for part in (positives, negatives))
    found = np.array(ranking(*map(jnp.asarray, padded), jnp.asarray(2), jnp.asarray(3), perturbation))
    assert objective(found[:2, :3]) == pytest.approx(max(map(objective, rankings)), rel=1e-5)


def test_direct_loss_by_hand():
    """One positive at .1, negatives at .5 and .2; rows that take no part change nothing."""
    similarity = jnp.array([0.5, 0.1, 9.0, 0.2])
    positive, negative = jnp.array([False, True, False, False]), jnp.array([True, False, False, True])
    how = {"perturbation": 1.0, "augmented_weight": 10.0}
    # y_std: both negatives before. Augmented: both before too, since that has the highest S and the lowest AP.
    score = -((0.1 - 0.5) + (0.1 - 0.2)) / 2
    assert float(direct_loss(similarity, positive, negative, **how)) == pytest.approx(10 * score - score, rel=1e-5)
    grads = jax.grad(direct_loss)(similarity, positive, negative, **how)
    np.testing.assert_allclose(grads, 9 * np.array([0.5, -1.0, 0.0, 0.5]), rtol=1e-5)


def test_average_precision_of_each_class():
    """In order: a, b, b, a, and a row of no class that is last."""
    members = jnp.array([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]])
    found = average_precisions(jnp.array([0.9, 0.8, 0.7, 0.6, -1e9]), members)
    np.testing.assert_allclose(found, [(1 + 2 / 4) / 2, (1 / 2 + 2 / 3) / 2, 0], rtol=1e-6)


# SNAIL


def slow_snail(meta, rows, query):
    """The whole sequence at once, from the definition: the query's answer, and every other row's values."""
    x = np.concatenate([rows, query[None]]).astype(np.float64)
    length = len(x)
    for layer in meta.layers:
        if hasattr(layer, "dilation"):
            before = np.concatenate([np.zeros((layer.dilation, x.shape[1])), x])[:length]
            values = x @ np.array(layer.now.weight) + np.array(layer.now.bias) + before @ np.array(layer.before)
            a, b = np.split(values, 2, axis=1)
            new = np.tanh(a) / (1 + np.exp(-b))
        else:
            asked = x @ np.array(layer.query.weight) + np.array(layer.query.bias)
            scores = asked @ (x @ np.array(layer.key)).T / math.sqrt(layer.key.shape[1])
            scores = np.where(np.tril(np.ones((length, length))) > 0, scores, -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            new = weights @ (x @ np.array(layer.value.weight) + np.array(layer.value.bias))
        x = np.concatenate([x, new], axis=1)
    return x[-1] @ np.array(meta.last.weight) + np.array(meta.last.bias), x[:-1]


def test_snail_answers_as_if_each_query_were_the_last_row(task):
    """Support rows never see the query: they are the same whatever is asked."""
    learner = LEARNERS["snail"]
    meta = eqx.filter_jit(learner.init)(SPEC, key=KEY)
    key = jax.random.key(5)
    answers = eqx.filter_jit(lambda meta: learner.adapt(meta, task.support, key=key)[0](task.query.x))(meta)
    (order,) = np.array(row_orders(task.support, 1, key=key))
    rows = np.concatenate([task.support.x, task.support.y], axis=1)[order] * learner.input_scale
    queries = np.array([[float(x[0]) * learner.input_scale, 0.0] for x in np.asarray(task.query.x)])
    slow = [slow_snail(meta, rows, query) for query in queries]
    np.testing.assert_allclose(answers, np.stack([answer for answer, _ in slow]), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(slow[0][1], slow[-1][1])


def test_snail_settings_that_cannot_work_are_named():
    wrong = SNAIL(key_dims=(3,), value_dims=(3, 2)).validation_errors()
    assert wrong == ["key_dims and value_dims must have the same length, got (3,) and (3, 2)"]


# Relation net and the graph

IMAGES = jax.random.uniform(jax.random.key(7), (10, 8, 8, 3))
SUPPORT = unpadded(IMAGES[:6], jnp.eye(3)[jnp.array([0, 1, 2, 0, 1, 2])])


@pytest.fixture(scope="module")
def relation_net():
    """A small relation net and its first meta-parameters."""
    learner = RelationNet(filters=4)
    return learner, eqx.filter_jit(learner.init)(Spec((8, 8, 3), 3), key=KEY)


@eqx.filter_jit
def relation_scores(learner, meta, support, x):
    return learner.adapt(meta, support)[0].scores(x)


def permuted_answers(learner, meta):
    """Answers for four queries, and those after the classes have been renamed."""
    order = jnp.array([2, 0, 1])
    answer = eqx.filter_jit(lambda meta, support: learner.adapt(meta, support)[0](IMAGES[6:]))
    return answer(meta, SUPPORT), answer(meta, unpadded(SUPPORT.x, SUPPORT.y[:, order])), order


def test_relation_nets_answer_permutes_with_the_classes(relation_net):
    learner, meta = relation_net
    answers, renamed, order = permuted_answers(learner, meta)
    np.testing.assert_allclose(renamed, answers[:, order], rtol=1e-4, atol=1e-5)
    assert np.ptp(np.array(answers)) > 1e-6
    scores = np.asarray(relation_scores(learner, meta, SUPPORT, IMAGES[6:]))
    assert scores.shape == (4, 3)
    assert ((scores > 0) & (scores < 1)).all()
    np.testing.assert_allclose(np.exp(answers), scores / scores.sum(1, keepdims=True), rtol=1e-3)


def test_relation_scores_of_a_pair_equal_those_of_the_concatenated_maps(relation_net):
    """The kernel on [m; f] is the sum of two kernels."""
    _, meta = relation_net
    maps, _ = eqx.filter_jit(meta.embed)(IMAGES, jnp.ones(10, bool))
    pair = jnp.concatenate([maps[:1], maps[1:2]], axis=-1)
    halves = jnp.split(meta.pair_kernels[0], 2, axis=2)
    both = meta.convolve(maps[:1], halves[0], True) + meta.convolve(maps[1:2], halves[1], True)
    np.testing.assert_allclose(both, meta.convolve(pair, meta.pair_kernels[0], True), rtol=1e-4, atol=1e-5)


def test_relation_loss_is_the_squared_error_of_all_pairs(relation_net):
    learner, meta = relation_net
    query = unpadded(IMAGES[6:], jnp.eye(3)[jnp.array([0, 1, 2, 0])])
    loss, _ = eqx.filter_jit(learner.meta_loss)(meta, Task(SUPPORT, query, jnp.asarray(0)), key=KEY)
    scores = relation_scores(learner, meta, SUPPORT, query.x)
    assert float(loss) == pytest.approx(float(np.square(np.array(scores - query.y)).mean()), rel=1e-4)


def test_relation_net_refuses_vectors_and_what_is_too_small():
    with pytest.raises(InputError, match="compare images, not vectors"):
        RelationNet().init(Spec((3,), 2), key=KEY)
    with pytest.raises(InputError, match="leave nothing of 8×8 pixels"):
        RelationNet(padding=False).init(Spec((8, 8, 3), 2), key=KEY)


def test_rows_of_the_graph_sum_to_one_without_the_diagonal():
    adjacency = Adjacency(3, (4,), nearest=True, key=KEY)
    nodes = jax.random.normal(jax.random.key(1), (2, 4, 3))
    real = jnp.array([[True, True, False, True], [True, True, True, True]])
    edges, _ = eqx.filter_jit(adjacency)(nodes, real)
    np.testing.assert_allclose(edges.sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(np.diagonal(edges, axis1=1, axis2=2)[np.array(real)], 0)
    np.testing.assert_array_equal(edges[0, :2, 2], 0)  # no edge to a padded node
    alone, _ = eqx.filter_jit(adjacency)(nodes[1:], real[1:])
    assert np.abs(np.array(edges[1:] - alone)).max() > 1e-6  # normalised by all graphs together


@pytest.mark.parametrize(
    "learner", [RelationNet(filters=3), GNN(net=Conv4Net(filters=3, blocks=1), feature_dim=4, edge_dims=(3,))]
)
def test_with_the_statistics_of_the_support_set_no_query_depends_on_another(learner):
    meta = eqx.filter_jit(learner.init)(Spec((8, 8, 3), 3), key=KEY)

    @eqx.filter_jit
    def answers(meta, statistics):
        predictor = bind_support(learner.adapt(meta, SUPPORT)[0], SUPPORT, statistics)
        return predictor(IMAGES[6:]), predictor(IMAGES[6:8])

    (many, few), (many_together, few_together) = answers(meta, "support"), answers(meta, "query")
    np.testing.assert_allclose(many[:2], few, rtol=1e-4, atol=1e-5)
    assert np.abs(np.array(many_together[:2] - few_together)).max() > 1e-6


def test_a_graph_of_vectors():
    learner = GNN(net=MLPNet(hidden=(4,), init_sd=0.5), feature_dim=3, edge_dims=(3,), node_dim=2, loss=cross_entropy)
    x = jax.random.normal(KEY, (6, 2))
    meta = eqx.filter_jit(learner.init)(Spec((2,), 3), key=KEY)
    predictor, _ = eqx.filter_jit(learner.adapt)(meta, unpadded(x, SUPPORT.y))
    assert eqx.filter_jit(predictor)(x).shape == (6, 3)


# Heads that read labels


def clusters_task(key):
    """Three classes, each a cloud of points around a random centre: one support point and three queries of each."""
    centre_key, noise_key = jax.random.split(key)
    x = jnp.repeat(2 * jax.random.normal(centre_key, (3, 4)), 4, axis=0)
    x, y = x + 0.3 * jax.random.normal(noise_key, x.shape), jnp.repeat(jnp.eye(3), 4, axis=0)
    first = jnp.arange(12) % 4 == 0
    support, query = jnp.nonzero(first, size=3)[0], jnp.nonzero(~first, size=9)[0]
    return Task(unpadded(x[support], y[support]), unpadded(x[query], y[query]), jnp.asarray(0))


READ_LABELS = [
    GNN(net=MLPNet(hidden=(16,), init_sd=0.5), feature_dim=16, edge_dims=(16,), node_dim=8, graph_layers=1),
    SNAIL(loss=cross_entropy, key_dims=(8, 16), value_dims=(8, 16), filters_per_block=16, input_scale=0.5),
]


@pytest.mark.parametrize("learner", READ_LABELS)
def test_a_nearest_neighbour_start_classifies_before_any_training(learner):
    keys = jax.random.split(KEY, 50)

    def accuracy(learner):
        meta = learner.init(Spec((4,), 3), key=KEY)
        return jax.vmap(lambda key: learner.meta_loss(meta, clusters_task(key), key=key)[1].metrics["accuracy"])(keys)

    nearest, random = (
        float(jax.jit(accuracy, static_argnums=0)(dataclasses.replace(learner, nearest_init=start)).mean())
        for start in (True, False)
    )
    assert nearest > 60 > 45 > random  # chance is a third


@pytest.mark.parametrize("learner", READ_LABELS)
def test_heads_that_read_labels_learn_to_carry_them(learner):
    """From random weights, a plateau at chance: to compare is useless without labels, and labels without it."""
    learner = dataclasses.replace(learner, nearest_init=False)
    meta, optimizer = eqx.filter_jit(learner.init)(Spec((4,), 3), key=KEY), optax.adam(0.005)
    params, fixed = eqx.partition(meta, eqx.is_inexact_array)

    def loss(params, key):
        def one(key):
            found, info = learner.meta_loss(eqx.combine(params, fixed), clusters_task(key), key=key)
            return found, info.metrics["accuracy"]

        losses, accuracies = jax.vmap(one)(jax.random.split(key, 8))
        return losses.mean(), accuracies.mean()

    def step(carry, key):
        params, state = carry
        grads, accuracy = jax.grad(loss, has_aux=True)(params, key)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), accuracy

    keys = jax.random.split(jax.random.key(1), 400)
    _, accuracies = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))((params, optimizer.init(params)))
    assert float(accuracies[:20].mean()) < 50
    assert float(accuracies[-50:].mean()) > 80

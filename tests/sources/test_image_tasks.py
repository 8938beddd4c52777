"""Images: episodes from tiny pools, every learner on them through the same few checks, and end to end."""

import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from in_process import InThisProcess
from own_runs import untrained

from metagrove import (
    ARML,
    BMAML,
    GNN,
    HSML,
    LLAMA,
    MAML,
    MAPDLM,
    MUMOMAML,
    PLATIPUS,
    SNAIL,
    Conv4Net,
    Functions,
    Images,
    MatchingNet,
    MatchingNetFCE,
    MetaLSTM,
    MetaSGD,
    MLPNet,
    MTNet,
    NeuralProcess,
    ProtoNet,
    RelationNet,
    Reptile,
)
from metagrove.cli.app import main
from metagrove.config.config import Config, check_config
from metagrove.config.settings import replace_settings
from metagrove.errors import InputError
from metagrove.hsml.embed import PoolingEmbedding, RecurrentEmbedding
from metagrove.hsml.gate import ParameterGate
from metagrove.hsml.relative import MEAN_SPEED, STD_SPEED, UNIT, EmbeddingNormalizer, RelativeClusters
from metagrove.losses import accuracy, best_of, cross_entropy, is_better, metric_of, mse
from metagrove.nets.convolution import plain_conv
from metagrove.outer import meta_gradient
from metagrove.paper.experiments import EXPERIMENTS, Budget, Experiment
from metagrove.paper.experiments.images import IMAGE_EXPERIMENT, image_row
from metagrove.paper.reproduce import reproduce
from metagrove.pools import pool
from metagrove.serve.run import load
from metagrove.task import Examples, Spec, Task, pad_rows
from metagrove.training import loop
from metagrove.training.scores import after_each_step
from metagrove.training.scores import test_parts as parts_to_score

training_loop = importlib.import_module("metagrove.training.loop")  # `metagrove.train` is the function
SIZE = 8
CLASSES = {"a": (6, 5, 6), "b": (5, 4, 7)}  # of each meta-split
PICTURES = {"a": 8, "b": 9}  # of each class


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """Two datasets whose every class is a colour of its own, with noise."""
    folder = tmp_path_factory.mktemp("pools")
    for seed, name in enumerate(CLASSES):
        rng = np.random.default_rng(seed)
        colours = rng.permutation(list(itertools.product((40, 130, 220), repeat=3)))
        splits = [split for split, n in zip(pool.SPLITS, CLASSES[name], strict=True) for _ in range(n)]
        noise = rng.normal(0, 12, (len(splits), PICTURES[name], SIZE, SIZE, 3))
        images = (colours[: len(splits), None, None, None] + noise).clip(0, 255).astype(np.uint8)
        place = pool.folder_of(name, SIZE, folder)
        place.mkdir()
        classes = [(f"{split} {i}", split, PICTURES[name]) for i, split in enumerate(splits)]
        pool.write(place, name, images.reshape(-1, SIZE, SIZE, 3), classes, {})
    return folder


@pytest.fixture(scope="module")
def source(pools):
    return Images(
        datasets=("a", "b"), size=SIZE, ways=3, shots=2, queries=2, test_queries=3, data=str(pools), weights=(1.0, 1.0)
    )


@pytest.fixture(scope="module")
def owners(pools):
    """Dataset, class and meta-split of each image, by its content."""
    found = {}
    for name in CLASSES:
        opened = pool.read(name, SIZE, pools)
        for one in opened.classes:
            for image in opened.images[one.start : one.start + one.count]:
                found[image.tobytes()] = name, one.name, one.split
    assert len(found) == sum(sum(CLASSES[name]) * PICTURES[name] for name in CLASSES)
    return found


@eqx.filter_jit
def draw(episodes, keys):
    return jax.vmap(episodes.sample)(keys)


def drawn(episodes, count=150, seed=0):
    """Tasks as NumPy arrays."""
    tasks = jax.device_get(draw(episodes, jax.random.split(jax.random.key(seed), count)))
    return [jax.tree.map(lambda leaf, i=i: leaf[i], tasks) for i in range(count)]


def contents(x):
    return [image.tobytes() for image in (x * 255).round().astype(np.uint8)]


@pytest.mark.parametrize(("split", "queries"), [("train", 2), ("test", 3)])
def test_episodes(source, owners, split, queries):
    labels = {}
    for task in drawn(source.split(split)):
        assert task.support.x.shape == (3 * 2, SIZE, SIZE, 3)
        assert task.query.x.shape == (3 * queries, SIZE, SIZE, 3)
        assert task.support.mask.all()
        assert task.query.mask.all()
        support, query = contents(task.support.x), contents(task.query.x)
        assert len({*support, *query}) == 3 * (2 + queries)  # no image twice
        y = np.concatenate([task.support.y, task.query.y])
        assert (y.sum(1) == 1).all()
        of_label = {}
        for content, label in zip(support + query, y.argmax(1), strict=True):
            dataset, name, its_split = owners[content]
            assert (dataset, its_split) == (source.datasets[task.family], split)
            of_label.setdefault(int(label), set()).add((dataset, name))
        assert sorted(map(len, of_label.values())) == [1, 1, 1]
        assert len(set.union(*of_label.values())) == 3
        for label, (one,) in of_label.items():
            labels.setdefault(one, set()).add(label)
    place = pool.SPLITS.index(split)
    assert len(labels) == CLASSES["a"][place] + CLASSES["b"][place]  # every class is seen
    assert all(seen == {0, 1, 2} for seen in labels.values())  # as every label


def test_training_tasks_may_differ_from_those_at_test(source):
    wide = dataclasses.replace(source, train_ways=4, train_shots=3)
    train, test = (drawn(wide.split(split), count=2)[0] for split in ("train", "test"))
    assert train.support.y.shape == (4 * 3, 4)
    assert train.query.y.shape == (4 * 2, 4)
    assert test.support.y.shape == (3 * 2, 3)
    check_config(Config(wide, ProtoNet(net=Conv4Net(blocks=1))))
    with pytest.raises(InputError, match="train_ways must be 0 for MAML: what it learns serves 3 ways, not 4"):
        check_config(Config(wide, MAML(net=Conv4Net(blocks=1))))


def test_a_task_is_decided_by_its_key(source):
    first, again, other = (drawn(source.split("train"), seed=seed) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first[0].support.x, other[0].support.x)


def test_a_source_that_was_first_looked_at_while_compiling(source):
    fresh = dataclasses.replace(source, weights=(2.0, 1.0))
    jax.jit(fresh.sample)(jax.random.key(0))
    assert len(drawn(fresh.split("train"))) == 150


def test_weights_say_how_often_a_dataset_is_drawn(source):
    episodes = dataclasses.replace(source, weights=(3.0, 1.0)).split("train")
    of_second = np.mean([task.family for seed in range(4) for task in drawn(episodes, seed=seed)])
    assert of_second == pytest.approx(0.25, abs=0.06)  # sd .018
    parts = source.parts("test")
    assert [{int(task.family) for task in drawn(part)} for part in parts] == [{0}, {1}]


def test_a_dataset_that_is_held_out(source, owners):
    held_out = dataclasses.replace(source, weights=(), held_out="b", queries=3)
    for split in ("train", "validation"):
        episodes = held_out.split(split)
        assert episodes.numbers.tolist() == [0]
        assert {owners[content][::2] for content in map(bytes, np.array(episodes.images))} == {("a", split)}
    (part,) = held_out.parts("test")
    tasks = drawn(part)
    assert {int(task.family) for task in tasks} == {1}
    seen = {owners[content] for task in tasks for content in contents(task.support.x)}
    assert {dataset for dataset, _, _ in seen} == {"b"}
    assert len(seen) == sum(CLASSES["b"])  # of all meta-splits


def test_augmentation_mirrors_and_shifts_in_training_alone(source, pools):
    augmented = dataclasses.replace(source, datasets=("a",), weights=(), augment=True)
    assert not augmented.split("validation").augment
    assert not augmented.split("test").augment
    variants = {}
    for image in pool.read("a", SIZE, pools).images:
        for mirrored, down, right in itertools.product((False, True), (0, 1, 2), (0, 1, 2)):
            wide = np.pad(image[:, ::-1] if mirrored else image, ((1, 1), (1, 1), (0, 0)), mode="edge")
            variants[wide[down : down + SIZE, right : right + SIZE].tobytes()] = mirrored, down, right
    seen = {variants[c] for task in drawn(augmented.split("train"), 40) for c in contents(task.query.x)}
    assert seen == set(itertools.product((False, True), (0, 1, 2), (0, 1, 2)))


def test_rotation_turns_all_images_of_a_training_task_alike(source, pools, owners):
    turning = dataclasses.replace(source, rotate=0.5)
    assert turning.split("test").rotate == 0
    assert turning.num_classes == 4 * source.num_classes == 4 * (CLASSES["a"][0] + CLASSES["b"][0])
    turns, of_class = [], {}
    for task in drawn(turning.split("train"), seed=5):
        images = np.concatenate([task.support.x, task.query.x])
        found = [k for k in range(4) if contents(np.rot90(images, -k, axes=(1, 2)))[0] in owners]
        upright = contents(np.rot90(images, -found[0], axes=(1, 2)))
        assert all(content in owners for content in upright)  # alike
        turns += found
        labels = np.concatenate([task.support.y, task.query.y]).argmax(1)
        for content, label in zip(upright, labels, strict=True):
            of_class.setdefault(int(task.classes[label]), set()).add((*owners[content][:2], found[0]))
    assert np.mean(np.array(turns) > 0) == pytest.approx(0.5, abs=0.13)  # sd .041
    assert set(turns) == {0, 1, 2, 3}
    assert all(len(names) == 1 for names in of_class.values())  # an index means a class and a turn
    assert len({name for names in of_class.values() for name in names}) == len(of_class)
    assert max(of_class) < turning.num_classes


def test_mixed_classes_are_means_of_two(source, owners):
    mixing = dataclasses.replace(source, mix=0.5)
    assert mixing.split("validation").mix == 0
    assert mixing.num_classes == 0  # a mixture is none of the training classes
    tasks, plain = (drawn(one.split("train"), seed=6) for one in (mixing, source))
    pure = [all(content in owners for content in contents(task.query.x)) for task in tasks]
    assert np.mean(pure) == pytest.approx(0.5, abs=0.13)
    assert tasks[0].classes is None
    for task, same, unmixed in zip(tasks, plain, pure, strict=True):
        if unmixed:
            np.testing.assert_array_equal(task.query.x, same.query.x)
            continue
        partners = contents(2 * task.query.x - same.query.x)  # the image that it was mixed with
        names = [owners[content] for content in partners]
        of_label = {}
        for name, label in zip(names, task.query.y.argmax(1), strict=True):
            assert (name[0], name[2]) == (source.datasets[task.family], "train")
            of_label.setdefault(int(label), set()).add(name)
        assert sorted(map(len, of_label.values())) == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "split", "message"),
    [
        ({"ways": 5}, "validation", "b has 4 classes in its validation split, a task needs 5: lower --ways"),
        ({"shots": 7}, "train", r"a: a task needs 9 images of a class, too few in train 0 \(8\), .*: lower --shots"),
        ({"test_queries": 7}, "test", "a: a task needs 9 images of a class.*lower --shots, --queries or --test-quer"),
        ({"size": 9}, "train", "no pool 'a' of 9 pixels.*`metagrove data prepare a --from FOLDER_OR_ARCHIVE --size 9`"),
        ({"datasets": ("a", "c")}, "train", "no pool 'c' of 8 pixels in .*`metagrove data prepare c "),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(source, settings, split, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(source, **settings).split(split)


def test_settings_that_cannot_work_are_named():
    wrong = Images(datasets=("a",), held_out="b", weights=(1.0, 2.0), ways=0)
    assert wrong.validation_errors() == [
        "ways must be at least 1, got 0",
        "held_out must be one of two or more datasets, got 'b'",
        "weights must be a positive number for each of 1 datasets",
    ]
    assert Images(datasets=()).validation_errors() == ["datasets must name at least one pool"]


def test_checksums_are_those_of_the_files(source, pools):
    files = {name: pools / f"{name}-{SIZE}" / "images.npy" for name in CLASSES}
    assert source.checksums == {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


NET = {"net": Conv4Net(filters=3, blocks=1), "loss": cross_entropy}
SMALL_HSML = HSML(
    **NET,
    inner_lr=0.05,
    inner_steps=1,
    embed=RecurrentEmbedding(example_dim=4, task_dim=6, test_permutations=2),
    cluster=RelativeClusters(clusters=(2, 1)),
    gate=ParameterGate(gate_rank=3),
)
LEARNERS = {
    "hsml-gru": SMALL_HSML,
    "hsml-mean": replace_settings(SMALL_HSML, {"embed": "mean", "image_features": "moments"}),
    "hsml-attention": replace_settings(
        SMALL_HSML, {"embed": "attention", "attention_layers": 1, "attention_heads": 2, "gate": "affine"}
    ),
    "maml": MAML(**NET, inner_lr=0.05, inner_steps=1),
    "maml-support-statistics": MAML(
        net=Conv4Net(filters=3, blocks=1, statistics="support"), loss=cross_entropy, inner_lr=0.05, inner_steps=1
    ),
    "anil": MAML(**NET, inner_lr=0.05, inner_steps=1, adapts="head"),
    "meta-sgd": MetaSGD(**NET, inner_steps=1),
    "mt-net": MTNet(**NET, inner_lr=0.05, inner_steps=1),
    "mumomaml": MUMOMAML(**NET, inner_lr=0.05, inner_steps=1, hidden_dim=3),
    "reptile": Reptile(
        net=Conv4Net(filters=3, blocks=1, statistics="support"), loss=cross_entropy, inner_lr=0.05, inner_steps=1
    ),
    "arml": ARML(**NET, inner_lr=0.05, inner_steps=1, vertices=3, example_dim=4, task_dim=5),
    "bmaml": BMAML(**NET, particles=2),
    "protonet": ProtoNet(**NET),
    "matching-net": MatchingNet(**NET),
    "matching-net-fce": MatchingNetFCE(**NET, feature_dim=4, read_steps=2, test_permutations=2),
    "relation-net": RelationNet(filters=3),
    "gnn": GNN(**NET, feature_dim=4, edge_dims=(3,), node_dim=2, graph_layers=1),
    "map-dlm": MAPDLM(**NET),
    "snail": SNAIL(**NET, key_dims=(3, 2), value_dims=(3, 2), filters_per_block=2, dilations=(1,), test_permutations=2),
    "platipus": PLATIPUS(**NET, inner_lr=0.05, inner_steps=1, samples=2),
    "llama": LLAMA(**NET, inner_lr=0.05, inner_steps=1),
    "meta-lstm": MetaLSTM(**NET, inner_steps=1, hidden_dim=2),
}
NEVER_LEARN = {
    # one layer of propagation carries no vertex to another
    "arml": [".graph.knowledge_edge.weight", ".graph.knowledge_edge.bias"],
    # of so few small pairs every unit is active, and the next normalisation takes a shift of all away
    "relation-net": [".pair_biases[0]"],
    "meta-lstm": [".cell.weight_hh"],  # a single step has no state before it
}

LOOKS_AT_THE_SET = {"hsml-gru", "maml", "mumomaml", "arml", "bmaml", "protonet", "matching-net"} | {
    "matching-net-fce",
    "relation-net",
    "gnn",
    "map-dlm",
    "snail",
    "llama",
}
"""In a way of its own, and not just by the net and the loss as others do too."""


@pytest.fixture
def _quick_to_compile(monkeypatch):
    """The plain convolution wherever `conv` is called; test_conv4 finds the fast one equal to it."""
    for module in ("conv4", "encoder"):
        monkeypatch.setattr(f"metagrove.nets.{module}.conv", plain_conv)


def some_tasks():
    """Two tasks of two classes, one shot."""
    x, y = np.random.default_rng(1).uniform(size=(2, 4, SIZE, SIZE, 3)), np.tile(np.eye(2), (2, 2, 1))
    x, y, mask = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), jnp.ones((2, 2), bool)
    return Task(Examples(x[:, :2], y[:, :2], mask), Examples(x[:, 2:], y[:, 2:], mask), jnp.array([0, 1]))


def some_meta(learner):
    """Any numbers: drawing the first ones would have to be compiled for each learner."""
    rng = np.random.default_rng(0)
    shapes = eqx.filter_eval_shape(learner.init, Spec(x_shape=(SIZE, SIZE, 3), y_dim=2), key=jax.random.key(0))

    def fill(leaf):
        spread = (0.01, 0.3)[leaf.ndim] if leaf.ndim < 2 else np.prod(leaf.shape[:-1]) ** -0.5
        return jnp.asarray(rng.normal(0, spread, leaf.shape), jnp.float32)

    return jax.tree.map(lambda leaf: fill(leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf, shapes)


@eqx.filter_jit
def adapt_and_score(learner, meta, task):
    predictor, info = learner.adapt(meta, task.support)
    return predictor(task.query.x, task.query.mask), after_each_step(info.path, task.query, accuracy)


@pytest.mark.usefixtures("_quick_to_compile")
@pytest.mark.parametrize("name", LEARNERS)
def test_contract_and_what_does_not_matter(name):
    learner, task = LEARNERS[name], jax.tree.map(lambda leaf: leaf[0], some_tasks())
    meta = some_meta(learner)
    prediction, path = adapt_and_score(learner, meta, task)
    assert prediction.shape == task.query.y.shape
    np.testing.assert_allclose(np.exp(prediction).sum(1), 1, rtol=1e-5)
    assert path.shape == (learner.inner_steps + 1,)
    assert float(path[-1]) == pytest.approx(float(accuracy(prediction, task.query.y, task.query.mask)))
    assert learner.validation_errors() == []
    backwards = jax.tree.map(lambda rows: rows[::-1], task.support)
    for support in (backwards, pad_rows(task.support, 3)) if name in LOOKS_AT_THE_SET else (backwards,):
        again, _ = adapt_and_score(learner, meta, dataclasses.replace(task, support=support))
        np.testing.assert_allclose(again, prediction, rtol=1e-3, atol=1e-4)


@eqx.filter_jit
def gradient(learner, meta, task):
    return eqx.filter_grad(lambda meta: learner.meta_loss(meta, task, key=jax.random.key(2))[0])(meta)


@pytest.mark.usefixtures("_quick_to_compile")
@pytest.mark.parametrize("name", LEARNERS)
def test_every_leaf_learns(name):
    learner, task = LEARNERS[name], jax.tree.map(lambda leaf: leaf[0], some_tasks())
    leaves = jax.tree_util.tree_leaves_with_path(gradient(learner, some_meta(learner), task))
    assert all(np.isfinite(leaf).all() for _, leaf in leaves)
    still = [jax.tree_util.keystr(path) for path, leaf in leaves if not np.abs(leaf).max() > 1e-8]
    assert still == NEVER_LEARN.get(name, [])


@pytest.mark.usefixtures("_quick_to_compile")
@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_neither_padding_nor_tasks_in_flight_change_the_gradient(name):
    learner, tasks = LEARNERS[name], some_tasks()
    one_more = jax.tree.map(lambda rows: np.pad(rows, [(0, 0), (0, 1)] + [(0, 0)] * (rows.ndim - 2)), tasks.support)
    padded = dataclasses.replace(tasks, support=jax.tree.map(jnp.asarray, one_more))
    fn, meta, key = eqx.filter_jit(meta_gradient), some_meta(learner), jax.random.key(2)
    together = fn(learner, meta, tasks, key=key)
    alone = fn(learner, meta, padded, key=key, task_chunk_size=1)
    for ours, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3 * max(np.abs(theirs).max(), 1e-6))


# Features are the inputs themselves: two hidden units with unit weights.
TABLE = Spec(x_shape=(2,), y_dim=3)
SUPPORT = Examples(
    jnp.array([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]),
    jnp.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    jnp.array([True, True, True, False]),  # the third class is in a masked row alone
)
QUERY = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)


def answer(learner):
    net = MLPNet(hidden=(2,))(TABLE, key=jax.random.key(0))
    meta = eqx.tree_at(lambda net: (net.weights[0], *net.head), net, (jnp.eye(2), None, None))
    return np.exp(eqx.filter_jit(lambda meta, x: learner.adapt(meta, SUPPORT)[0](x))(meta, jnp.asarray(QUERY)))


def test_protonet_by_hand():
    squares = np.array([[0 + 1, 4 + 9], [1 + 9, 1 + 1]])  # to the prototypes (2, 0) and (0, 4)
    expected = np.exp(-squares) / np.exp(-squares).sum(1, keepdims=True)
    probabilities = answer(ProtoNet())
    np.testing.assert_allclose(probabilities[:, :2], expected, rtol=1e-5)
    assert (probabilities[:, 2] < 1e-6).all()


def test_matching_net_by_hand():
    lengths = np.sqrt((QUERY**2).sum(1))
    cosines = np.stack([QUERY[:, 0], QUERY[:, 0], QUERY[:, 1]], axis=1) / lengths[:, None]
    weights = np.exp(4 * cosines) / np.exp(4 * cosines).sum(1, keepdims=True)
    probabilities = answer(MatchingNet(sharpness=4.0))
    np.testing.assert_allclose(probabilities[:, 0], weights[:, 0] + weights[:, 1], rtol=1e-5)
    np.testing.assert_allclose(probabilities[:, 1], weights[:, 2], rtol=1e-5)
    assert (probabilities[:, 2] < 1e-6).all()
    assert MatchingNet(sharpness=0.0).validation_errors() == ["sharpness must be positive, got 0.0"]


def test_a_neural_process_does_not_read_images():
    with pytest.raises(InputError, match="needs vectors, not images: use --learner protonet"):
        NeuralProcess().init(Spec(x_shape=(SIZE, SIZE, 3), y_dim=3), key=jax.random.key(0))


@pytest.mark.parametrize(
    ("learner", "spec", "message"),
    [
        (ProtoNet(), Spec(x_shape=(1,), y_dim=1), "reads images"),
        (MatchingNet(net=MLPNet()), Spec(x_shape=(1,), y_dim=1), "at least two classes"),
        (MAML(net=Conv4Net(blocks=4)), Spec(x_shape=(8, 8, 3), y_dim=5), "lower --blocks"),
    ],
)
def test_nets_and_tasks_that_do_not_fit_are_refused_in_words(learner, spec, message):
    with pytest.raises(InputError, match=message):
        learner.init(spec, key=jax.random.key(0))


def test_bmaml_refuses_statistics_of_the_support_set():
    assert "--statistics batch" in BMAML(net=Conv4Net(statistics="support")).validation_errors()[0]


# One training's settings, so that what one test compiled the next one finds.
@pytest.mark.parametrize("statistics", ["query", "support"])
def test_scores_are_those_of_the_fitted_task(statistics, source, tmp_path):
    learner = MAML(net=Conv4Net(filters=3, blocks=1), loss=cross_entropy, inner_lr=0.5, inner_steps=1)
    run = untrained(tmp_path / "run", Config(source, learner))
    scores = run.scores(num_tasks=4, seed=0, steps=2, statistics=statistics)
    last = run.scores(num_tasks=4, seed=0, steps=2, statistics=statistics, every_step=False)
    np.testing.assert_allclose(last.by_step[:, 0], scores.by_step[:, 2], rtol=1e-5)
    for row, (part, key) in zip((0, 2), parts_to_score(source, 0), strict=True):
        task = part.sample(jax.random.fold_in(key, 0))
        fitted = run.adapt(task.support.x, task.support.y, steps=2, statistics=statistics)
        right = fitted.classify(task.query.x) == np.asarray(task.query.y).argmax(1)
        assert scores.after(2)[row] == pytest.approx(100 * right.mean(), rel=1e-5)


TINY = {
    **{"ways": 3, "queries": 2, "test_queries": 3, "filters": 3, "blocks": 2},
    **{"steps": 60, "meta_batch": 4, "outer_lr": 0.01, "log_every": 30, "validate_every": 30},
    **{"validation_tasks": 20, "max_eval_inner_steps": 1},
}


def command(pools, out, *more):
    given = [part for name, value in TINY.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    start = ["train", "images-1shot", "--learner", "protonet", "--size", str(SIZE), *given]
    return [*start, "--data", str(pools), "--datasets", "a", "b", "--out", str(out), *more]


def test_from_the_command_line(pools, tmp_path, monkeypatch, capsys):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert main(command(pools, whole)) == 0
    with monkeypatch.context() as patch:  # a person presses Ctrl-C in the first block
        patch.setattr(loop, "interruptible", lambda: contextlib.nullcontext(lambda: True))
        assert main(command(pools, resumed)) == 130
    assert main(command(pools, resumed, "--resume")) == 0
    states = [json.loads((folder / "last.json").read_text()) for folder in (whole, resumed)]
    assert states[0]["step"] == states[1]["step"] == 60
    assert states[0]["sha256"] == states[1]["sha256"]
    checks = [json.loads(line)["validation"] for line in (whole / "metrics.jsonl").read_text().splitlines()]
    best = json.loads((whole / "best.json").read_text())["validation"]
    assert best["value"] == max(check["value"] for check in checks)  # of accuracies the highest

    capsys.readouterr()
    assert main(["evaluate", str(whole), "--num-tasks", "80", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metric"] == "accuracy"
    assert result["learner"] == "protonet"
    assert 65 < result["value"] < 100.001  # of classes never seen; chance is 33.3
    assert {name: one["num_tasks"] for name, one in result["by_family"].items()} == {"a": 40, "b": 40}
    both = result["statistics"]
    assert both["transductive"]["value"] == pytest.approx(result["value"])
    assert 50 < both["support statistics"]["value"] < 100.001
    gap = both["support statistics"]["value"] - both["transductive"]["value"]
    assert both["support statistics minus transductive"]["difference"] == pytest.approx(gap)
    assert main(["evaluate", str(whole), "--tasks", "80"]) == 0
    said = capsys.readouterr().out
    assert "transductive: " in said
    assert "support statistics: " in said

    run, x = load(whole), np.random.default_rng(0).uniform(size=(3, SIZE, SIZE, 3))
    probabilities = np.exp(run.adapt(x, np.eye(3)).predict(x))
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (probabilities.argmax(1) == [0, 1, 2]).all()


def test_missing_images_are_asked_for(tmp_path, capsys):
    assert main(command(tmp_path / "nowhere", tmp_path / "run")) == 2
    assert f"metagrove data prepare a --from FOLDER_OR_ARCHIVE --size {SIZE}" in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


def test_an_experiment_keeps_every_score_and_the_checksums(pools, tmp_path, monkeypatch):
    settings = {"datasets": ("a", "b"), "data": str(pools)}
    rows = (
        image_row("ProtoNet, 1-shot", "protonet", "images-1shot", **settings),
        image_row("Matching networks, 1-shot", "matching-net", "images-1shot", "43.56", **settings),
    )
    how = {**IMAGE_EXPERIMENT, "budgets": {"paper": Budget(TINY, None, tasks=8)}}
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("a tiny one", rows, **how))
    monkeypatch.setattr("metagrove.workers.pool.open_pool", lambda *_: InThisProcess())
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "tiny", "--size", str(SIZE), "--out", "results"]) == 0
    result = json.loads(Path("results", f"tiny-{SIZE}.json").read_text())
    assert result["provenance"]["command"] == f"metagrove reproduce tiny --size {SIZE}"
    sums = {name: hashlib.sha256((pools / f"{name}-{SIZE}" / "images.npy").read_bytes()).hexdigest() for name in "ab"}
    for row in result["rows"]:
        (seed,) = row["seeds"]
        assert seed["data"] == sums
        scores = {name: [float(one) for one in text.split()] for name, text in seed["scores"].items()}
        assert {name: len(one) for name, one in scores.items()} == {"a": 4, "b": 4}
        evaluation = seed["evaluation"]
        assert evaluation["metric"] == "accuracy"
        assert len(evaluation["by_step"]) == 1  # after the chosen number of steps alone
        assert evaluation["value"] == pytest.approx(np.mean(scores["a"] + scores["b"]), rel=1e-4)
        assert seed["config"]["source"]["size"] == SIZE
    (again,) = reproduce("tiny", size=SIZE, train=False, out=tmp_path)  # from the scores that were kept
    assert [row.seeds[0].scores for row in again.rows] == [row["seeds"][0]["scores"] for row in result["rows"]]


def test_normalizer_follows_the_embeddings():
    """The minimum is at the mean, and at the mean of the log of each embedding's mean square offset."""
    embeddings = jnp.asarray(np.random.default_rng(0).normal(5, 4, (64, 6)), jnp.float32)
    optimizer = optax.adam(0.003)

    @jax.jit
    def follow_them(normalizer):
        def step(_, carry):
            normalizer, state = carry
            grads = jax.grad(lambda normalizer: jax.vmap(normalizer.neg_log_density)(embeddings).mean())(normalizer)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(normalizer, updates), state

        normalizer, _ = jax.lax.fori_loop(0, 2000, step, (normalizer, optimizer.init(normalizer)))
        return normalizer, jax.vmap(normalizer)(embeddings)

    normalizer, places = follow_them(EmbeddingNormalizer(6))
    center = np.array(embeddings).mean(0)
    np.testing.assert_allclose(MEAN_SPEED * np.array(normalizer.center), center, atol=0.05)
    squares = ((np.array(embeddings) - center) ** 2).mean(1)
    assert float(STD_SPEED * normalizer.log_std) == pytest.approx(np.log(squares).mean() / 2, abs=0.03)
    np.testing.assert_allclose(UNIT * places.mean(0), 0, atol=0.03)
    assert 0.8 < UNIT * float(jnp.sqrt(jnp.square(places).mean())) < 1.3


def test_only_the_tracking_loss_moves_the_normalizer_and_its_value_is_zero():
    learner = HSML(
        net=MLPNet(hidden=(3,)),
        embed=PoolingEmbedding(task_dim=4),
        cluster=RelativeClusters(clusters=(2, 1)),
        inner_steps=1,
    )

    @jax.jit
    def look(key):
        meta, task = learner.init(Functions().spec, key=key), Functions().sample(key)
        (loss, info), grads = eqx.filter_value_and_grad(
            lambda meta: learner.meta_loss(meta, task, key=key), has_aux=True
        )(meta)
        last = jax.tree.map(lambda leaf: leaf[-1], info.path)
        known = mse(last(task.query.x), task.query.y, task.query.mask)
        known += learner.reconstruction_weight * info.metrics["reconstruction_loss"]
        pull = jax.grad(lambda meta: meta.cluster.tracking_loss(info.task_embedding))(meta)
        place = jax.grad(lambda normalizer: normalizer(info.task_embedding).sum())(meta.cluster.normalizer)
        return loss, known, grads.cluster.normalizer, pull, place

    loss, known, grads, pull, place = look(jax.random.key(0))
    assert float(loss) == pytest.approx(float(known), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), grads, pull.cluster.normalizer)
    assert all(np.abs(np.array(leaf)).max() > 0 for leaf in jax.tree.leaves(grads))
    assert all((np.array(leaf) == 0).all() for leaf in jax.tree.leaves((place, pull.net, pull.embed, pull.gate)))


def test_losses_by_hand():
    """Three rows of which the last is padding: p of the right class is 1/2 and 1/4, the first is told rightly."""
    probabilities = np.array([[0.5, 0.3, 0.2], [0.6, 0.25, 0.15], [0.1, 0.1, 0.8]])
    y, mask = jnp.array([[1.0, 0, 0], [0, 1.0, 0], [0, 1.0, 0]]), jnp.array([True, True, False])
    log_probabilities = jnp.asarray(np.log(probabilities), jnp.float32)
    assert float(cross_entropy(log_probabilities, y, mask)) == pytest.approx(-np.log(0.5 * 0.25) / 2)
    assert float(accuracy(log_probabilities, y, mask)) == pytest.approx(50)
    assert float(accuracy(log_probabilities, y, ~mask)) == 0


def test_which_way_is_better():
    assert (metric_of(cross_entropy).name, metric_of(cross_entropy).higher_is_better) == ("accuracy", True)
    assert (metric_of(mse).name, metric_of(mse).higher_is_better) == ("mse", False)
    assert is_better(2.0, 1.0, "accuracy")
    assert not is_better(2.0, 1.0, "mse")
    assert not is_better(1.0, 1.0, "accuracy")
    assert [best_of([3, 1, 2], float, metric) for metric in ("accuracy", "mse")] == [3, 1]

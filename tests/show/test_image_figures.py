"""Figures for images: node shares and agreement by hand, and every file from the command line."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from metagrove import HSML, MAML, MUMOMAML, Examples, Task, files, load
from metagrove.cli.app import main
from metagrove.config.config import Config, Training
from metagrove.config.encoding import to_json
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.embed import PoolingEmbedding
from metagrove.losses import cross_entropy
from metagrove.nets.conv4 import Conv4, Conv4Net
from metagrove.pools import pool
from metagrove.show import image_figures as figures
from metagrove.show.figures import choose_tasks
from metagrove.show.image_figures import kmeans_nmi, node_shares, parameters, sketch
from metagrove.sources.images import Images
from metagrove.training import checkpoint, folders
from metagrove.training.records import BestCheckpoint, BlockRecord, ValidationRecord

NET = {"loss": cross_entropy, "net": Conv4Net(filters=4, blocks=2)}
LEARNERS = {
    "hsml": HSML(
        **NET,
        embed=PoolingEmbedding(example_dim=4, task_dim=6),
        cluster=DistanceClusters(clusters=(3, 2, 1)),
    ),
    "mumomaml": MUMOMAML(**NET, hidden_dim=3),
    "maml": MAML(**NET),
}
NUM_TASKS = 6


def write_pool(data, name, shade):
    """Noise about a shade: three classes of each split, six images each."""
    folder = pool.folder_of(name, 16, data)
    folder.mkdir(parents=True)
    classes = [(f"{split} {i}", split, 6) for split in pool.SPLITS for i in range(3)]
    noise = np.random.default_rng(shade).integers(0, 60, (6 * len(classes), 16, 16, 3))
    pool.write(folder, name, (shade + noise).astype(np.uint8), classes, {})


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    data = tmp_path_factory.mktemp("pools")
    write_pool(data, "dark", 0)
    write_pool(data, "light", 190)
    return Images(datasets=("dark", "light"), size=16, ways=3, queries=2, test_queries=2, data=str(data))


def untrained(config, folder):
    """A run as it is before the first step: what a figure has to say does not depend on how good it is."""
    folder.mkdir()
    meta = config.learner.init(config.source.spec, key=jax.random.key(0))
    validation = ValidationRecord(33.0, 1.0, 0)
    folders.create(folder, to_json(config), "")
    folders.append_metrics(folder, BlockRecord(1, {"loss": 1.1}, validation))
    checkpoint.save(folder, "best", meta, files.as_json(BestCheckpoint(1, validation)))
    return load(folder)


@pytest.fixture(scope="module")
def runs(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: untrained(Config(source, learner, Training(task_chunk_size=1)), folder / name)
        for name, learner in LEARNERS.items()
    }


def shown(path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("L"))


def test_show_draws_every_figure(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(figures, "TASKS_PER_FAMILY", NUM_TASKS)
    hsml, *others = (str(run.folder) for run in runs.values())
    assert main(["show", hsml, "--compare-with", *others, "--out", str(tmp_path)]) == 0
    names = ["training.png", "assignments.png", "tsne.png"]
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    for name in names:
        pixels = shown(tmp_path / name)
        assert min(pixels.shape) > 500
        assert pixels.std() > 5


def test_a_learner_without_clusters_is_shown_with_a_note(runs):
    drawn = figures.assignments_beside_images(runs["maml"], seed=0)
    assert len(drawn.axes) == 12
    assert "no clusters" in drawn.get_suptitle()
    panel = figures.initializations([runs["maml"]], tasks_per_family=NUM_TASKS, seed=0).axes[0]
    assert "same" in panel.texts[0].get_text()


def test_titles_tell_agreement(runs):
    panels = figures.initializations([runs["hsml"], runs["mumomaml"]], tasks_per_family=NUM_TASKS, seed=0).axes
    own, rival = (panel.get_title() for panel in panels)
    assert "k-means" in own
    assert "own clusters" in own
    assert "k-means" in rival
    assert "own clusters" not in rival


def test_runs_of_other_images_are_refused(runs, source):
    config = dataclasses.replace(runs["maml"].config, source=dataclasses.replace(source, ways=2))
    with pytest.raises(ValueError, match="cannot be compared with"):
        figures.draw_images(runs["hsml"], [dataclasses.replace(runs["maml"], config=config)], seed=0)


def test_tasks_are_chosen_evenly_and_are_the_first(source, runs):
    tasks = choose_tasks(source, 5, seed=3)
    assert [drawn.name for drawn in tasks] == ["dark 1", "dark 2", "light 1", "light 2", "light 3"]
    assert [float(drawn.task.support.x.mean()) > 0.5 for drawn in tasks] == [False, False, True, True, True]
    _, families, shares = figures.tailored(runs["hsml"], figures.test_parts(source, 3), num_tasks=NUM_TASKS)
    assert families.tolist() == [0] * NUM_TASKS + [1] * NUM_TASKS
    own = [figures.adapt(runs["hsml"], drawn.task, steps=0).assignments[0][0] for drawn in tasks]
    np.testing.assert_allclose(own, np.asarray(shares)[[0, 1, NUM_TASKS, NUM_TASKS + 1, NUM_TASKS + 2]], rtol=1e-3)


def test_tasks_of_a_held_out_dataset_alone(source):
    tasks = choose_tasks(dataclasses.replace(source, held_out="light"), 3, seed=0)
    assert [drawn.name for drawn in tasks] == ["light 1", "light 2", "light 3"]


def test_node_shares_by_hand():
    first = np.array([[0.5, 0.3, 0.2]])
    second = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    shares = node_shares([first, second, np.ones((2, 1))])
    assert [level.tolist() for level in shares] == [[0.5, 0.3, 0.2], [0.65, 0.35], [1.0]]


@pytest.mark.parametrize("clusters", [(1,), (4, 1), (10, 5, 3, 1)])
def test_any_hierarchy_is_drawn(clusters):
    levels = [np.full((above, k), 1 / k) for above, k in zip((1, *clusters), clusters, strict=False)]
    axes = figures.Figure().subplots()
    figures.draw_hierarchy(axes, levels)
    assert [len(level.get_offsets()) for level in axes.collections] == list(clusters)
    assert len(axes.lines) == sum(above * k for above, k in itertools.pairwise(clusters))


def test_the_first_image_of_each_class_is_shown():
    x = jnp.linspace(0, 1, 4)[:, None, None, None] * jnp.ones((4, 16, 16, 3))
    support = Examples(x, jnp.eye(2)[jnp.array([1, 1, 0, 0])], jnp.array([False, True, True, True]))
    images = figures.first_of_each_class(Task(support, support, jnp.array(0)))
    np.testing.assert_allclose(images[:, 0, 0, 0], [2 / 3, 1 / 3], rtol=1e-6)
    assert figures.strip(images).shape == (16, 33, 3)


def test_separated_vectors_agree_with_their_families():
    families = np.repeat(np.arange(3), 20)
    noise = np.random.default_rng(0).normal(size=(60, 5))
    assert kmeans_nmi(noise + 100 * families[:, None], families) == pytest.approx(1)
    assert kmeans_nmi(noise, families) < 0.3


def test_a_sketch_keeps_distances_and_drops_what_is_common():
    random = np.random.default_rng(1)
    common, own = random.normal(size=20_000), random.normal(size=(4, 3_300))
    rows = [np.concatenate([common, one]).astype(np.float32) for one in own]
    sketches = [np.asarray(sketch(jnp.asarray(row))) for row in rows]
    for i, j in [(0, 1), (0, 2), (1, 3)]:
        distance = np.linalg.norm(own[i] - own[j])
        assert np.linalg.norm(sketches[i] - sketches[j]) == pytest.approx(distance, rel=0.15)
    assert sketch(jnp.arange(3.0)).tolist() == [0, 1, 2]


def test_a_support_set_that_a_net_was_told_of_is_no_parameter():
    support = Examples(jnp.ones((2, 4, 4, 3)), jnp.eye(2), jnp.ones(2, bool))
    net = Conv4((jnp.zeros((3, 3, 3, 1)),), (jnp.zeros(1),), jnp.zeros((4, 2)), jnp.zeros(2), statistics="support")
    assert parameters(net.bind_support(support)).shape == parameters(net).shape == (27 + 1 + 8 + 2,)

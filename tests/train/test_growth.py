"""Growing clusters: what stays, what is new, when it happens, and that nothing of it is lost."""

import contextlib
import dataclasses
import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TINY_HSML, TINY_TRAINING
from scipy.stats import ttest_ind

from metagrove import MAML, Functions, files, load
from metagrove.adam import scale_by_aged_adam
from metagrove.cli.app import main
from metagrove.config.config import Config, Growth, check_config
from metagrove.errors import InputError, RunError
from metagrove.evaluate.summaries import evaluation
from metagrove.hsml.cluster import Level
from metagrove.hsml.grow import grow, shrink
from metagrove.learner import num_parameters
from metagrove.losses import cross_entropy
from metagrove.sources.stream import Stream
from metagrove.train import folders
from metagrove.train import growth as growth_module
from metagrove.train import loop as train_module
from metagrove.train.growth import (
    Watch,
    change_clusters,
    compare_windows,
    describe_growth,
    grow_now,
    retire,
)
from metagrove.train.loop import init_state, train
from metagrove.train.novelty import along_the_difference, novelty, welch_t
from metagrove.train.scores import Scores

LEARNER = dataclasses.replace(TINY_HSML, clusters=(2, 2, 1), aggregator="mean", masses=True)
GROWTH = Growth(growth_window=10, growth_threshold=0.01, growth_cooldown=20, growth_start="warm")
TRAINING = dataclasses.replace(TINY_TRAINING, schedule="constant", warmup_steps=0, log_every=5, growth=GROWTH)
CONFIG = Config(Stream(timetable=("0: sinusoid line", "1/2: *")), LEARNER, TRAINING)
KEY = jax.random.key(1)
PLACE = jnp.linspace(-0.5, 0.5, 6)


@pytest.fixture(scope="module")
def state():
    """A state whose optimiser has seen a gradient, so that no moment is 0."""
    return eqx.filter_jit(after_one_gradient)()


def after_one_gradient():
    fresh = init_state(CONFIG)
    params = eqx.filter(fresh.meta, eqx.is_inexact_array)
    grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), params)
    updates, opt_state = TRAINING.optimizer().update(grads, fresh.opt_state, params)
    return dataclasses.replace(fresh, meta=eqx.apply_updates(fresh.meta, updates), opt_state=opt_state)


@pytest.mark.parametrize("start", ["random", "warm", "unchanged"])
@pytest.mark.parametrize("level", [0, 1])
def test_growing_keeps_every_old_number_bit_for_bit(state, start, level):
    learner, meta, opt_state = grow(
        LEARNER, state.meta, state.opt_state, key=KEY, level=level, start=start, place=PLACE
    )
    assert learner.clusters == ((3, 2, 1), (2, 3, 1))[level]
    grown = 0
    before, after = (
        jax.tree_util.tree_leaves_with_path((m, o)) for m, o in [(state.meta, state.opt_state), (meta, opt_state)]
    )
    for (path, old), (same_path, new) in zip(before, after, strict=True):
        assert path == same_path
        if old.shape != new.shape:
            grown += 1
            assert (f".levels[{level}]") in jax.tree_util.keystr(path)
            assert new.shape == (3, *old.shape[1:])
            if path[0].idx == 1:  # a moment, or an age: the new row starts at nothing
                assert not new[2].any()
        np.testing.assert_array_equal(new[: len(old)] if old.shape != new.shape else new, old)
    assert grown == 4 * 4  # centres, W, b and mass: the parameters, two moments and the ages


def test_growing_fits_the_learner_it_gives(state):
    learner, meta, _ = grow(LEARNER, state.meta, state.opt_state, key=KEY)
    drawn = learner.init(Functions().spec, key=KEY)
    assert jax.tree.map(jnp.shape, eqx.filter(meta, eqx.is_array)) == jax.tree.map(
        jnp.shape, eqx.filter(drawn, eqx.is_array)
    )


def test_shrinking_undoes_growing(state):
    grown = grow(LEARNER, state.meta, state.opt_state, key=KEY)
    learner, meta, opt_state = shrink(*grown, cluster=2)
    assert learner == LEARNER
    for back, old in zip(
        jax.tree.leaves((meta, opt_state)), jax.tree.leaves((state.meta, state.opt_state)), strict=True
    ):
        np.testing.assert_array_equal(back, old)


@eqx.filter_jit
def answers(learner, meta):
    task = Functions().sample(jax.random.key(5))
    return learner.adapt(meta, task.support)[0](task.query.x)


def test_an_unchanged_start_changes_no_answer_and_can_learn(state):
    learner, meta, _ = grow(LEARNER, state.meta, state.opt_state, key=KEY, start="unchanged", place=PLACE)
    np.testing.assert_allclose(answers(learner, meta), answers(LEARNER, state.meta), rtol=1e-5, atol=1e-6)
    slope = eqx.filter_jit(eqx.filter_grad(lambda meta: answers(learner, meta).sum()))(meta).cluster.levels[0].mass[2]
    assert abs(float(slope)) > 0


def test_other_starts(state):
    old = state.meta.cluster.levels[0]
    _, random, _ = grow(LEARNER, state.meta, state.opt_state, key=KEY)
    assert (
        np.abs(answers(dataclasses.replace(LEARNER, clusters=(3, 2, 1)), random) - answers(LEARNER, state.meta)).max()
        > 0
    )
    _, warm, _ = grow(LEARNER, state.meta, state.opt_state, key=KEY, start="warm", place=PLACE)
    nearest = int(np.square(np.asarray(old.centers) - np.asarray(PLACE)).sum(1).argmin())
    new = warm.cluster.levels[0]
    np.testing.assert_array_equal(new.centers[2], PLACE)
    np.testing.assert_array_equal(new.weight[2], old.weight[nearest])
    np.testing.assert_array_equal(new.mass, [*old.mass, 1.0])


def test_what_cannot_grow_or_shrink_is_refused(state):
    with pytest.raises(InputError, match=r"level 3 of \(2, 2, 1\) has one cluster and cannot grow"):
        grow(LEARNER, state.meta, state.opt_state, key=KEY, level=2)
    with pytest.raises(InputError, match="needs the place"):
        grow(LEARNER, state.meta, state.opt_state, key=KEY, start="warm")
    with pytest.raises(InputError, match="no cluster to spare"):
        shrink(LEARNER, state.meta, state.opt_state, cluster=0)
    without = dataclasses.replace(LEARNER, masses=False)
    plain = without.init(Functions().spec, key=KEY)
    with pytest.raises(InputError, match="masses=True"):
        grow(without, plain, (), key=KEY, start="unchanged", place=PLACE)


def test_aged_adam_is_adam_until_something_is_born():
    params = {"w": jnp.arange(6.0).reshape(3, 2), "b": jnp.ones(())}
    ours, theirs = scale_by_aged_adam(), optax.scale_by_adam()
    own, other = ours.init(params), theirs.init(params)
    for step in range(5):
        grads = jax.tree.map(lambda p, step=step: jnp.cos(p + step), params)
        updates, own = ours.update(grads, own)
        expected, other = theirs.update(grads, other)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, rtol=1e-6)), updates, expected))


def test_a_row_born_late_takes_a_first_step_of_the_usual_size():
    """Adam's first step is the sign of the gradient; with the count of the older rows it would be 3.16 times that."""
    rule = scale_by_aged_adam()
    state = rule.init(jnp.zeros((1, 2)))
    for _ in range(1000):
        _, state = rule.update(jnp.full((1, 2), 2.0), state)
    longer = [jnp.concatenate([part, jnp.zeros_like(part)]) for part in state]
    updates, state = rule.update(jnp.full((2, 2), 2.0), type(state)(*longer))
    np.testing.assert_allclose(updates, np.ones((2, 2)), rtol=1e-4)
    assert state.age[:, 0].tolist() == [1001, 1]


def test_ratio_and_welch_by_hand():
    before = [[10.0, 2.0], [10.0, 3.0], [20.0, 2.5]]
    now = [[10.0, 3.0], [10.0, 4.0], [20.0, 3.5]]
    paper = Growth(growth_window=40, growth_threshold=1.25)
    cause = compare_windows(before, now, paper, higher_is_better=False)
    assert (cause["last_window"], cause["this_window"], cause["ratio"], cause["grow"]) == (2.5, 3.5, 1.4, True)
    assert not compare_windows(before, now, dataclasses.replace(paper, growth_threshold=1.41), higher_is_better=False)[
        "grow"
    ]
    accuracy = dataclasses.replace(paper, growth_threshold=0.85)
    assert compare_windows(now, before, accuracy, higher_is_better=True)["grow"]  # .71 of what it was
    assert not compare_windows(before, now, accuracy, higher_is_better=True)["grow"]
    first, second = [3.0, 4.0, 3.5], [2.0, 3.0, 2.5, 2.2]
    assert welch_t(first, second) == pytest.approx(ttest_ind(first, second, equal_var=False).statistic)
    welch = Growth(growth_window=40, growth_detector="welch", growth_t=2.0)
    assert compare_windows(before, now, welch, higher_is_better=False)["grow"]
    assert not compare_windows(now, before, welch, higher_is_better=False)["grow"]
    assert compare_windows(now, before, welch, higher_is_better=True)["grow"]


def test_windows_rest_after_the_start_and_after_a_growth():
    watch, growth = Watch(), Growth(growth_window=20, growth_threshold=1.25, growth_cooldown=50)
    losses = {10: 1, 20: 1, 30: 9, 40: 9, 50: 9, 60: 9, 70: 20, 80: 20}
    caused = {step: watch.see({"step": step, "loss": float(loss)}, growth) for step, loss in losses.items()}
    assert {step for step, cause in caused.items() if cause} == {80}  # 40 is within 50 of the start
    watch.last_growth = 80
    assert not any(watch.see({"step": step, "loss": 99.0}, growth) for step in (90, 100))


def test_clusters_that_nothing_uses_retire(state):
    grown = grow(LEARNER, state.meta, state.opt_state, key=KEY)
    shares = np.array([0.5, 0.004, 0.496])
    learner, meta, _, gone = retire(*grown, shares, Growth(retire_below=0.01))
    assert (learner.clusters, gone) == ((2, 2, 1), [1])
    np.testing.assert_array_equal(meta.cluster.levels[0].centers[1], grown[1].cluster.levels[0].centers[2])
    assert retire(*grown, np.array([0.001, 0.002, 0.997]), Growth(retire_below=0.01))[3] == [0]  # two always stay


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown")
    assert train(CONFIG, folder)
    return folder


def test_a_run_that_grows_tells_when_and_why(finished):
    records = folders.read_metrics(finished)
    events = [r for r in records if "growth" in r]
    assert [r["step"] for r in events] == [20]
    event = events[0]["growth"]
    assert (event["from"], event["clusters"], event["start"]) == ([2, 2, 1], [3, 2, 1], "warm")
    losses = {r["step"]: r["loss"] for r in records if "loss" in r}
    assert event["cause"]["watched"] == "loss"
    assert event["cause"]["last_window"] == pytest.approx((losses[5] + losses[10]) / 2)
    assert event["cause"]["this_window"] == pytest.approx((losses[15] + losses[20]) / 2)
    assert event["changed"] > 0
    assert records[0]["step"] == 0
    shares = [r["validation"]["shares"] for r in records if "validation" in r]
    assert [len(one) for one in shares] == [2, 2, 3]  # at 0, 20 (before it grew) and 40
    assert set(records[-1]["validation"]["by_family"]) == {"sinusoid", "line", "quadratic", "cubic"}


def test_a_grown_run_is_loaded_evaluated_and_drawn(finished, tmp_path):
    run = load(finished)
    assert run.config.learner.clusters == (3, 2, 1)
    assert num_parameters(run.meta) > num_parameters(init_state(CONFIG).meta)
    result = evaluation(run, num_tasks=20, seed=0)
    assert result["growth"][0]["step"] == 20
    assert set(result["transfer"]["by_family"]["forward"]) == {"quadratic", "cubic"}
    assert main(["show", str(finished), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "stream.png").stat().st_size > 10_000


@pytest.mark.parametrize("step", [15, 25])
def test_resume_across_a_growth_is_bit_for_bit(finished, tmp_path, monkeypatch, step):
    """Stopped in the middle of a window, before the growth and after it; at 40, the last step, nothing grows."""
    append = folders.append_metrics
    asked = []

    def count(folder, record):
        append(folder, record)
        asked.extend([True] if record["step"] == step else [])

    with monkeypatch.context() as patched:
        patched.setattr(folders, "append_metrics", count)
        patched.setattr(train_module, "interruptible", lambda: contextlib.nullcontext(lambda: bool(asked)))
        assert not train(CONFIG, tmp_path)
    assert files.read_json(tmp_path / "last.json")["step"] == step
    assert train(CONFIG, tmp_path, resume=True)
    assert folders.read_metrics(tmp_path) == folders.read_metrics(finished)
    one, other = (files.read_json(folder / "last.json") for folder in (tmp_path, finished))
    assert one["sha256"] == other["sha256"]


def test_in_a_stream_the_best_checkpoint_is_of_the_last_phase(finished):
    best = files.read_json(finished / "best.json")
    assert (best["phase"], best["step"]) == (1, 40)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dataclasses.replace(CONFIG, learner=MAML()), "growth_window must be 0 for MAML: it has no clusters"),
        (CONFIG.with_settings(growth_start="unchanged", masses=False), "needs --masses"),
        (CONFIG.with_settings(growth_start="unchanged", growth_parents=True), "--no-growth-parents"),
        (CONFIG.with_settings(growth_window=0, retire_below=0.1), "retire_below needs a growth_window"),
        (CONFIG.with_settings(loss=cross_entropy, growth_threshold=1.25), "must be below 1 for an accuracy"),
        (CONFIG.with_settings(steps=1), "rising starts below --steps 1"),
        (CONFIG.with_settings(log_every=0), "log_every must be at least 1"),
        (CONFIG.with_settings(growth_window=12), "must be a multiple of log_every, got 12"),
        (CONFIG.with_settings(growth_detector="welch"), "at least 3 times log_every"),
        (CONFIG.with_settings(clusters=(1,)), "must begin with two or more to grow"),
        (CONFIG.with_settings(growth_threshold=0.0), "growth_threshold must be positive"),
        (CONFIG.with_settings(growth_probe=3), "growth_probe must be at least 4, got 3"),
    ],
)
def test_settings_that_cannot_grow_are_refused(config, message):
    with pytest.raises(InputError, match=message):
        check_config(config)


def test_a_count_of_clusters_that_does_not_fit_the_weights_is_refused(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    about = files.read_json(tmp_path / "run" / "best.json")
    files.write_json(tmp_path / "run" / "best.json", {**about, "clusters": [4, 2, 1]})
    with pytest.raises(RunError, match="centers"):
        load(tmp_path / "run")


def test_far_centres_of_no_mass_leave_the_others_alone():
    """A cluster of mass 0 sits on the task, the others are so far that e^(-d²/2) is nothing beside 1."""
    level = Level(3, 2, 1.0, learn_scales=False, masses=True, key=KEY)
    far, mass = jnp.array([[9.0, 9.0], [20.0, 0.0], [0.0, 0.0]]), jnp.array([1.0, 1.0, 0.0])
    level = eqx.tree_at(lambda one: (one.centers, one.mass), level, (far, mass))
    np.testing.assert_allclose(level.assign(jnp.zeros((1, 2))), [[1.0, 0.0, 0.0]], atol=1e-6)


def test_what_nothing_uses_retires_and_novelty_grows(state, monkeypatch):
    """One block of training after another, as `train` shows them; answers and what is found of tasks are made up."""
    growth = Growth(growth_window=15, growth_cooldown=15, growth_detector="novelty", growth_t=5.0, retire_below=0.05)
    learner, meta, opt_state = grow(LEARNER, state.meta, state.opt_state, key=KEY)
    config = dataclasses.replace(CONFIG, learner=learner, training=dataclasses.replace(TRAINING, growth=growth))
    state = dataclasses.replace(state, meta=meta, opt_state=opt_state)
    answers, found = {3: 1.0, 2: 1.5}, {15: 1.0, 30: 4.9, 45: 5.1}
    monkeypatch.setattr(
        growth_module,
        "validation_scores",
        lambda config, _: Scores(
            np.ones((1, 1)), np.zeros(1), None, 0, np.array([[answers[config.learner.clusters[0]]]])
        ),
    )
    monkeypatch.setattr(
        growth_module,
        "novelty",
        lambda _l, _m, _t, since, step, _c, *, key: (
            looks.append((int(since), int(step)))
            or {
                "watched": "embedding",
                "last_window": 0.0,
                "this_window": 1.0,
                "t": found[int(step)],
            }
        ),
    )
    watch, told, looks = dataclasses.asdict(Watch()), [], []
    shares = {"validation": {"shares": [0.6, 0.38, 0.02]}}
    for step in range(5, 50, 5):
        record = {"step": step, "loss": 1.0, **(shares if step in (10, 20) else {})}
        state = dataclasses.replace(state, step=jnp.asarray(step))
        config, state = change_clusters(config, state, Functions(), record, watch)
        told += [(step, record["growth"])] if "growth" in record else []
    (first, retired), (second, grown) = told
    assert (first, retired["clusters"], retired["cause"]["retired"]) == (20, [2, 2, 1], [2])  # at 10 it still rests
    assert retired["changed"] == 0.5
    assert (second, grown["clusters"], grown["cause"]["watched"]) == (45, [3, 2, 1], "embedding")
    assert state.meta.cluster.levels[0].centers.shape == (3, 6)
    assert looks == [(0, 15), (15, 30), (30, 45)]
    assert "1 that nothing used retired; answers changed by 50.0 %" in describe_growth(retired)
    assert "embedding from 0.000 to 1.000 (t 5.1)" in describe_growth(grown)


def test_tasks_of_other_kinds_are_told_from_the_same_kinds_by_their_embeddings(state):
    """Of a stream whose tasks change at its middle, under a model that has learned nothing yet."""
    training = dataclasses.replace(TRAINING, steps=100, growth=dataclasses.replace(GROWTH, growth_probe=400))
    stream = Stream(timetable=("0: sinusoid", "1/2: sinusoid line")).split("train")
    found = {
        (since, step): novelty(LEARNER, state.meta, stream, *map(jnp.asarray, (since, step)), training, key=KEY)["t"]
        for since, step in ((0, 50), (50, 51), (0, 90), (51, 90))
    }
    assert min(found[50, 51], found[0, 90]) > 5 > max(abs(found[0, 50]), abs(found[51, 90]))


def test_where_nothing_has_changed_novelty_is_a_plain_t():
    rng = np.random.default_rng(0)
    t = [
        welch_t(*reversed(along_the_difference(*rng.normal(size=(2, 100, 30)).astype(np.float32)))) for _ in range(200)
    ]
    assert abs(np.mean(t)) < 0.3
    assert 0.8 < np.std(t) < 1.2


def test_parents_grow_where_they_have_become_narrow():
    learner = dataclasses.replace(LEARNER, clusters=(4, 2, 1))
    meta = learner.init(Functions().spec, key=KEY)
    for parents, expected in ((False, (5, 2, 1)), (True, (5, 3, 1))):
        growth = Growth(growth_window=10, growth_parents=parents)
        training = dataclasses.replace(TRAINING, growth=growth)
        assert grow_now(learner, meta, (), Functions(), training, key=KEY)[0].clusters == expected

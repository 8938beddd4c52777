"""Growing clusters: what stays, what is new, when it happens, and that nothing of it is lost."""

import contextlib
import dataclasses
import json
import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import TINY_TRAINING, hsml
from scipy.stats import ttest_ind

from metagrove import MAML, Functions, files, load
from metagrove.adam import clip_by_norm, cosine_decay, scale_by_aged_adam
from metagrove.cli.app import main
from metagrove.config.config import Config, Growth, check_config
from metagrove.errors import InputError, RunError
from metagrove.evaluation.summaries import evaluate
from metagrove.learner import num_parameters
from metagrove.losses import cross_entropy
from metagrove.sources.source import Steady
from metagrove.sources.stream import Stream
from metagrove.training import folders
from metagrove.training import loop as train_module
from metagrove.training.growth import describe_growth, grow_if_called_for
from metagrove.training.growth import grow as growth_module
from metagrove.training.growth.detect import NoveltyDetector, Observation, RatioDetector, along_the_difference, welch_t
from metagrove.training.loop import train
from metagrove.training.phases import init_state
from metagrove.training.records import BlockRecord, GrowthCause, GrowthState
from metagrove.training.scores import Scores

LEARNER = hsml(clusters=(2, 2, 1), embed="mean")
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


@pytest.mark.parametrize("start", ["random", "warm"])
def test_growing_keeps_every_old_number_bit_for_bit(state, start):
    learner, meta, opt_state = LEARNER.grow(state.meta, state.opt_state, key=KEY, start=start, place=PLACE)
    assert learner.clusters == (3, 2, 1)
    grown = 0
    before, after = (
        jax.tree_util.tree_leaves_with_path((m, o)) for m, o in [(state.meta, state.opt_state), (meta, opt_state)]
    )
    for (path, old), (same_path, new) in zip(before, after, strict=True):
        assert path == same_path
        if old.shape != new.shape:
            grown += 1
            assert ".levels[0]" in jax.tree_util.keystr(path)
            assert new.shape == (3, *old.shape[1:])
            if path[0].idx == 1:  # a moment, or an age: the new row starts at nothing
                assert not new[2].any()
        np.testing.assert_array_equal(new[: len(old)] if old.shape != new.shape else new, old)
    assert grown == 3 * 4  # centres, W and b: the parameters, two moments and the ages


def test_growing_fits_the_learner_it_gives(state):
    learner, meta, _ = LEARNER.grow(state.meta, state.opt_state, key=KEY)
    drawn = learner.init(Functions().spec, key=KEY)
    assert jax.tree.map(jnp.shape, eqx.filter(meta, eqx.is_array)) == jax.tree.map(
        jnp.shape, eqx.filter(drawn, eqx.is_array)
    )


@eqx.filter_jit
def answers(learner, meta):
    task = Functions().sample(jax.random.key(5))
    return learner.adapt(meta, task.support)[0](task.query.x)


def test_starts(state):
    old = state.meta.cluster.levels[0]
    learner, random, _ = LEARNER.grow(state.meta, state.opt_state, key=KEY)
    assert np.abs(answers(learner, random) - answers(LEARNER, state.meta)).max() > 0
    _, warm, _ = LEARNER.grow(state.meta, state.opt_state, key=KEY, start="warm", place=PLACE)
    nearest = int(np.square(np.asarray(old.centers) - np.asarray(PLACE)).sum(1).argmin())
    new = warm.cluster.levels[0]
    np.testing.assert_array_equal(new.centers[2], PLACE)
    np.testing.assert_array_equal(new.weight[2], old.weight[nearest])


def test_what_cannot_grow_is_refused(state):
    alone = LEARNER.with_clusters((1,))
    with pytest.raises(InputError, match="first level has one cluster cannot grow"):
        alone.grow(alone.init(Functions().spec, key=KEY), (), key=KEY)
    with pytest.raises(InputError, match="needs the place"):
        LEARNER.grow(state.meta, state.opt_state, key=KEY, start="warm")


def test_what_a_learner_says_of_its_clusters(state):
    maml = MAML()
    assert (maml.clusters, maml.cluster_centers(None)) == ((), None)
    np.testing.assert_array_equal(maml.cluster_space(None, PLACE), PLACE)
    assert maml.with_clusters(()) is maml
    with pytest.raises(InputError, match=r"MAML has no clusters, got \(2, 1\)"):
        maml.with_clusters((2, 1))
    with pytest.raises(InputError, match="MAML has no clusters and cannot grow"):
        maml.grow(None, None, key=KEY)
    assert LEARNER.with_clusters((5, 2, 1)).clusters == (5, 2, 1)
    np.testing.assert_array_equal(LEARNER.cluster_centers(state.meta), state.meta.cluster.levels[0].centers)
    np.testing.assert_array_equal(LEARNER.cluster_space(state.meta, PLACE), PLACE)


def test_aged_adam_is_adam_until_something_is_born():
    params = {"w": jnp.arange(6.0).reshape(3, 2), "b": jnp.ones(())}
    ours, theirs = scale_by_aged_adam(), optax.scale_by_adam()
    own, other = ours.init(params), theirs.init(params)
    for step in range(5):
        grads = jax.tree.map(lambda p, step=step: jnp.cos(p + step), params)
        updates, own = ours.update(grads, own)
        expected, other = theirs.update(grads, other)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, rtol=1e-6)), updates, expected))


@pytest.mark.parametrize("size", [0.0, 0.1, 3.0])
def test_clipping_is_that_of_optax(size):
    half = jnp.ones(2, jnp.bfloat16)
    grads = {"w": size * jnp.arange(6.0).reshape(3, 2), "b": jnp.ones(()), "half": half, "none": jnp.zeros((2, 0))}
    updates, _ = clip_by_norm(2.0).update(grads, clip_by_norm(2.0).init(grads))
    expected, _ = optax.clip_by_global_norm(2.0).update(grads, optax.EmptyState())
    assert updates.pop("half").dtype == expected.pop("half").dtype == jnp.bfloat16
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), updates, expected)


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


def test_cosine_decay_is_optaxs_bit_for_bit_though_its_length_is_data():
    decay = jax.jit(lambda counts, steps: jax.lax.map(cosine_decay(0.001, steps), counts))
    for steps in (40, 5500):
        counts = jnp.arange(steps + 2)
        expected = jax.jit(lambda counts, steps=steps: jax.lax.map(optax.cosine_decay_schedule(0.001, steps), counts))
        np.testing.assert_array_equal(decay(counts, jnp.asarray(steps)), expected(counts))


BEFORE = [[10.0, 2.0], [10.0, 3.0], [20.0, 2.5]]
NOW = [[10.0, 3.0], [10.0, 4.0], [20.0, 3.5]]


def test_ratio_by_hand():
    cause, grows = RatioDetector(40, 1.25).compare(BEFORE, NOW, "loss")
    assert (cause, grows) == (GrowthCause("loss", 2.5, 3.5, "ratio", ratio=1.4), True)
    assert not RatioDetector(40, 1.41).compare(BEFORE, NOW, "loss")[1]
    assert RatioDetector(40, 0.85).compare(NOW, BEFORE, "accuracy")[1]  # .71 of what it was
    assert not RatioDetector(40, 0.85).compare(BEFORE, NOW, "accuracy")[1]


def test_welch_t_is_scipys():
    first, second = np.array([3.0, 4.0, 3.5]), np.array([2.0, 3.0, 2.5, 2.2])
    assert welch_t(first, second) == pytest.approx(ttest_ind(first, second, equal_var=False).statistic, rel=1e-12)


def observed(step, loss, *, can_grow=True):
    return Observation(BlockRecord(step, {"loss": float(loss)}), LEARNER, None, Steady(Functions()), can_grow, KEY, 4)


def test_windows_are_remembered_within_the_cool_down():
    state, detector = GrowthState(), RatioDetector(20, 1.25)
    losses, called = {10: 1, 20: 1, 30: 9, 40: 9, 50: 9, 60: 9, 70: 20, 80: 20}, set()
    for step, loss in losses.items():
        state, cause = detector.observe(state, observed(step, loss, can_grow=step >= 50))
        called |= {step} if cause else set()
    assert called == {80}  # 40 is within the cool-down, and at 60 nothing has changed since
    again = files.from_json(GrowthState, files.as_json(state))
    assert again == state == GrowthState((), ((10.0, 20.0), (10.0, 20.0)), 0, 80)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grown")
    assert train(CONFIG, folder)
    return folder


def test_a_run_that_grows_tells_when_and_why(finished):
    records = folders.read_metrics(finished)
    (grown,) = (r for r in records if r.growth)
    event = grown.growth
    assert (grown.step, event.before, event.clusters, event.start) == (20, (2, 2, 1), (3, 2, 1), "warm")
    losses = {r.step: r.means["loss"] for r in records if r.means}
    assert event.cause.watched == "loss"
    assert event.cause.last_window == pytest.approx((losses[5] + losses[10]) / 2)
    assert event.cause.this_window == pytest.approx((losses[15] + losses[20]) / 2)
    assert event.changed > 0
    assert records[0].step == 0
    shares = [r.validation.shares for r in records if r.validation]
    assert [len(one) for one in shares] == [2, 2, 3]  # at 0, 20 (before it grew) and 40
    assert set(records[-1].validation.by_family) == {"sinusoid", "line", "quadratic", "cubic"}


def test_the_keys_of_metrics_stay_as_they_are(finished):
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert list(lines[0]) == ["step", "validation"]
    line = next(line for line in lines if "growth" in line)
    assert [key for key in line if key in ("step", "loss", "gradient_norm", "validation", "growth")] == [
        "step",
        "gradient_norm",
        "loss",
        "validation",
        "growth",
    ]
    assert list(line["validation"]) == ["value", "ci95", "steps", "by_family", "nmi", "shares"]
    assert list(line["growth"]) == ["from", "clusters", "cause", "start", "changed"]
    assert list(line["growth"]["cause"]) == ["watched", "last_window", "this_window", "detector", "ratio"]


def test_a_grown_run_is_loaded_evaluated_and_drawn(finished, tmp_path):
    run = load(finished)
    assert run.config.learner.clusters == (3, 2, 1)
    assert num_parameters(run.meta) > num_parameters(init_state(CONFIG).meta)
    result = evaluate(run, num_tasks=20, seed=0)
    assert result.stream.growth[0].step == 20
    assert set(result.stream.transfer.by_family["forward"]) == {"quadratic", "cubic"}
    told = files.as_json(result)
    assert {"run", "value", "by_family", "clusters", "growth", "transfer", "checkpoint"} <= set(told)
    assert told["growth"][0]["from"] == [2, 2, 1]
    assert main(["show", str(finished), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "stream.png").stat().st_size > 10_000


@pytest.mark.parametrize("step", [15, 25])
def test_resume_across_a_growth_is_bit_for_bit(finished, tmp_path, monkeypatch, step):
    """Stopped in the middle of a window, before the growth and after it; at 40, the last step, nothing grows."""
    append = folders.append_metrics
    asked = []

    def count(folder, record):
        asked.extend([True] if record.step == step else [])
        return append(folder, record)

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
        (CONFIG.with_settings(loss=cross_entropy, growth_threshold=1.25), "must be below 1 for an accuracy"),
        (CONFIG.with_settings(steps=1), "increasing starts below --steps 1"),
        (CONFIG.with_settings(log_every=0), "log_every must be at least 1"),
        (CONFIG.with_settings(growth_window=12), "must be a multiple of log_every, got 12"),
        (CONFIG.with_settings(clusters=(1,)), "must begin with two or more to grow"),
        (CONFIG.with_settings(gate_inputs=("root", "assignment")), "growth_window must be 0 where the gate reads"),
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


def test_novelty_looks_at_window_ends_and_grows(state, monkeypatch):
    """One block of training after another, as `train` shows them; answers and what is found of tasks are made up."""
    growth = Growth(growth_window=15, growth_cooldown=15, growth_detector="novelty", growth_t=5.0)
    config = dataclasses.replace(CONFIG, training=dataclasses.replace(TRAINING, growth=growth))
    answers, found, looks = {2: 1.0, 3: 1.5}, {15: 1.0, 30: 4.9, 45: 5.1}, []

    def scores(config, _):
        return Scores(np.ones((1, 1)), np.zeros(1), None, 0, np.array([[answers[config.learner.clusters[0]]]]))

    def compare(_, seen, *, since):
        looks.append((since, seen.record.step))
        return GrowthCause("embedding", 0.0, 1.0, "novelty", t=found[seen.record.step])

    monkeypatch.setattr(growth_module, "validation_scores", scores)
    monkeypatch.setattr(NoveltyDetector, "compare", compare)
    grown, told = (config, state.meta, state.opt_state, GrowthState()), []
    for step in range(5, 60, 5):
        config, meta, opt_state, watch = grown
        *grown, event = grow_if_called_for(
            config, meta, opt_state, Steady(Functions()), BlockRecord(step, {"loss": 1.0}), watch
        )
        told += [(step, event)] if event else []
    ((step, event),) = told
    assert (step, event.clusters, event.cause.watched, event.changed) == (45, (3, 2, 1), "embedding", 0.5)
    assert grown[1].cluster.levels[0].centers.shape == (3, 6)
    assert looks == [(0, 15), (15, 30), (30, 45)]
    said = "clusters (2, 2, 1) -> (3, 2, 1), embedding from 0.000 to 1.000 (t 5.1); predictions changed by 50.0 %"
    assert describe_growth(event) == said


def test_tasks_of_other_kinds_are_told_from_the_same_kinds_by_their_embeddings(state):
    """Of a stream whose tasks change at its middle, under a model that has learned nothing yet."""
    schedule = Stream(timetable=("0: sinusoid", "1/2: sinusoid line")).schedule(100)
    detector = NoveltyDetector(window=10, least_t=5.0, num_tasks=400)
    found = {
        (since, step): detector.compare(
            Observation(BlockRecord(step), LEARNER, state.meta, schedule, True, KEY, 400), since=since
        ).t
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

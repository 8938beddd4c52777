"""Training on people's own data, from the shell and from Python; baselines beside it; clusters chosen."""

import contextlib
import dataclasses
import functools
import json
import re
import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from table_files import sensors, write

import metagrove as mg
from metagrove import files
from metagrove.baselines.data import draw_tasks
from metagrove.baselines.fit import REGRESSION
from metagrove.cli.app import main
from metagrove.cli.own import ImageData, image_source, take_auto, without
from metagrove.config.config import check_config
from metagrove.config.encoding import from_json, to_json
from metagrove.config.own_data import table_config
from metagrove.config.registry import LEARNER_GROUPS, learners
from metagrove.errors import STOPPED, DivergedError, InputError, RunError
from metagrove.evaluation import candidates
from metagrove.evaluation.advice import advise, in_prose, recommend
from metagrove.evaluation.baselines import Baselines, Measured, make_result, nan_to_none, own_scores, read_baselines
from metagrove.losses import cross_entropy, mse
from metagrove.own import clusters, training
from metagrove.own.pool import Training, train_all
from metagrove.pools import pool
from metagrove.sources.tables import open_tables
from metagrove.tables.settings import TableData
from metagrove.training.validate import describe, validate

QUICK = {
    "steps": 4,
    "meta_batch": 2,
    "validate_every": 2,
    "log_every": 2,
    "validation_tasks": 6,
    "max_eval_inner_steps": 2,
}
SMALL = {"inner_steps": 1, "hidden": (5,), "aggregator": "mean", "task_dim": 4, "example_dim": 4}


def flags(**settings):
    """Settings as on the command line."""
    words = []
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tables") / "sensors.csv", sensors())


def asked(table, **more):
    return flags(
        tasks=table, task_column="sensor", target="y", inputs=("time", "colour"), stratify="kind", **QUICK, **more
    )


BROKEN = []
"""Fits of a baseline that always fails."""


def broken(data):
    BROKEN.append(len(data.train.x))
    raise InputError("too few tasks")


@pytest.fixture(scope="module")
def few_baselines():
    """Some of them, so that little is compiled, and one that fails."""
    some = {name: REGRESSION[name] for name in ("support-mean", "ridge", "mixed-model")}
    with pytest.MonkeyPatch.context() as patch:
        known = {**some, "broken": candidates.Entry("broken", broken)}
        patch.setattr(candidates, "baselines_for", lambda *, classifies: known)
        yield


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory, few_baselines):
    """A tiny run with its baselines, one of which diverges."""
    out = tmp_path_factory.mktemp("own") / "run"
    args = ["train", "own", *asked(table, clusters=(2, 1), **SMALL), "--first-order", "--also-train", "maml"]
    assert main([*args, "--out", str(out)]) == 0
    return out


def test_a_run_holds_the_schema_and_the_command(folder):
    stored = files.read_json(folder / "run.json")
    source = stored["config"]["source"]
    assert [column["name"] for column in source["schema"]["inputs"]] == ["time", "colour"]
    assert source["families"] == ["a", "b"]
    assert stored["config"]["learner"]["cluster"]["clusters"] == [2, 1]
    assert stored["provenance"]["command"].startswith("metagrove train own --tasks")
    assert "--out" not in stored["provenance"]["command"]
    assert (folder / "atlas.json").exists()


def test_a_run_adapts_without_the_files_it_was_trained_on(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    stored = files.read_json(tmp_path / "moved" / "run.json")
    stored["config"]["source"]["tasks"] = "gone.csv"
    files.write_json(tmp_path / "moved" / "run.json", stored)
    run = mg.load(tmp_path / "moved")
    columns = {"time": np.array([0, 1, 2]), "colour": np.array(["red", "blue", "red"], object)}
    x = run.config.source.schema.encode_inputs(columns, "new rows")
    assert np.isfinite(run.adapt(x, [0.0, 1.0, 2.0]).predict(x)).all()
    with pytest.raises(InputError, match="the run's tasks, does not exist"):
        run.scores(num_tasks=4, seed=0)


def test_baselines_stand_beside_the_run_on_the_same_tasks(folder):
    result = read_baselines(folder)
    names = ["hsml", "maml", "support-mean", "ridge", "mixed-model", "broken"]
    assert [row.name for row in result.rows if row.name != "blend"] == names
    assert (result.num_tasks, result.num_draws) == (3, 5)
    run, *others = result.rows
    own = mg.load(folder)
    again = own.scores(num_tasks=15, seed=0, steps=own.inner_steps, every_step=False).by_step[:, -1]
    assert run.value == pytest.approx(again.mean())
    assert run.value_ci95 == pytest.approx(1.96 * again.std(ddof=1) / 3**0.5)
    for row in others:
        assert row.error or row.minus_run.difference == pytest.approx(row.value - run.value)
    ridge = next(row for row in others if row.name == "ridge")
    assert ridge.value < 0.1 < run.value  # the tasks are lines, and the run has hardly trained
    assert result.best in ("ridge", "mixed-model", "blend")
    assert result.recommended in ("ridge", "mixed-model")
    assert (folder / "baselines" / "maml" / "best.json").exists()


def test_a_baseline_that_fails_is_a_row_that_says_so_and_is_not_repeated(folder, table, capsys):
    failed = next(row for row in read_baselines(folder).rows if row.name == "broken")
    assert failed.error == "too few tasks"
    assert np.isnan(failed.value)
    assert failed.minus_run is None
    calls = len(BROKEN)
    assert main(["baselines", str(folder), "--also-train", "maml"]) == 0
    assert len(BROKEN) == calls == 1
    assert "broken: failed, too few tasks" in " ".join(capsys.readouterr().out.split())


def test_a_learner_that_diverges_is_a_row_that_says_so(folder, table, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "baselines" / "maml")
    calls = []

    def diverge(*_, **__):
        calls.append(1)
        raise DivergedError("loss is not finite")

    monkeypatch.setattr(candidates, "train", diverge)
    for _ in range(2):
        result = training.measure_baselines(mg.load(tmp_path / "run"), ("maml",), serve=True, note=print)
        assert next(row for row in result.rows if row.name == "maml").error == "loss is not finite"
        assert next(row for row in result.rows if row.name == "ridge").value < 0.1
    assert len(calls) == 1


def test_what_wins_on_validation_tasks_is_served_through_every_door(folder):
    """The run has hardly trained, so that a baseline serves; --learner fixes another one."""
    result, run = read_baselines(folder), mg.load(folder)
    losses = {row.name: row.validation_loss for row in result.rows if row.error is None}
    assert result.served == min(losses, key=losses.get) != "hsml"
    assert f"serve {in_prose(result.served, classifies=False)}" in result.serving
    support = {"time": [0, 1, 2, 3], "colour": ["red", "blue", "red", "blue"], "y": [1.0, 2.0, 5.0, 6.0]}
    rows = {"time": [4, 5], "colour": ["red", "red"]}
    task, fixed = run.adapt(support), run.adapt(support, learner="hsml")
    np.testing.assert_allclose(task.predict(rows)["y"], [9.0, 11.0], atol=0.5)  # 2 time + 1 if red
    assert abs(fixed.predict(rows)["y"][0] - 9.0) > 0.5
    np.testing.assert_array_equal(mg.adapt(folder, support).predict(rows)["y"], task.predict(rows)["y"])
    x = np.array([[t, c] for t, c in zip(support["time"], support["colour"], strict=True)], object)
    model = mg.FewShotRegressor(folder).fit(x, support["y"])
    np.testing.assert_array_equal(model.predict(np.array([[4, "red"], [5, "red"]], object)), task.predict(rows)["y"])
    assert task.about["learner"] == result.served
    assert task.about["clusters"]  # where the task stands is still what the run's own learner says
    assert (task.predict(rows)["y_lower"] < task.predict(rows)["y_upper"]).all()
    with pytest.raises(InputError, match="run has no learner 'lasso', only hsml, "):
        run.adapt(support, learner="lasso")


def test_a_training_that_diverges_is_repeated_with_lower_rates(table, folder, tmp_path, monkeypatch):
    config = mg.load(folder).config
    calls, lines = [], []

    def diverge_once(config, folder, *, resume=False, **_):
        calls.append((config.learner.inner_lr, resume))
        folder.mkdir(exist_ok=True)
        files.write_json(folder / "run.json", {"format": 2, "config": to_json(config)})
        if len(calls) == 1:
            raise DivergedError("loss is not finite at meta-step 2")
        return True

    monkeypatch.setattr(training, "train_into", diverge_once)
    job = training.Job(config, tmp_path / "run")
    assert training.train_or_calm_down(config, job, lines.append)
    assert calls == [(0.05, False), (pytest.approx(0.01), False)]
    assert lines[0] == "loss is not finite at meta-step 2"
    assert "training once more with learning rates divided by 5: --outer-lr 0.0002 --inner-lr 0.01" in lines[1]
    stored = json.dumps(files.read_json(tmp_path / "run" / "run.json"))
    assert '"std"' in stored
    files.write_json(tmp_path / "run" / "run.json", json.loads(stored.replace('"std"', '"sd"')))  # as before 0.2
    assert training.train_or_calm_down(config, dataclasses.replace(job, resume=True), lines.append)
    assert calls[2] == (pytest.approx(0.01), True)
    assert config.learner.inner_clip > 0  # and defaults are clipped


def test_the_table_and_the_advice_are_printed(folder, table, capsys):
    again = ["train", "own", *asked(table, clusters=(2, 1), **SMALL), "--first-order", "--out", str(folder), "--resume"]
    assert main(again) == 0
    out = capsys.readouterr().out
    assert "ridge, each" in out
    assert "Use " in out


def test_clusters_are_not_compared_with_families_where_there_are_none(folder):
    run = mg.load(folder)
    assert run.about["validation"]["nmi"] is not None
    plain = dataclasses.replace(run.config.source, stratify="", families=("task",))
    found = validate(dataclasses.replace(run.config, source=plain), run.meta)
    assert found.nmi is None
    assert "NMI" not in describe(found)


def test_scores_are_means_over_a_tasks_draws(folder):
    run = mg.load(folder)
    scores = run.scores(num_tasks=13, seed=1, steps=run.inner_steps, every_step=False)
    assert scores.by_step.shape == (3, 1)
    assert set(scores.family) == {0, 1}
    np.testing.assert_allclose(scores.shares.sum(1), 1, rtol=1e-5)


def test_a_run_is_not_resumed_with_another_table(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "run")
    other = write(tmp_path / "sensors.csv", sensors(seed=1))
    args = ["train", "own", *asked(other, clusters=(2, 1), **SMALL), "--first-order", "--resume"]
    assert main([*args, "--out", str(tmp_path / "run")]) == 2
    assert "was started with other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "the path of the tasks is missing: --tasks FILE_OR_FOLDER"),
        (["--taks", "TABLE", "--target", "y"], "unknown option --taks: did you mean --tasks?"),
        (["--tasks", "nothing.csv", "--target", "y"], "nothing.csv does not exist"),
        (["--tasks", "TABLE"], "target must name a column: --target NAME"),
        (["--tasks", "TABLE", "--target", "y"], "TABLE is one table: name its task column"),
        (["--tasks", "TABLE", "--target", "z", "--task-column", "sensor"], "TABLE has no column 'z' (--target)"),
        (
            ["--tasks", "TABLE", "--target", "y", "--task-column", "sensor", "--learner", "maml", "--clusters", "auto"],
            "MAML has no clusters: remove --clusters auto",
        ),
    ],
)
def test_what_cannot_begin_leaves_nothing_behind(table, args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [str(table) if word == "TABLE" else word for word in args]
    assert main(["train", "own", *words]) == 2
    assert message.replace("TABLE", str(table)) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_lists_settings_of_data_learner_and_training(capsys):
    assert main(["train", "own", "--help"]) == 0
    short = capsys.readouterr().out
    assert max(map(len, short.splitlines())) <= 110
    assert len(re.findall(r"^  --", short, flags=re.MULTILINE)) == 14
    for name, words in {
        "own": ("--missing", "--keep-rows", "--no-baselines"),
        "own-images": ("--ways", "--resume"),
    }.items():
        assert main(["train", name, "--help-all"]) == 0
        out = capsys.readouterr().out
        assert all(word in out for word in (*words, "--clusters", "--steps"))


def test_a_stopped_training_says_how_to_go_on(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "train_into", lambda *_, **__: False)
    args = ["train", "own", *asked(table), "--out", str(tmp_path / "run")]
    assert main(args) == STOPPED
    err = capsys.readouterr().err
    assert "interrupted, progress is saved; resume with: metagrove train own" in err
    assert err.rstrip().endswith("--resume")


def test_classes_from_a_frame_in_two_lines(tmp_path):
    header, *rows = sensors()
    frame = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    how = {"task_column": "sensor", "inputs": ("time", "y"), "learner": "maml", "out": tmp_path / "run"}
    run = mg.train_own(frame, target="colour", inner_steps=1, first_order=True, hidden=(5,), **how, **QUICK)
    assert run.metric == "accuracy"
    adapted = run.adapt(np.zeros((2, 2)), np.eye(2))
    np.testing.assert_allclose(np.exp(adapted.predict(np.zeros((3, 2)))).sum(1), 1, rtol=1e-5)
    assert (tmp_path / "run" / "tasks.csv").exists()
    with pytest.raises(InputError, match="already holds a run"):
        mg.train_own(frame, target="colour", **how)
    with pytest.raises(InputError, match="no setting is called 'inner_step': did you mean"):
        mg.train_own(frame, target="colour", inner_step=1, **{**how, "out": tmp_path / "other"})


# clusters


def test_clusters_are_chosen_on_validation_tasks(folder, monkeypatch):
    """The candidates' trainings are stood in for; a real one is below."""
    config, notes, seen = mg.load(folder).config, [], []

    def scores(brief, workers):
        assert workers == 1
        seen.extend((config.learner.clusters, config.training.steps) for config in brief.values())
        return {clusters: np.arange(20.0) + (0.0 if clusters == (3, 1) else 1.0) for clusters in brief}

    monkeypatch.setattr(clusters, "brief_scores", scores)
    chosen = clusters.choose_clusters(config.with_settings(steps=50), ((2, 1), (3, 1)), notes.append)
    assert chosen == config.with_settings(steps=50, clusters=(3, 1))
    assert seen == [((2, 1), 10), ((3, 1), 10)]
    assert notes[-1] == "selected: clusters (3, 1), the best candidate"
    monkeypatch.setattr(clusters, "brief_scores", lambda *_: None)
    assert clusters.choose_clusters(config, ((2, 1),), notes.append) is None


def test_a_short_training_is_scored_on_the_validation_tasks(folder):
    rival = mg.load(folder / "baselines" / "maml")
    found = clusters.scores_of(rival)
    assert found.mean() == pytest.approx(rival.about["validation"]["value"], rel=1e-4)


def test_a_training_in_the_pool_that_fails_says_why(folder, tmp_path):
    config = mg.load(folder).config.with_settings(steps=0)
    with pytest.raises(RunError, match=r"(?s)nan failed with code 2:.*steps must be at least 1"):
        train_all([Training("nan", config, tmp_path / "bad")], 2)


def test_a_run_goes_on_with_the_clusters_it_was_begun_with(folder):
    config = mg.load(folder).config
    job = training.Job(config.with_settings(clusters=(4, 2, 1)), folder, resume=True, choose_clusters=True)
    assert training.find_clusters(job, print) == config


def test_fewer_clusters_where_they_are_as_good():
    rng = np.random.default_rng(0)
    best, noise = rng.normal(size=200), rng.normal(size=200)
    as_good = {(2, 1): best + 0.01 * noise, (4, 2, 1): best - 0.0001, (8, 4, 1): best + 1}
    assert clusters.fewest_as_good(as_good, "mse")[0] == (2, 1)
    worse = {(2, 1): best + 0.1, (4, 2, 1): best, (8, 4, 1): best + 0.2}
    assert clusters.fewest_as_good(worse, "mse") == ((4, 2, 1), "the best candidate")
    assert clusters.fewest_as_good(worse, "accuracy")[0] == (8, 4, 1)


def test_auto_is_found_among_arguments():
    assert take_auto(["--clusters", "auto", "--steps", "5"]) == (True, ["--steps", "5"])
    assert take_auto(["--clusters=auto"]) == (True, [])
    assert take_auto(["--clusters", "4", "1"]) == (False, ["--clusters", "4", "1"])


def test_what_is_kept_of_a_command():
    assert without("metagrove train own --out 'a b' --steps 5 --resume", "--out", "--resume") == (
        "metagrove train own --steps 5"
    )
    assert without("x --out=a --resume", "--resume") == "x --out=a"


# defaults


def test_defaults_are_sized_to_the_data(table):
    source, _ = open_tables(TableData(str(table), "sensor", ("y",), ("time",)))
    few, many = table_config(source, 20).learner, table_config(source, 2000).learner
    assert sum(few.clusters) < sum(many.clusters)
    labelled, _ = open_tables(TableData(str(table), "sensor", ("colour",), ("time",)))
    learner = table_config(labelled, 20).learner
    assert learner.net.classifies
    net = learner.net(labelled.spec, key=jax.random.key(0))
    np.testing.assert_allclose(np.exp(net(jnp.ones((4, 1)))).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", learners())
def test_every_learner_can_be_taken(table, name):
    """For classes; those that know nothing else refuse numbers, and Grove refuses classes."""
    if name == "grove":
        with pytest.raises(InputError, match="grove is for regression"):
            check_config(training.own_config(TableData(str(table), "sensor", ("colour",), ("time", "y")), name, print))
        return
    config = training.own_config(TableData(str(table), "sensor", ("colour",), ("time", "y")), name, print)
    check_config(config)
    assert from_json(to_json(config)) == config
    assert config.learner.loss is cross_entropy
    images_only = pytest.raises(InputError, match="not vectors") if name == "relation-net" else contextlib.nullcontext()
    with images_only:
        eqx.filter_eval_shape(functools.partial(config.learner.init, config.source.spec), key=jax.random.key(0))
    numbers = TableData(str(table), "sensor", ("y",), ("time",))
    if name in LEARNER_GROUPS["metric"]:
        with pytest.raises(InputError, match=f"{name} is a classifier, but y is numeric"):
            training.own_config(numbers, name, print)
    else:
        assert training.own_config(numbers, name, print).learner.loss is mse


# baselines


def test_baselines_see_the_draws_that_learners_are_scored_on(folder):
    run = mg.load(folder).alone()
    draws = draw_tasks(run.config.source, "test", num_draws=2, seed=3)
    assert draws.support.x.shape == (3, 2, 5, 3)
    scores = candidates.score_draws(candidates.predict_draws(run, draws), draws, classifies=False)
    np.testing.assert_allclose(scores.loss, own_scores(run, 2, 3), rtol=1e-4)


@pytest.mark.parametrize(
    ("gap", "spread", "advice", "recommended"),
    [
        (
            1.0,
            0.1,
            "Use HSML: it has the least squared error on test tasks, and no simpler method is as good; next is",
            "hsml",
        ),
        (
            0.01,
            1.0,
            "Use ridge of each task alone: the lead of HSML, 1.0 % of the squared error, is within its interval",
            "ridge",
        ),
        (-0.5, 0.01, "Use ridge of each task alone: it has the least squared error on test tasks", "ridge"),
        (0.5, 9.0, "Use HSML: it has the least squared error", "hsml"),  # within its interval, but 50 % behind
    ],
)
def test_the_simplest_that_cannot_be_told_from_the_best_is_recommended(gap, spread, advice, recommended):
    even = np.tile([-1.0, 1.0], 50)
    other = 1 + even + gap + spread * np.repeat([-1.0, 1.0], 50)
    measured = {"hsml": Measured(1 + even, 1.0), "ridge": Measured(other, 1.0)}
    result = make_result(measured, np.repeat([0, 1], 50), ("a", "b"), metric="mse", num_draws=1, seed=0, tasks=70)
    assert result.advice.startswith(advice)
    assert result.recommended == recommended
    assert ("70 in training here" in result.advice) == (recommended != "hsml")
    assert result.rows[1].minus_run.by_family["a"].difference == pytest.approx(gap - spread)
    assert files.from_json(Baselines, json.loads(json.dumps(files.as_json(result)))) == result


def test_a_blend_is_served_but_not_recommended():
    losses = {"hsml": np.array([2.0, 2.1]), "mixed-model": np.array([1.0, 1.1]), "blend": np.array([0.5, 0.6])}
    assert recommend(losses).name == "mixed-model"
    assert advise(losses, "hsml", num_tasks=9, classifies=False) == (
        "Use the mixed model: it has the least squared error on test tasks, and no simpler method is as good; next is "
        "HSML with 95.2 % more. HSML pays off with more tasks (9 in training here), tasks of several kinds, or curves "
        "that a spline cannot follow."
    )
    assert advise(losses, "hsml", num_tasks=9, classifies=True).count("least log loss") == 1


def test_what_is_unknown_is_null():
    assert json.dumps(nan_to_none({"a": [float("nan"), 1.0]}), allow_nan=False) == '{"a": [null, 1.0]}'


# images


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    data = tmp_path_factory.mktemp("pools")
    images = np.random.default_rng(0).integers(0, 256, (9 * 4, 8, 8, 3)).astype(np.uint8)
    splits = ["train"] * 3 + ["validation"] * 3 + ["test"] * 3
    for size in (8, 4):
        (data / f"tiny-{size}").mkdir()
        kinds = [(f"class {i}", split, 4) for i, split in enumerate(splits)]
        pool.write(data / f"tiny-{size}", "tiny", images[:, :size, :size], kinds, {})
    return data


def test_own_images(pools, tmp_path):
    args = ["train", "own-images", "--pool", "tiny", "--size", "4", "--data", str(pools), "--learner", "protonet"]
    assert main([*args, *flags(**QUICK, filters=2), "--out", str(tmp_path / "run")]) == 0
    run = mg.load(tmp_path / "run")
    source = run.config.source
    assert (source.size, source.ways, source.shots, source.queries) == (4, 3, 1, 3)
    assert run.config.learner.net.blocks == 2
    assert run.metric == "accuracy"


def test_the_largest_images_that_all_pools_have(pools):
    assert image_source(ImageData(("tiny",), data=str(pools))).size == 8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "the pool is missing: --pool NAME"),
        (["--pool", "huge"], "no pool 'huge' in"),
        (["--pool", "tiny", "--size", "16"], "no pool 'tiny' of 16 pixels"),
        (["--pool", "tiny", "--shots", "4"], "tasks need 2 classes and 5 images"),
        (["--pool", "tiny", "--ways", "5"], "tiny has 3 classes in its train split, a task needs 5"),
    ],
)
def test_pools_that_give_no_tasks(pools, args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "own-images", *args, "--data", str(pools)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*/run.json"))

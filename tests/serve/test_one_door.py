"""One fitted task: whichever way a person takes (shell, Python, scikit-learn), the numbers are the same."""

import jaxtyping
import numpy as np
import pandas as pd
import pytest
from own_runs import COLOUR, X, Y, image_run, label_run, read_csv, sensor_run, sensors, value_run, write_csv
from PIL import Image

import metagrove as mg
from metagrove.cli.app import main
from metagrove.errors import InputError
from metagrove.serve.calibration import Calibration, write_calibration
from metagrove.serve.predict_files import predict_file, written

LABELS = ["cat", "dog", "emu", "dog", "cat"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with intervals that widen with the distance to the support rows, of 4 support rows or more."""
    run = sensor_run(tmp_path_factory.mktemp("own") / "run")
    quantiles = {"2": {"0.9": [9.0]}, "4": {"0.8": [1.0], "0.9": [2.0]}}
    write_calibration(run.folder, Calibration(20, 3, "distance", 0.5, quantiles))
    return run


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run on images, a support set as arrays and as a folder, and other images likewise."""
    folder = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)
    for i, label in enumerate(LABELS):
        save(folder / "support" / label / f"{i}.png", pixels[i])
    for i in range(5, 12):
        save(folder / "new" / f"{i:02}.png", pixels[i])
    support = np.stack([np.asarray(Image.open(p)) for p in sorted((folder / "support").rglob("*.png"))])
    return image_run(folder / "run"), folder, support, sorted(LABELS), pixels[5:]


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def shell(*args):
    assert main([str(arg) for arg in args]) == 0


def test_a_table_through_every_door(run, tmp_path):
    support = write_csv(tmp_path / "support.csv", sensors(5))
    new = {name: cells for name, cells in sensors(7, seed=1).items() if name != Y}
    asked = write_csv(tmp_path / "new.csv", new)
    shell("adapt", run.folder, "--support", support, "--out", tmp_path / "task", "--inner-steps", 3)
    shell("predict", tmp_path / "task", "--input", asked, "--out", tmp_path / "p.csv")
    shell("predict", run.folder, "--support", support, "--input", asked, "--out", tmp_path / "q.csv", "--steps=3")
    task = run.adapt(support, steps=3)
    values = task.predict(asked)[Y]
    assert read_csv(tmp_path / "p.csv")[Y] == read_csv(tmp_path / "q.csv")[Y] == written(values)
    np.testing.assert_array_equal(mg.adapt(run.folder, sensors(5), steps=3).predict(new)[Y], values)
    np.testing.assert_array_equal(mg.load_fitted(tmp_path / "task").predict(pd.DataFrame(new))[Y], values)
    schema = run.config.source.schema
    rows = schema.encode_inputs(sensors(5), "s"), schema.encode_targets(sensors(5), "s")
    by_array = run.adapt(*rows, steps=3).predict(schema.encode_inputs(new, "new"))
    np.testing.assert_array_equal(schema.decode_targets(by_array)[Y], values)
    frame = pd.DataFrame(sensors(5))
    model = mg.FewShotRegressor(run, steps=3).fit(frame[[X, COLOUR]], frame[Y])
    np.testing.assert_array_equal(model.predict(pd.DataFrame(new)), values)
    intervals_agree(task, model, tmp_path, asked, new)


def intervals_agree(task, model, tmp_path, asked, new):
    """The ends of intervals by every door; the file keeps the columns that were given."""
    columns = task.predict(asked)
    assert list(columns) == [Y, f"{Y}_lower", f"{Y}_upper"]
    in_file = read_csv(tmp_path / "p.csv")
    assert list(in_file) == [*new, *columns]
    assert in_file[X] == [str(one) for one in new[X]]
    by_model = dict(zip(("_lower", "_upper"), model.predict_interval(pd.DataFrame(new)), strict=True))
    again = mg.load_fitted(tmp_path / "task").predict(new)
    for end, other in by_model.items():
        assert in_file[Y + end] == written(columns[Y + end])
        np.testing.assert_array_equal(other, columns[Y + end])
        np.testing.assert_array_equal(again[Y + end], columns[Y + end])
    schema = task.schema
    x = schema.encode_inputs(new, "new")
    lower, upper = task.interval(x)
    np.testing.assert_array_equal(schema.decode_targets(lower)[Y], columns[f"{Y}_lower"])
    support = schema.encode_inputs(sensors(5), "s")
    away = np.linalg.norm(x[:, None].astype(float) - support[None], axis=2).min(1) / 3**0.5
    np.testing.assert_allclose((upper - lower)[:, 0], 2 * 2.0 * (1 + 0.5 * away), rtol=1e-6)
    narrow = task.interval(x, coverage=0.8)
    np.testing.assert_allclose((narrow[1] - narrow[0])[:, 0], (upper - lower)[:, 0] / 2, rtol=1e-6)
    with pytest.raises(InputError, match=r"coverage must be one of 0.8, 0.9, got 0.7"):
        task.interval(x, coverage=0.7)


def test_intervals_hold_for_the_calibrated_inner_steps_alone(run):
    assert run.adapt(sensors(5), steps=2).interval(np.zeros((2, 3), np.float32)) is None
    assert list(run.adapt(sensors(5), steps=2).predict(sensors(3))) == [Y]


def test_a_temperature_changes_probabilities_through_every_door(tmp_path):
    run = label_run(tmp_path / "run")
    rows = {"a": np.arange(4.0), "b": np.array([1.0, 1.0, 0.0, 0.0]), "kind": np.array(["9", "9", "x", "x"], object)}
    before = run.adapt(rows).probabilities(rows)
    write_calibration(run.folder, Calibration(20, run.inner_steps, temperature=2.0))
    task = run.adapt(rows)
    softer = np.sqrt(before) / np.sqrt(before).sum(1, keepdims=True)
    np.testing.assert_allclose(task.probabilities(rows), softer, rtol=1e-5)
    columns = task.predict(rows)
    np.testing.assert_array_equal(columns["kind=9"], task.probabilities(rows)[:, task.schema.labels.index("9")])
    model = mg.FewShotClassifier(run).fit(pd.DataFrame(rows)[["a", "b"]], rows["kind"])
    by_model = model.predict_proba(pd.DataFrame(rows)[["a", "b"]])
    np.testing.assert_array_equal(by_model[:, model.classes_.tolist().index("9")], columns["kind=9"])
    x = task.schema.encode_inputs(rows, "rows")
    many = run.adapt_many([(x, task.schema.encode_targets(rows, "rows"))]).predict([x])[0]
    np.testing.assert_allclose(np.exp(many), softer, rtol=1e-5)


def test_images_through_every_door(images, tmp_path):
    run, folder, support, labels, new = images
    shell("adapt", run.folder, "--support", folder / "support", "--out", tmp_path / "task")
    shell("predict", tmp_path / "task", "--input", folder / "new", "--out", tmp_path / "p.csv")
    task = run.adapt(folder / "support")
    columns = task.predict(folder / "new")
    assert read_csv(tmp_path / "p.csv") == {
        "file": [f"{i:02}.png" for i in range(5, 12)],
        "class": columns["class"].tolist(),
        **{f"class={label}": written(columns[f"class={label}"]) for label in sorted(set(LABELS))},
    }
    each = np.stack([columns[f"class={label}"] for label in sorted(set(LABELS))], 1)
    np.testing.assert_array_equal(task.probabilities(new), each)
    np.testing.assert_array_equal(run.adapt(support, labels).probabilities(new), each)
    numbers = [sorted(set(LABELS)).index(label) for label in labels]
    by_number = run.adapt(support, numbers)
    np.testing.assert_array_equal(by_number.probabilities(new), each)
    np.testing.assert_array_equal(by_number.classify(new), each.argmax(1))
    assert task.classify(folder / "new").tolist() == columns["class"].tolist()
    model = mg.FewShotClassifier(run).fit(support, labels)
    np.testing.assert_array_equal(model.predict_proba(new), each)
    paths = [folder / "new" / f"{i:02}.png" for i in range(5, 12)]
    by_path, one = task.predict(paths), task.predict(str(paths[0]))
    assert by_path["file"].tolist() == list(map(str, paths))
    np.testing.assert_array_equal(by_path["class=dog"], columns["class=dog"])
    np.testing.assert_array_equal(one["class=dog"], columns["class=dog"][:1])
    pillow = [Image.open(path) for path in paths]
    np.testing.assert_array_equal(task.probabilities(pillow), each)
    np.testing.assert_array_equal(task.classify(pillow[0]), each[:1].argmax(1))
    by_pillow = run.adapt([Image.fromarray(x) for x in support], labels)
    np.testing.assert_array_equal(by_pillow.probabilities(new), each)
    with pytest.raises(InputError, match=r"nothing.png cannot be read"):
        task.predict([folder / "nothing.png"])


def test_array_in_array_out_and_table_in_columns_out(tmp_path):
    run = value_run(tmp_path / "run")
    task = run.adapt({"a": [1.0, 2.0, 3.0], "u": [100.0, 120.0, 90.0], "v": [0.0, 1.0, -1.0]})
    x = np.array([[0.25], [0.75]])
    values, std = task.predict(x), task.std(x)
    assert values.shape == std.shape == (2, 2)
    columns = task.predict({"a": [1.5, 2.5]})
    np.testing.assert_array_equal(columns["u"], values[:, 0].astype(float) * 20 + 100)
    assert task.std({"a": [1.5, 2.5]}).keys() == {"u", "v"}
    np.testing.assert_array_equal(task.std({"a": [1.5, 2.5]})["u"], columns["u_sd"])
    np.testing.assert_array_equal(columns["u_sd"], std[:, 0].astype(float) * 20)


def test_no_std_from_a_learner_that_has_none(run):
    assert run.adapt(sensors(5)).std(np.zeros((2, 3))) is None


def test_statistics_of_the_support_set_or_of_the_rows_that_are_asked_for(images, tmp_path):
    run, folder, support, labels, new = images
    alone, together = run.adapt(support, labels), run.adapt(support, labels, statistics="query")
    np.testing.assert_array_equal(alone.predict(new[:3]), alone.predict(new)[:3])
    assert np.abs(together.predict(new[:3]) - together.predict(new)[:3]).max() > 1e-3
    together.save(tmp_path / "task")
    again = mg.load_fitted(tmp_path / "task")
    assert again.statistics == "query"
    np.testing.assert_array_equal(again.predict(new), together.predict(new))
    with pytest.raises(InputError, match="predict in Python"):
        predict_file(together, folder / "new", tmp_path / "p.csv")
    with pytest.raises(InputError, match='adapt with statistics="support"'):
        mg.export(together, tmp_path / "model")


def test_other_statistics_are_refused(images, monkeypatch):
    run, _, support, labels, _ = images
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # a person's calls are not checked either
    with pytest.raises(InputError, match="statistics must be one of support, query, got 'batch'"):
        run.adapt(support, labels, statistics="batch")


@pytest.mark.parametrize(
    ("support", "y", "message"),
    [
        (np.zeros((2, 8, 8, 3)), None, "needs its targets"),
        ({"x": [1.0]}, None, "images are given as a folder"),
        (np.zeros((2, 8, 8, 3)), ["a", "a"], "y has 1 classes, but the run distinguishes 2 to 3"),
    ],
)
def test_support_that_cannot_be_read_is_refused(images, support, y, message):
    with pytest.raises(InputError, match=message):
        images[0].adapt(support, y)

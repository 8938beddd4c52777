"""Adapt and predict on people's own data: from files, in their units, each row on its own, whole or not at all."""

import json
import re
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own_runs import (
    COLOUR,
    LABELS,
    NET,
    X,
    Y,
    image_run,
    label_run,
    read_csv,
    sensors,
    table_run,
    untrained,
    value_run,
    write_csv,
)
from PIL import Image

from metagrove import MAML, Functions
from metagrove.cli.app import main
from metagrove.config.config import Config
from metagrove.errors import InputError, RunError
from metagrove.serve.adapt import adapt
from metagrove.serve.index import TaskIndex, read_index
from metagrove.serve.known_tasks import write_index
from metagrove.serve.levels import describe_group, level_and_slopes, levels_in_units, unit_names
from metagrove.serve.predict_files import predict_file
from metagrove.serve.saved import load_fitted
from metagrove.serve.standing import described
from metagrove.tables.schema import Column, Schema


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = table_run(tmp_path_factory.mktemp("own"))
    write_index(run)
    return run


@pytest.fixture(scope="module")
def task(run):
    return adapt(run, sensors(5))


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    return adapt(label_run(tmp_path_factory.mktemp("own") / "labels"), LABEL_ROWS)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run on images, a support folder of two classes, and a task adapted to it."""
    folder = tmp_path_factory.mktemp("own")
    for name, count in (("kat ze", 2), ("Hund", 3)):
        for i in range(count):
            save_image(folder / "support" / name / f"{i}.png", seed=i + 10 * count)
    run = image_run(folder / "run")
    return run, folder / "support", adapt(run, folder / "support")


LABEL_ROWS = {"a": [0.0, 1.0, 2.0, 3.0], "b": [1.0, 1.0, 0.0, 0.0], "kind": ["9", "9", "x", "x"]}


def save_image(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 11, 3), np.uint8)).save(path)


def test_the_atlas_places_every_known_task(run):
    index = read_index(run.folder)
    names = [run.config.source.task_names(split) for split in ("train", "validation")]
    assert index.names == names[0] + names[1]
    assert index.splits == ("train",) * len(names[0]) + ("validation",) * len(names[1])
    assert index.embeddings.shape == (len(index.names), 4)
    assert index.centers.shape == (3, 4)
    np.testing.assert_allclose(index.shares.sum(1), 1.0, rtol=1e-5)
    support = run.config.source.task("train", 1).support
    again = run.adapt(support.x, support.y)
    np.testing.assert_allclose(again.task_embedding, index.embeddings[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        index.to_centers[1], np.linalg.norm(index.centers - index.embeddings[1], axis=1).min(), rtol=1e-5
    )
    others = np.delete(index.embeddings[: len(names[0])], 1, 0)
    np.testing.assert_allclose(index.to_tasks[1], np.linalg.norm(others - index.embeddings[1], axis=1).min(), rtol=1e-5)
    assert index.distances is index.to_centers
    same = {"task": index.names[1], "kind": "task", "split": "train", "distance": 0.0}
    assert index.most_like(None, index.levels[1])[0] == index.most_like(index.embeddings[1], None)[0] == same
    assert set(index.known) == {"embedding", "cluster centres", "fit", "level and slope"}
    assert [len(level) for level in index.clusters] == [3, 2]
    assert sum(int(re.findall(r"(\d+) tasks?$", said)[0]) for said in index.clusters[0]) == len(index.names)


def test_level_and_slopes_are_in_the_columns_units():
    """y = 50 + 7 x + 5 for red: standardised inputs, so the level is at the mean of x."""
    schema = Schema(
        (Column(X, "number", 1.5, 0.9), Column(COLOUR, "category", categories=("grün", "red"))),
        (Column(Y, "number", 63.0, 7.0),),
    )
    x = np.linspace(0, 3, 40)
    columns = {X: x, COLOUR: np.array(["red", "grün"] * 20, object), Y: 50 + 7 * x + 5 * (np.arange(40) % 2 == 0)}
    found = level_and_slopes(schema.encode_inputs(columns, "s"), schema.encode_targets(columns, "s"))
    named = dict(zip(unit_names(schema), levels_in_units(found, schema), strict=True))
    assert list(named) == [Y, f"{Y} by {X}", f"{Y} by {COLOUR}=grün", f"{Y} by {COLOUR}=red"]
    assert named[f"{Y} by {X}"] == pytest.approx(7, rel=0.05)
    assert named[f"{Y} by {COLOUR}=red"] - named[f"{Y} by {COLOUR}=grün"] == pytest.approx(5, rel=0.1)
    assert named[Y] == pytest.approx(50 + 7 * 1.5 + 2.5, rel=0.02)


def test_a_cluster_is_told_by_the_columns_that_set_it_apart():
    schema = Schema((Column("x", "number", 0.0, 2.0),), (Column("y", "number", 10.0, 5.0),))
    levels = np.array([[2.0, 0.0], [2.2, 0.1], [-2.0, 0.0], [-2.2, 0.1]])
    member = np.array([True, True, False, False])
    assert describe_group(levels, member, schema) == "high y (20.5), 2 tasks"
    assert describe_group(levels[:, ::-1], member, schema) == "y rises with x (+5.25 per unit), 2 tasks"
    assert describe_group(levels, ~member & member, schema) == "0 tasks"


def test_an_atlas_of_a_learner_that_embeds_nothing(tmp_path):
    run = table_run(tmp_path, MAML(net=NET))
    assert read_index(run.folder) is None
    write_index(run)
    index = read_index(run.folder)
    assert len(index.names) == len(set(index.names)) > 20
    assert (index.embeddings, index.shares, index.distances) == (None, None, None)
    about = adapt(run, sensors(5)).about
    assert set(about["percentiles"]) == {"fit", "level and slope"}  # what needs no embedding
    assert (about["counted_tasks"], about["counted"]) == (len(index.names), "known")  # 9 held-out ones are too few
    constant = {**sensors(5), COLOUR: ["red"] * 5}
    assert list(adapt(run, constant).about["level_and_slopes"]) == [Y, f"{Y} by {X}"]  # no slope of what is constant


def made_up_atlas():
    """100 training and 100 validation tasks around a centre."""
    places = np.random.default_rng(0).normal(size=(200, 2))
    train = places[:100]
    apart = np.linalg.norm(places[:, None] - train[None], axis=2)
    apart[np.arange(100), np.arange(100)] = np.inf
    splits = ("train",) * 100 + ("validation",) * 100
    to_centers = np.linalg.norm(places, axis=1)
    return TaskIndex(("t",) * 200, ("f",) * 200, splits, places, None, np.zeros((1, 2)), to_centers, apart.min(1))


def test_the_percentile_is_calibrated():
    index = made_up_atlas()
    fresh = np.random.default_rng(1).normal(size=(1000, 2))
    found = np.array([index.percentile(index.measured(one, one, None)) for one in fresh])
    np.testing.assert_allclose(np.quantile(found, [0.1, 0.5, 0.9]), [10, 50, 90], atol=9)
    assert 0.01 < (found >= 95).mean() < 0.11
    far = np.array([0.0, 9.0])
    assert index.percentile(index.measured(far, far, None)) == 100.0


def test_a_task_that_is_unlike_is_said_to_be(run):
    odd = {X: [100.0, 200.0, 300.0, 400.0, 500.0], COLOUR: ["red"] * 5, Y: [-1e3, 1e3, 3e3, 1e3, -2e3]}
    task = adapt(run, odd)
    assert task.about["percentile"] == 100.0
    assert task.about["unlike"]
    assert described(task.about)[-1].startswith("warning: this task looks unlike those")


def test_an_absurd_slope_is_seen_though_the_embedding_is_not_far(run):
    """The embedding of an untrained learner tells nothing of it; level and slope do."""
    steep = sensors(5)
    steep[Y] = 60 - 40 * (steep[X] - steep[X].mean())
    about = adapt(run, steep).about
    assert about["percentiles"]["level and slope"] == 100.0
    assert about["unlike"]
    usual = adapt(run, sensors(5, seed=99)).about
    assert not usual["unlike"]
    line = next(line for line in described(usual) if line.startswith("out-of-distribution percentile"))
    counted = f"{usual['counted_tasks']} known tasks (in steps of {100 / usual['counted_tasks']:.2g} %)"
    assert f", of {counted}, furthest by {usual['furthest_by']}" in line
    assert not made_up_atlas().counts_training  # which has 100 held-out tasks


def test_adapt_then_predict_is_both_in_one(run, tmp_path, capsys):
    support, rows = write_csv(tmp_path / "neue größe.csv", sensors(5)), sensors(30, seed=1)
    asked = write_csv(tmp_path / "rows.csv", {name: rows[name] for name in (X, COLOUR)})
    out, both, folder = (str(tmp_path / name) for name in ("p.csv", "q.csv", "adapted"))
    assert main(["adapt", str(run.folder), "--support", str(support), "--out", folder]) == 0
    said = capsys.readouterr().out
    assert said.startswith("adapted run to 5 rows by 2 inner steps\nclusters of level 1: ")
    assert "most like: Nº " in said
    assert "known tasks (in steps of" in said
    assert main(["predict", folder, "--input", str(asked), "--out", out, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["predictions"] == 30
    assert [len(level) for level in about["clusters"]] == [3, 2]
    assert sum(about["clusters"][0]) == pytest.approx(1.0)
    assert len(about["most_like"]) == 5
    args = ["predict", str(run.folder), "--support", str(support), "--input", str(asked), "--out", both]
    assert main(args) == 0
    assert "30 predictions" in capsys.readouterr().out
    assert Path(out).read_bytes() == Path(both).read_bytes()
    assert list(read_csv(Path(out))) == [X, COLOUR, Y]  # the columns given, and the prediction
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_predictions_are_in_the_persons_units(run, task):
    schema, rows = run.config.source.schema, sensors(3, seed=2)
    table = {name: rows[name] for name in (X, COLOUR)}
    encoded, target = schema.encode_inputs(table, "here"), schema.targets[0]
    support = schema.encode_inputs(sensors(5), "s"), schema.encode_targets(sensors(5), "s")
    plain = run.adapt(*support).predict(encoded)[:, 0]
    np.testing.assert_allclose(task.predict(table)[Y], plain * target.std + target.mean, rtol=1e-4)


def test_a_row_never_depends_on_the_others(task):
    rows = sensors(1500, seed=3)
    table = {name: rows[name] for name in (X, COLOUR)}
    whole = task.predict(table)[Y]
    order = np.random.default_rng(0).permutation(1500)
    shuffled = task.predict({name: cells[order] for name, cells in table.items()})[Y]
    np.testing.assert_array_equal(shuffled, whole[order])
    alone = task.predict({name: cells[7:8] for name, cells in table.items()})[Y]
    np.testing.assert_array_equal(alone, whole[7:8])


HEADER = f"{X},{COLOUR}\n"
BAD_ROWS = {
    "empty": ("", "is empty"),
    "header only": (HEADER, "has a header and no rows"),
    "delimiter": (f"{X};{COLOUR}\n1;red\n", "row 1: one column"),
    "ragged": (HEADER + "1,red\n2\n", "row 3: 1 cells, but the header has 2"),
    "text": (HEADER + "1,red\nlang,red\n", f"row 3, column {X!r}: expected a number, got 'lang'"),
    "missing": (HEADER + "1,red\n,red\n", f"row 3, column {X!r}: the value is missing"),
    "nan": (HEADER + "nan,red\n", f"row 2, column {X!r}: the value is missing"),
    "infinite": (HEADER + "1,red\n-inf,red\n", f"row 3, column {X!r}: -inf is too large"),
    "huge": (HEADER + "1e300,red\n", f"row 2, column {X!r}: 1e300 is too large"),
    "category": (HEADER + "1,red\n2,blau\n", f"row 3, column {COLOUR!r}: 'blau' was not seen in training"),
    "duplicate": (f"{X},{X},{COLOUR}\n1,1,red\n", "are all called"),
    "no column": (f"{COLOUR}\nred\n", f"has no column {X!r}"),
    "not text": (b"\xff\xfe\x00", "is not UTF-8"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_leave_nothing_behind(name, task, tmp_path):
    content, message = BAD_ROWS[name]
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        predict_file(task, path, tmp_path / "p.csv")
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["bad.csv"]


def test_a_bad_row_far_down_keeps_what_was_there(task, tmp_path):
    rows = sensors(12_000, seed=4)
    path = write_csv(tmp_path / "rows.csv", {X: [*rows[X], "oops"], COLOUR: [*rows[COLOUR], "red"]})
    (tmp_path / "p.csv").write_text("before")
    with pytest.raises(InputError, match="row 12002"):
        predict_file(task, path, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{X},{COLOUR}\n1,red\n", f"has no column {Y!r}"),
        (f"{X},{COLOUR},{Y}\n1,red,\n", f"row 2, column {Y!r}: the value is missing"),
    ],
)
def test_bad_support_is_refused(run, content, message, tmp_path, capsys):
    (tmp_path / "s.csv").write_text(content, encoding="utf-8")
    args = ["adapt", str(run.folder), "--support", str(tmp_path / "s.csv"), "--out", str(tmp_path / "adapted")]
    assert main(args) == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["s.csv"]


def test_a_column_of_ones_own_is_kept_and_said_to_be_unused(run, tmp_path, capsys):
    """E.g. an identifier, in the support rows and in those to predict."""
    support = write_csv(tmp_path / "s.csv", {"id": list("abcde"), **sensors(5)})
    rows = write_csv(tmp_path / "rows.csv", {"id": ["f", "g"], X: [1.0, 2.0], COLOUR: ["red", "red"]})
    args = ["predict", str(run.folder), "--support", str(support), "--input", str(rows)]
    assert main([*args, "--out", str(tmp_path / "p.csv")]) == 0
    assert capsys.readouterr().err.count("'id' not used, since training had no such column") == 2
    found = read_csv(tmp_path / "p.csv")
    assert found["id"] == ["f", "g"]
    np.testing.assert_allclose(np.array(found[Y], float), run.adapt(sensors(5)).predict(rows)[Y], rtol=1e-6)


def test_support_that_leads_nowhere_finite_is_refused(run):
    with pytest.raises(InputError, match="adapting to these rows diverged"):
        adapt(run, {X: [1e10, -1e10] * 3, COLOUR: ["red"] * 6, Y: [1e11] * 6})


def test_outputs_that_cannot_be(task, tmp_path, capsys):
    path = write_csv(tmp_path / "rows.csv", {X: [1.0], COLOUR: ["red"]})
    with pytest.raises(InputError, match="is the input itself"):
        predict_file(task, path, path)
    with pytest.raises(InputError, match=r"must end in \.csv"):
        predict_file(task, path, tmp_path / "p.parquet")
    with pytest.raises(RunError, match="could not be written"):
        predict_file(task, path, tmp_path / "nowhere" / "p.csv")
    assert main(["predict", str(tmp_path), "--input", str(path), "--out", str(tmp_path / "p.csv")]) == 3
    assert "holds no adapted task (it has no adapted.json)" in capsys.readouterr().err


def test_a_saved_task_answers_the_same(task, tmp_path):
    task.save(tmp_path / "adapted")
    rows = {X: [1.0, 2.0], COLOUR: ["red", "grün"]}
    again = load_fitted(tmp_path / "adapted")
    np.testing.assert_array_equal(again.predict(rows)[Y], task.predict(rows)[Y])
    assert again.about == task.about
    np.testing.assert_array_equal(again.task_embedding, task.task_embedding)
    for ours, theirs in zip(again.assignments, task.assignments, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_damaged_and_newer_files_are_refused(task, tmp_path):
    def spoil(name, change):
        task.save(tmp_path / name)
        file = next((tmp_path / name).glob("*.safetensors" if "weights" in name else "*.json"))
        file.write_bytes(change(file.read_bytes()))
        return tmp_path / name

    with pytest.raises(RunError, match="is damaged: it has"):
        load_fitted(spoil("truncated weights", lambda content: content[:-8]))
    with pytest.raises(RunError, match="is damaged: its checksum"):
        load_fitted(spoil("tampered weights", lambda content: content[:-1] + bytes([content[-1] ^ 1])))
    with pytest.raises(RunError, match="is not JSON"):
        load_fitted(spoil("truncated", lambda content: content[:100]))
    with pytest.raises(RunError, match="is damaged or was edited"):
        load_fitted(spoil("tampered", lambda content: content.replace(b'"mean": ', b'"mean": 1')))
    with pytest.raises(RunError, match=r"has format 9, this metagrove reads up to \d+: upgrade"):
        load_fitted(spoil("newer", lambda content: content.replace(b'"format": 2', b'"format": 9')))


def test_classes_come_with_probabilities(labels):
    found = labels.predict({"a": [0.0, 3.0], "b": [1.0, 0.0]})
    assert list(found) == ["kind", "kind=10", "kind=9", "kind=x"]
    each = np.stack([found[f"kind={label}"] for label in LABELS.labels])
    np.testing.assert_allclose(each.sum(0), 1.0, rtol=1e-6)
    assert [LABELS.labels[i] for i in each.argmax(0)] == found["kind"].tolist()


def test_std_has_columns_of_its_own(tmp_path):
    run = value_run(tmp_path / "bmaml")
    support = {"a": [1.0, 2.0, 3.0], "u": [100.0, 120.0, 90.0], "v": [0.0, 1.0, -1.0]}
    task = adapt(run, support)
    found = task.predict({"a": [1.5, 2.5]})
    assert list(found) == ["u", "v", "u_sd", "v_sd"]
    schema, arrays = run.config.source.schema, {name: np.array(cells) for name, cells in support.items()}
    x, y = schema.encode_inputs(arrays, "s"), schema.encode_targets(arrays, "s")
    std = run.adapt(x, y).std([[0.25], [0.75]])
    np.testing.assert_allclose(found["u_sd"], 20 * std[:, 0], rtol=1e-4)
    np.testing.assert_allclose(found["v_sd"], std[:, 1], rtol=1e-4)


def test_images_each_on_its_own(images, tmp_path):
    """The net normalises by batch statistics; its answers for an image are the same whatever is beside it."""
    run, _, task = images
    assert run.config.learner.net.statistics == "batch"
    for i in range(20):
        save_image(tmp_path / "many" / f"größe {i}.png", seed=100 + i)
    save_image(tmp_path / "one" / "größe 3.png", seed=103)
    (tmp_path / "many" / "notes.txt").write_text("stray")
    assert predict_file(task, tmp_path / "many", tmp_path / "many.csv") == 20
    assert predict_file(task, tmp_path / "one", tmp_path / "one.csv") == 1
    many, one = read_csv(tmp_path / "many.csv"), read_csv(tmp_path / "one.csv")
    assert list(many) == ["file", "class", "class=Hund", "class=kat ze"]
    at = many["file"].index("größe 3.png")
    assert [cells[at] for cells in many.values()] == [cells[0] for cells in one.values()]
    assert len(set(many["class=Hund"])) > 1
    each = np.array([many["class=Hund"], many["class=kat ze"]], float)
    np.testing.assert_allclose(each.sum(0), 1.0, rtol=1e-6)


def test_a_saved_task_of_images(images, tmp_path):
    _, support, task = images
    task.save(tmp_path / "adapted")
    x = np.random.default_rng(0).random((2, 8, 8, 3), np.float32)
    np.testing.assert_array_equal(load_fitted(tmp_path / "adapted").predict(x), task.predict(x))
    assert task.about["rows"] == len(list(support.rglob("*.png"))) == 5


def test_bad_images_are_refused(images, tmp_path):
    run, _, task = images
    save_image(tmp_path / "single" / "cat" / "1.png", seed=0)
    with pytest.raises(InputError, match="has one class only, 'cat'"):
        adapt(run, tmp_path / "single")
    for name in "abcd":
        save_image(tmp_path / "four" / name / "1.png", seed=0)
    with pytest.raises(InputError, match="has 4 classes, the run distinguishes 3"):
        adapt(run, tmp_path / "four")
    with pytest.raises(InputError, match="must hold a folder of images for each class"):
        adapt(run, tmp_path / "single" / "cat")
    with tarfile.open(tmp_path / "out.tar", "w") as tar:
        tar.add(tmp_path / "single" / "cat" / "1.png", "../cat/1.png")
    with pytest.raises(InputError, match="a path that leads out of it"):
        adapt(run, tmp_path / "out.tar")
    (tmp_path / "new").mkdir()
    with pytest.raises(InputError, match="holds no images"):
        predict_file(task, tmp_path / "new", tmp_path / "p.csv")
    (tmp_path / "new" / "broken.jpg").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"new/broken\.jpg cannot be read as an image"):
        predict_file(task, tmp_path / "new", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


def rows_of_task(count):
    rng = np.random.default_rng(count)
    return rng.normal(size=(count, 3)).astype(np.float32), rng.normal(size=(count, 1)).astype(np.float32)


def test_many_tasks_at_once_are_what_each_is_alone(run):
    supports = [rows_of_task(count) for count in (3, 6, 8, 5)]
    many = run.adapt_many(supports)
    assert len(many) == 4
    new = [rows_of_task(count)[0] for count in (1, 4, 3, 2)]
    together = many.predict(new)
    for i in range(4):
        alone = run.adapt(*supports[i])
        np.testing.assert_allclose(many[i].predict(new[i]), alone.predict(new[i]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(together[i], alone.predict(new[i]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(many[i].task_embedding, alone.task_embedding, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(many[i].assignments[1], alone.assignments[1], rtol=1e-4, atol=1e-5)
    assert [one.predict(new[0]).shape for one in many[1:3]] == [(1, 1)] * 2
    with pytest.raises(InputError, match="one array of inputs for each of 4 tasks, got 1"):
        many.predict(new[:1])


def test_a_bad_task_of_many_is_named(run):
    x, y = rows_of_task(3)
    with pytest.raises(InputError, match="task 1: x must be finite, row 2"):
        run.adapt_many([(x, y), (np.where(np.arange(3)[:, None] == 2, np.nan, x), y)])
    with pytest.raises(InputError, match="task 0: x and y must have the same number of rows, got 3 and 2"):
        run.adapt_many([(x, y[:2])])


def test_a_new_number_of_rows_compiles_nothing(run):
    compiled = []

    def listen(event, *_, **__):
        if "backend_compile" in event:
            compiled.append(event)

    run.adapt(*rows_of_task(5)).predict(rows_of_task(5)[0])
    jax.monitoring.register_event_duration_secs_listener(listen)
    for count in (6, 7, 8):
        run.adapt(*rows_of_task(count)).predict(rows_of_task(count)[0])
    assert compiled == []
    run.adapt(*rows_of_task(9))
    assert compiled  # a new size does compile: the ear hears
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_run_without_columns_reads_x_and_y(tmp_path):
    run = untrained(tmp_path / "run", Config(Functions(), MAML(net=NET)))
    task = adapt(run, {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]}, steps=0)
    np.testing.assert_allclose(task.predict({"x": [0.5]})["y"], run.meta(jnp.array([[0.5]]))[0], rtol=1e-5)
    assert (task.about["most_like"], task.about["percentile"], task.about["unlike"]) == ([], None, None)

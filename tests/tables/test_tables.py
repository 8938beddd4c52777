"""People's own tables: reading, meaning of columns, splits by task, drawn tasks; every flaw named by its place."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_files import sensors, write

from metagrove.config.config import Config
from metagrove.config.encoding import from_json, to_json
from metagrove.errors import InputError
from metagrove.sources.tables import open_tables
from metagrove.tables.gapminder import GAPMINDER, write_gapminder
from metagrove.tables.read import from_frame, read_table, rows_of
from metagrove.tables.schema import Column, Schema
from metagrove.tables.settings import TableData


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "sensors.csv", sensors())


def data_of(path, **settings):
    how = {"task_column": "sensor", "target": ("y",), "inputs": ("time", "colour"), **settings}
    return TableData(tasks=str(path), **how)


# reading


def test_pieces_are_the_file_whatever_their_size(table):
    whole = read_table(table)
    pieces = list(rows_of(table, size=7))
    assert max(len(piece.rows) for piece in pieces) == 7
    assert np.concatenate([piece.rows for piece in pieces]).tolist() == whole.rows.tolist() == list(range(2, 162))
    assert np.concatenate([piece.columns["y"] for piece in pieces]).tolist() == whole.columns["y"].tolist()


def test_byte_order_mark_quotes_and_blank_lines(tmp_path):
    path = tmp_path / "a table.csv"
    path.write_bytes('\ufeffname,y\n"a, with\na line",1\n\nb,2\n'.encode())
    read = read_table(path)
    assert list(read.columns) == ["name", "y"]
    assert read.columns["name"].tolist() == ["a, with\na line", "b"]
    assert read.rows.tolist() == [2, 4]


def test_parquet_says_the_same_as_csv(table, tmp_path):
    pd = pytest.importorskip("pandas")
    pd.read_csv(table).to_parquet(tmp_path / "sensors.parquet")
    a, _ = open_tables(data_of(table))
    b, _ = open_tables(data_of(tmp_path / "sensors.parquet"))
    assert a.schema == b.schema
    assert a.task_names("test") == b.task_names("test")
    np.testing.assert_array_equal(a.rows("test")[0], b.rows("test")[0])


def test_a_frame_or_a_mapping_is_a_table():
    read = from_frame({"a": [1, 2], "b": ["u", "v"]})
    assert read.columns["a"].tolist() == [1, 2]
    with pytest.raises(InputError, match="same number of rows"):
        from_frame({"a": [1], "b": [1, 2]})
    with pytest.raises(InputError, match="no rows"):
        from_frame({"a": []})


def test_dates_are_texts():
    read = from_frame({"day": np.array(["2020-01-01", "NaT"], "datetime64[D]")})
    assert read.columns["day"].tolist() == ["2020-01-01", "NaT"]
    columns = Schema((Column("day", "category", categories=("2020-01-01",)),), (), fill_missing=True)
    np.testing.assert_array_equal(columns.encode_inputs(read.columns, "frame"), [[1], [0]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad.csv is empty: expected a header and rows"),
        (b"\n", "bad.csv, row 1: column 1 has no name|bad.csv has a header and no rows"),
        (b"a,y\n", "bad.csv has a header and no rows"),
        (b"a;y\n1;2\n", r"bad.csv, row 1: one column 'a;y', delimited by ';'\? Save it with commas"),
        (b"a\ty\n1\t2\n", "delimited by tabs"),
        (b"a,y\n1,2\n3\n", "bad.csv, row 3: 1 cells, but the header has 2: complete the row"),
        (b"a,y\n1,2,3\n", "bad.csv, row 2: 3 cells, but the header has 2: put a cell with a comma"),
        (b"a,y,a\n1,2,3\n", r"bad.csv, row 1: columns \[1, 3\] are all called 'a'"),
        (b"a,,y\n1,2,3\n", "bad.csv, row 1: column 2 has no name"),
        (b"a,y\n\xff\xfe,2\n", "bad.csv is not UTF-8 text"),
        (b'a,y\n"1,2\n', "bad.csv is not CSV"),
    ],
)
def test_files_that_are_no_tables(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_table(path)


def test_other_files(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(InputError, match=r"a.parquet is not Parquet, or is damaged"):
        read_table(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a.xlsx must end in one of .csv, .parquet"):
        read_table(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match="does not exist"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path)


# what columns mean

SCHEMA = Schema(
    (Column("time", "number", 2.0, 4.0), Column("colour", "category", categories=("blue", "red"))),
    (Column("y", "number", 1.0, 3.0),),
)
LABELS = Schema((Column("x", "number"),), (Column("kind", "category", categories=("cat", "dog")),))


def cells(*values):
    return np.array(values, object)


def test_encoding_by_hand():
    encoded = SCHEMA.encode_inputs({"time": cells("10", "-2"), "colour": cells("red", " blue ")}, "f.csv")
    np.testing.assert_allclose(encoded, [[2.0, 0.0, 1.0], [-1.0, 1.0, 0.0]])
    assert encoded.dtype == np.float32
    assert (SCHEMA.x_dim, SCHEMA.y_dim, SCHEMA.classifies) == (3, 1, False)
    np.testing.assert_allclose(SCHEMA.decode_std(np.ones((2, 1))), [[3.0], [3.0]])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_targets_survive_the_way_in_and_out(values):
    encoded = SCHEMA.encode_targets({"y": np.array(values)}, "f.csv")
    np.testing.assert_allclose(SCHEMA.decode_targets(encoded)["y"], values, rtol=1e-5, atol=1e-5)


def test_labels_and_their_probabilities():
    assert LABELS.classifies
    np.testing.assert_array_equal(LABELS.encode_targets({"kind": cells("dog", "cat")}, "f"), [[0, 1], [1, 0]])
    decoded = LABELS.decode_targets(np.log([[0.2, 0.8], [0.9, 0.1]]))
    assert decoded["kind"].tolist() == ["dog", "cat"]
    np.testing.assert_allclose(decoded["kind=dog"], [0.8, 0.1])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"time": cells("1", "soon"), "colour": cells("red", "red")},
            "row 3, column 'time': expected a number, got 'soon'",
        ),
        ({"time": cells("1", "nan"), "colour": cells("red", "red")}, "row 3, column 'time': the value is missing"),
        (
            {"time": np.array([1.0, np.nan]), "colour": cells("red", "red")},
            "row 3, column 'time': the value is missing",
        ),
        ({"time": cells("inf", "1"), "colour": cells("red", "red")}, "row 2, column 'time': inf is too large"),
        ({"time": cells("1e300", "1"), "colour": cells("red", "red")}, "row 2, column 'time': 1e300 is too large"),
        ({"time": cells("1e20", "1"), "colour": cells("red", "red")}, "row 2, column 'time': 1e20 is too far from"),
        ({"time": cells("1", "2"), "colour": cells("red", "")}, "row 3, column 'colour': the value is missing"),
        ({"time": cells("1", "2"), "colour": cells("red", "mauve")}, "row 3, column 'colour': 'mauve' was not seen"),
        (
            {"time": cells("1", "2"), "Colour": cells("red", "red")},
            "f.csv has no column 'colour', only 'time', 'Colour'",
        ),
    ],
)
def test_bad_cells_are_named(columns, message):
    with pytest.raises(InputError, match=message):
        SCHEMA.encode_inputs(columns, "f.csv")


def test_missing_values_filled_in():
    filling = dataclasses.replace(SCHEMA, fill_missing=True)
    encoded = filling.encode_inputs({"time": cells("NA", "6"), "colour": cells("red", "")}, "f.csv")
    np.testing.assert_allclose(encoded, [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    with pytest.raises(InputError, match=r"row 9, column 'y': the value is missing"):
        filling.encode_targets({"y": cells("")}, "f.csv", [9])


def test_whole_numbers_that_are_names():
    column = Column("code", "category", categories=("1", "2"))
    for given_cells in (cells("1", "2"), np.array([1, 2]), np.array([1.0, 2.0])):
        np.testing.assert_array_equal(column.encode(given_cells, "f", [2, 3], fill=False), np.eye(2))


# tasks and their splits


def test_schema_is_that_of_training_tasks(table):
    source, notes = open_tables(data_of(table))
    assert notes == []
    assert [(c.name, c.kind) for c in source.schema.inputs] == [("time", "number"), ("colour", "category")]
    _, y = source.rows("train")
    np.testing.assert_allclose(y.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(), 1, atol=1e-5)
    assert abs(float(source.rows("test")[1].std()) - 1) > 1e-3
    assert source.spec.x_shape == (3,)


def test_the_config_survives_json_and_needs_no_files(table):
    source, _ = open_tables(data_of(table))
    from metagrove import HSML

    config = Config(source, HSML())
    stored = json.loads(json.dumps(to_json(config)))
    table.unlink()
    again = from_json(stored)
    assert again == config
    assert to_json(again) == stored
    assert again.source.spec == source.spec
    assert config.with_settings(inputs=("time",)).source.schema == source.schema


def test_splits_are_by_task_seeded_and_independent_of_row_order(table, tmp_path):
    source, _ = open_tables(data_of(table))
    names = {split: source.task_names(split) for split in ("train", "validation", "test")}
    assert {split: len(found) for split, found in names.items()} == {"train": 14, "validation": 3, "test": 3}
    assert sorted(sum(names.values(), ())) == [f"s{i:02d}" for i in range(20)]
    header, *rows = sensors()
    shuffled = write(tmp_path / "b.csv", [header, *(rows[i] for i in np.random.default_rng(1).permutation(len(rows)))])
    other, _ = open_tables(data_of(shuffled))
    assert other.task_names("test") == names["test"]
    seeded, _ = open_tables(data_of(table, split_seed=1))
    assert seeded.task_names("test") != names["test"]


def test_stratified_and_kept_together(tmp_path):
    rows = [["task", "owner", "kind", "x", "y"]]
    for owner in range(24):
        kinds = "ab" if owner < 16 else "c"
        rows += [[f"{owner}{kind}", owner, kind, x, x * owner] for kind in kinds for x in range(6)]
    path = write(tmp_path / "owners.csv", rows)
    source, _ = open_tables(
        TableData(str(path), "task", ("y",), ("x",), stratify="kind", group_column="owner", validation=0.25, test=0.25)
    )
    assert source.family_names == ("a", "b", "c")
    for split, counts in {"train": [8, 8, 4], "validation": [4, 4, 2], "test": [4, 4, 2]}.items():
        assert np.bincount(source.split(split).rows.families).tolist() == counts
        assert {name[:-1] for name in source.task_names(split) if name.endswith("a")} == {
            name[:-1] for name in source.task_names(split) if name.endswith("b")
        }


def test_a_folder_with_strange_names_and_stray_files(tmp_path):
    header, *rows = sensors(num_tasks=8)
    names = ["été", "naïve café", "日本", "a b", "x", "y", "z", "w"]
    for i, name in enumerate(names):
        write(tmp_path / f"{name}.csv", [header[2:], *(row[2:] for row in rows[8 * i : 8 * i + 8])])
    (tmp_path / "notes.txt").write_text("not a table")
    (tmp_path / "old").mkdir()
    (tmp_path / ".hidden").write_text("")
    source, notes = open_tables(TableData(str(tmp_path), target=("y",)))
    assert sorted(sum((source.task_names(s) for s in ("train", "validation", "test")), ())) == sorted(names)
    assert notes == [f"{tmp_path}: skipped files that are not tables: 'notes.txt', 'old'"]
    write(tmp_path / "x.csv", [["time", "colour", "y", "extra"], *([*row[2:], 1] for row in rows[:8])])
    with pytest.raises(InputError, match=r"x.csv has a column 'extra' that .*name the inputs"):
        open_tables(TableData(str(tmp_path), target=("y",)))
    open_tables(TableData(str(tmp_path), target=("y",), inputs=("time", "colour")))
    write(tmp_path / "x.csv", [["time", "y"], [1, 2]])
    with pytest.raises(InputError, match=r"x.csv has no column 'colour' \(--inputs\), only 'time', 'y'"):
        open_tables(TableData(str(tmp_path), target=("y",)))


def test_a_folder_without_tables_or_with_one_task_twice(tmp_path):
    with pytest.raises(InputError, match="holds no table"):
        open_tables(TableData(str(tmp_path), target=("y",)))
    write(tmp_path / "a.csv", [["x", "y"], [1, 2]])
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="two files name the task 'a'"):
        open_tables(TableData(str(tmp_path), target=("y",)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_column": ""}, "is one table: name its task column"),
        ({"task_column": "senser"}, r"has no column 'senser' \(--task-column\), only 'sensor'"),
        ({"target": ()}, "target must name a column"),
        ({"target": ("z",)}, r"has no column 'z' \(--target\)"),
        ({"inputs": ("time", "z")}, r"has no column 'z' \(--inputs\)"),
        ({"inputs": ("time", "y")}, "'y' is an input and a target"),
        ({"stratify": "z"}, r"has no column 'z' \(--stratify\)"),
        ({"stratify": "colour"}, r"row 3, column 'colour': expected 'blue' as in the other rows of the task 's00'"),
        ({"target": ("y", "kind")}, "the target 'kind' is categorical, so it must be the only one, got 2"),
        ({"shots": 0}, "shots must be at least 1, got 0"),
        ({"min_shots": 9}, "min_shots must be 0 to shots, got 9"),
        ({"validation": 0.7}, "validation must be above 0 and below 0.5, got 0.7"),
        ({"min_rows": 9}, "0 tasks with enough rows, at least 6 are needed"),
        ({"min_rows": 1}, "min_rows must be 2 or more, got 1"),
    ],
)
def test_settings_that_do_not_fit_the_table(table, settings, message):
    with pytest.raises(InputError, match=message):
        open_tables(data_of(table, **settings))


def changed(tmp_path, row, column, value):
    rows = sensors()
    rows[row - 1][rows[0].index(column)] = value
    return write(tmp_path / "changed.csv", rows)


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (30, "y", "broken", "row 30, column 'y': expected a number, got 'broken'.*--categorical"),
        (31, "time", "", "row 31, column 'time': the value is missing"),
        (32, "y", "NaN", "row 32, column 'y': the value is missing"),
        (33, "y", "-inf", "row 33, column 'y': -inf is too large"),
        (34, "time", "1e300", "row 34, column 'time': 1e300 is too large"),
        (35, "sensor", "", "row 35, column 'sensor': the task's name is missing"),
    ],
)
def test_bad_cells_of_a_training_table(tmp_path, row, column, value, message):
    path = changed(tmp_path, row, column, value)
    with pytest.raises(InputError, match=message):
        open_tables(data_of(path, missing="refuse"))


IMPUTED = "'time': 1 of 160 values are missing (0.62 %), imputed by the mean of the training tasks"


@pytest.mark.parametrize(
    ("missing", "num_rows", "note"),
    [
        ("impute", 160, f"{IMPUTED} and an indicator column"),
        ("mean", 160, IMPUTED),
        ("drop", 159, "dropped 1 rows with a missing value: changed.csv row 31"),
    ],
)
def test_missing_inputs_handled(tmp_path, monkeypatch, missing, num_rows, note):
    monkeypatch.chdir(changed(tmp_path, 31, "time", "").parent)
    source, notes = open_tables(data_of("changed.csv", missing=missing))
    assert sum(len(source.rows(split)[0]) for split in ("train", "validation", "test")) == num_rows
    assert source.schema.fill_missing == (missing == "mean")
    assert notes == [note]


def test_a_missing_value_is_told_by_an_indicator(tmp_path):
    source, _ = open_tables(data_of(changed(tmp_path, 31, "time", "")))
    time = source.schema.inputs[0]
    assert time.encoded_names == ("time", "time missing")
    assert [column.indicator for column in source.schema.inputs] == [True, False]
    codes = time.encode(np.array(["", str(time.mean + time.std)], object), "w", [2, 3], fill=False)
    np.testing.assert_allclose(codes, [[0, 1], [1, 0]], atol=1e-9)
    with pytest.raises(InputError, match="in the training tasks that column was complete"):
        source.schema.encode_inputs({"time": np.array(["1"]), "colour": np.array([""], object)}, "new.csv")


def test_rows_without_a_target_are_dropped(tmp_path):
    path = changed(tmp_path, 31, "y", "NA")
    _, notes = open_tables(data_of(path))
    assert notes == [f"dropped 1 rows with no target: {path} row 31"]


def test_dates_are_days_since_1970(tmp_path):
    moments = ["2024-01-01", "2024-01-02T12:00", "2024/01/03", "2024-02", "2024-01-05", "2024-01-06"]
    rows = [["task", "day", "y"]] + [[f"t{t}", day, t + i] for t in range(12) for i, day in enumerate(moments)]
    source, _ = open_tables(TableData(str(write(tmp_path / "d.csv", rows)), "task", ("y",), shots=3))
    day = source.schema.inputs[0]
    assert (day.kind, day.width) == ("date", 1)
    x = day.encode(np.array(["1970-01-02", "2024-01-02T12:00"], object), "w", [2, 3], fill=False)[:, 0]
    np.testing.assert_allclose(x * day.std + day.mean, [1.0, 19724.5], rtol=1e-6)
    with pytest.raises(InputError, match=r"row 2, column 'day': expected a date such as 2024-05-01, got '01.05.2024'"):
        source.schema.encode_inputs({"day": np.array(["01.05.2024"], object)}, "new.csv")
    with pytest.raises(InputError, match="the target 'day' is a date"):
        open_tables(TableData(str(tmp_path / "d.csv"), "task", ("day",), inputs=("y",), shots=3))


def test_classes_are_shared_by_all_tasks(tmp_path):
    path = write(tmp_path / "a.csv", sensors())
    source, _ = open_tables(data_of(path, target=("colour",), inputs=("time", "y")))
    assert source.schema.labels == ("blue", "red")
    assert source.rows("test")[1].shape[1] == 2
    rows = [[*row[:3], "red", row[4]] for row in sensors()[1:]]
    with pytest.raises(InputError, match="every row's 'colour' is 'red': classification needs two classes"):
        open_tables(data_of(write(path, [sensors()[0], *rows]), target=("colour",), inputs=("time",)))


def test_numbers_can_be_classes(table):
    source, _ = open_tables(data_of(table, target=("time",), inputs=("y",), categorical=("time",)))
    assert source.schema.labels == tuple("01234567")


def test_too_many_texts_are_no_category(tmp_path):
    rows = [[*row, f"id {i}"] for i, row in enumerate(sensors()[1:])]
    path = write(tmp_path / "ids.csv", [[*sensors()[0], "id"], *rows])
    with pytest.raises(InputError, match=r"the column 'id' has more than 100 different texts: leave it out"):
        open_tables(data_of(path, inputs=("id", "time")))


def test_a_category_that_only_a_test_task_has(table, tmp_path):
    source, _ = open_tables(data_of(table))
    name = source.task_names("test")[0]
    rows = [[*row[:3], "mauve" if row[0] == name else row[3], row[4]] for row in sensors()]
    rows[0] = sensors()[0]
    other, notes = open_tables(data_of(write(tmp_path / "mauve.csv", rows)))
    assert notes == [f"left out {name!r}: it has a category that is in no training task"]
    assert other.task_names("test") == source.task_names("test")[1:]


def test_small_tasks_have_smaller_supports_or_are_left_out(tmp_path):
    rows = [row for row in sensors() if row[0] not in ("s03", "s07") or row[2] in (0, 1, 2)]
    path = write(tmp_path / "small.csv", rows)
    source, notes = open_tables(data_of(path))
    assert notes == ["2 tasks have no more than 5 rows: all but one are their support set"]
    assert "s03" in sum((source.task_names(s) for s in ("train", "validation", "test")), ())
    split = next(s for s in ("train", "validation", "test") if "s03" in source.task_names(s))
    task = source.task(split, source.task_names(split).index("s03"))
    assert (int(task.support.mask.sum()), int(task.query.mask.sum())) == (2, 1)
    larger, notes = open_tables(data_of(path, min_rows=6))
    assert "left out 2 small tasks (a task needs 6 rows): 's03 (3)', 's07 (3)'" in notes[0]
    assert "s03" not in sum((larger.task_names(s) for s in ("train", "validation", "test")), ())


def test_a_file_that_changed_is_refused(table):
    source, _ = open_tables(data_of(table))
    write(table, sensors(seed=1))
    later = dataclasses.replace(source, shots=4)
    with pytest.raises(InputError, match="has changed since training started"):
        later.split("train")
    table.unlink()
    with pytest.raises(InputError, match="the run's tasks, does not exist"):
        dataclasses.replace(source, shots=3).split("train")


# drawn tasks


def drawn(source, split="train", count=200):
    sample = jax.jit(jax.vmap(source.split(split).sample))
    return sample(jax.random.split(jax.random.key(0), count))


def test_support_and_query_are_different_rows_of_one_task(table):
    source, _ = open_tables(data_of(table, inputs=("time",), shots=5))
    tasks = drawn(source)
    assert tasks.support.x.shape == (200, 5, 1)
    assert tasks.query.x.shape == (200, 3, 1)
    assert tasks.support.mask.all()
    assert tasks.query.mask.all()
    times = np.sort(np.concatenate([tasks.support.x, tasks.query.x], axis=1)[..., 0], axis=1)
    np.testing.assert_allclose(times, np.broadcast_to(times[:1], times.shape))  # each of the eight once


def test_tasks_of_different_sizes(tmp_path):
    rows = [row for row in sensors() if row[0] != "s00" or row[2] in (0, 1, 2)]
    source, _ = open_tables(data_of(write(tmp_path / "a.csv", rows), inputs=("time",), shots=5, min_shots=2))
    tasks = drawn(source, count=600)
    support, query = np.array(tasks.support.mask.sum(1)), np.array(tasks.query.mask.sum(1))
    assert set(support) == {2, 3, 4, 5}
    assert set(support + query) <= {3, 8}
    if "s00" in source.task_names("train"):
        assert {(2, 1)} == set(zip(support[support + query == 3], query[support + query == 3], strict=True))
    later = drawn(source, "validation")
    assert set(np.array(later.support.mask.sum(1))) <= {2, 5}


def test_few_queries_and_every_row(table):
    source, _ = open_tables(data_of(table, queries=2))
    assert drawn(source).query.x.shape == (200, 2, 3)
    whole = source.task("test", 1)
    assert (int(whole.support.mask.sum()), int(whole.query.mask.sum())) == (5, 3)
    again = source.task("test", 1)
    np.testing.assert_array_equal(whole.support.x, again.support.x)


def test_parts_draw_each_task_apart(table):
    source, _ = open_tables(data_of(table))
    parts = source.parts("test")
    assert len(parts) == 3
    values = set(np.array(source.rows("test")[1]).ravel().tolist())
    for i, part in enumerate(parts):
        task = part.sample(jax.random.key(5))
        rows = np.array(source.rows("test")[1])[8 * i : 8 * i + 8].ravel().tolist()
        assert set(np.array(task.support.y).ravel().tolist()) <= set(rows) <= values


def test_gapminder_is_standardised_on_training_countries(tmp_path):
    scales = write_gapminder(tmp_path / "gapminder.csv")
    source, notes = open_tables(dataclasses.replace(GAPMINDER, tasks=str(tmp_path / "gapminder.csv")))
    assert notes == []
    assert {split: len(source.task_names(split)) for split in ("train", "validation", "test")} == {
        "train": 300,
        "validation": 63,
        "test": 63,
    }
    training = source.split("train").rows
    target = source.schema.targets[0]
    np.testing.assert_allclose([target.mean, target.std], [0, 1], atol=1e-6)
    for i in range(3):
        values = np.concatenate(
            [np.array(training.y)[12 * t : 12 * t + 12] for t in np.flatnonzero(training.families == i)]
        )
        np.testing.assert_allclose([values.mean(), values.std()], [0, 1], atol=1e-5)
    assert scales["life expectancy"] == pytest.approx((59.37, 13.28), abs=0.01)
    countries = [{name.rpartition(", ")[0] for name in source.task_names(split)} for split in ("train", "test")]
    assert not countries[0] & countries[1]

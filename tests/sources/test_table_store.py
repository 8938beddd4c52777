"""Tables whose rows are kept on disk: the same tasks, weights and messages as in memory; files written once."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from own_runs import NET
from table_files import sensors, write

from metagrove import MAML, files
from metagrove.config.config import Config, Training
from metagrove.errors import InputError
from metagrove.outer import map_drawn, task_keys, whole_task
from metagrove.sources import table_rows, tables
from metagrove.sources.tables import open_tables
from metagrove.tables import encode, moments, size, sort, store
from metagrove.tables.settings import TableData
from metagrove.tables.splits import SPLITS
from metagrove.training.loop import train


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Several parts, chunks and blocks of a small table."""
    monkeypatch.setattr(sort, "PIECE", 37)
    monkeypatch.setattr(sort, "SAMPLE", 16)
    monkeypatch.setattr(sort, "TASKS_PER_PART", 5)
    monkeypatch.setattr(moments, "BLOCK", 50)
    monkeypatch.setattr(table_rows, "TASKS_AT_ONCE", 3)


def rows(num_tasks=24):
    """Sensors in random order: two too small, one too large, one with a colour of its own, some cells missing."""
    header, *found = sensors(num_tasks)
    found = [row for row in found if row[0] not in ("s03", "s07") or row[2] in (0, 1)]
    found += [["s05", "b", time, "red", 0.5 * time] for time in range(8, 14)]
    for at, column in ((20, 2), (30, 3), (50, 4), (90, 2), (110, 4)):
        found[at][column] = ""
    return [header, *(found[i] for i in np.random.default_rng(1).permutation(len(found)))]


def both(path, **settings):
    """The same table in memory and on disk, and the notes of each."""
    data = TableData(str(path), "sensor", ("y",), **{"inputs": ("time", "colour"), "shots": 4, **settings})
    return [open_tables(dataclasses.replace(data, keep_rows=where)) for where in ("memory", "disk")]


def same(first, second):
    """Whether two trees of arrays are the same, bit for bit."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def alone(path):
    """The store of a table."""
    (found,) = path.parent.glob(f"{path.name}.store/*")
    return found


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tasks_names_and_notes_are_those_of_memory(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "MOST_ROWS", 10)
    path = write(tmp_path / "sensors.csv", rows())
    if kind == "parquet":
        pd = pytest.importorskip("pandas")
        pd.read_csv(path, dtype={"time": "Int64"}).to_parquet(tmp_path / "sensors.parquet")
        path = tmp_path / "sensors.parquet"
    (memory, said), (disk, said_too) = both(path, stratify="kind")
    assert (disk.schema, disk.families, disk.sha256) == (memory.schema, memory.families, memory.sha256)
    assert said == said_too
    for part in ("dropped 2 rows", "'time': 2 of", "left out 2 small tasks", "'s05' has more than 10 rows"):
        assert part in " ".join(said)
    assert not list(alone(path).glob("sorted*"))  # what was needed on the way is gone
    for split in SPLITS:
        assert disk.task_names(split) == memory.task_names(split)
        assert same(disk.rows(split), memory.rows(split))


def test_drawn_tasks_are_those_of_memory(tmp_path):
    memory, disk = (source for source, _ in both(write(tmp_path / "sensors.csv", rows())))
    keys = task_keys(jax.random.key(0), 40)
    assert same(*(map_drawn(whole_task, source.split("train"), keys) for source in (memory, disk)))
    assert same(*(source.whole_tasks("test", 3) for source in (memory, disk)))


def test_groups_stay_together_and_labels_are_encoded_on_disk(tmp_path):
    table = [[*row, row[0][:2] + "xyz"[int(row[0][2]) % 3]] for row in sensors(30)[1:]]
    path = write(tmp_path / "a.csv", [["sensor", "kind", "time", "colour", "y", "site"], *table])
    settings = {"target": ("colour",), "inputs": ("time", "y"), "group_column": "site", "stratify": "kind"}
    data = TableData(str(path), "sensor", shots=4, **settings)
    memory, disk = (open_tables(dataclasses.replace(data, keep_rows=where))[0] for where in ("memory", "disk"))
    assert memory.schema == disk.schema
    assert memory.schema.labels == ("blue", "red")
    for split in SPLITS:
        assert memory.task_names(split) == disk.task_names(split)
        assert same(memory.rows(split), disk.rows(split))


TRAINING = Training(steps=6, meta_batch=3, log_every=2, validate_every=2, validation_tasks=4, max_eval_inner_steps=1)
LEARNER = MAML(net=NET, inner_steps=1, first_order=True)


def test_training_has_the_same_weights_and_resumes(tmp_path):
    path = write(tmp_path / "sensors.csv", rows())
    sources = [source for source, _ in both(path)]
    for where, source in zip(("memory", "disk"), sources, strict=True):
        assert train(Config(source, LEARNER, TRAINING), tmp_path / where)
    stopped = []

    def stop(record):
        stopped.append(record.step)
        raise KeyboardInterrupt

    config = Config(sources[1], LEARNER, TRAINING)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "resumed", callback=lambda record: stop(record) if record.step == 4 else None)
    tables.opened.cache_clear()
    tables.open_split.cache_clear()
    assert train(config, tmp_path / "resumed", resume=True)
    found = [json.loads((tmp_path / name / "last.json").read_text()) for name in ("memory", "disk", "resumed")]
    assert len({one["sha256"] for one in found}) == 1
    assert stopped == [4]


def test_files_are_written_once_and_again_where_they_do_not_fit(tmp_path, monkeypatch):
    path = write(tmp_path / "sensors.csv", rows())
    written = []
    write_store = store.write_store
    monkeypatch.setattr(store, "write_store", lambda *args: written.append(1) or write_store(*args))

    def open_again(**settings):
        tables.opened.cache_clear()
        return both(path, **settings)[1][0]

    def count():
        return len(list(path.parent.glob("sensors.csv.store/*/store.json")))

    open_again()
    (tmp_path / "sensors.csv.store" / ".killed.tmp").mkdir()
    open_again(queries=7)  # decides what is drawn, not what is encoded
    assert (len(written), count()) == (1, 1)
    open_again(split_seed=1)
    assert (len(written), count()) == (2, 2)
    assert not (tmp_path / "sensors.csv.store" / ".killed.tmp").exists()
    first, second = path.parent.glob("sensors.csv.store/*")
    (first / "train.rows").write_bytes((first / "train.rows").read_bytes()[:-4])
    files.write_json(second / "store.json", {**files.read_json(second / "store.json"), "version": 0})
    for seed in (0, 1):
        open_again(split_seed=seed)
    assert (len(written), count()) == (4, 2)
    source = open_again()
    write(path, sensors(24, seed=1))
    tables.opened.cache_clear()
    with pytest.raises(InputError, match="has changed since training started"):
        source.task_names("test")
    open_again()
    assert (len(written), count()) == (5, 1)  # those of the former table are gone


def test_bad_cells_are_named_by_file_row_and_column(tmp_path):
    for column, cell, message in (
        (2, "deep", "column 'time': expected a number, got 'deep'"),
        (0, " ", "column 'sensor': the task's name is missing"),
        (1, "c", "column 'kind': expected 'a' as in the other rows of the task 's02'"),
    ):
        changed = sensors()
        changed[20][column] = cell  # s02
        path = write(tmp_path / "bad.csv", changed)
        data = TableData(str(path), "sensor", ("y",), ("time",), stratify="kind", keep_rows="disk", shots=4)
        with pytest.raises(InputError, match=re.escape(f"{path}, row 21, {message}")):
            open_tables(data)
        assert not list(tmp_path.glob("*.store/*"))
    with pytest.raises(InputError, match=r"is a folder: --keep-rows disk needs one long table"):
        open_tables(TableData(str(tmp_path), target=("y",), keep_rows="disk"))


def test_only_large_tables_are_kept_on_disk_by_default(tmp_path, monkeypatch):
    path = write(tmp_path / "sensors.csv", sensors())
    data = TableData(str(path), "sensor", ("y",))
    assert not size.keeps_rows_on_disk(data)
    monkeypatch.setattr(size, "MOST_CELLS_IN_MEMORY", 300)
    assert size.keeps_rows_on_disk(data)
    assert not size.keeps_rows_on_disk(dataclasses.replace(data, keep_rows="memory"))
    assert not size.keeps_rows_on_disk(dataclasses.replace(data, tasks=str(tmp_path)))
    open_tables(dataclasses.replace(data, store=str(tmp_path / "elsewhere")))
    assert len(list(tmp_path.glob("elsewhere/*/store.json"))) == 1
    assert not list(tmp_path.glob("*.store"))


def test_of_very_many_tasks_some_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MOST_LISTED", dict.fromkeys(SPLITS, 2))
    path = write(tmp_path / "sensors.csv", sensors(30))
    memory, disk = (source for source, _ in both(path))
    assert [disk.num_tasks(split) for split in SPLITS] == [22, 4, 4]
    whole = memory.whole_tasks("train", 22)
    for source in (memory, disk):
        assert [len(source.task_names(split)) for split in SPLITS] == [2, 2, 2]
        assert len(source.parts("train")) == 2
        last = jax.tree.map(lambda leaf: leaf[-1], whole)
        assert same(source.task("train", 1), last)
    assert disk.task_names("train") == memory.task_names("train")

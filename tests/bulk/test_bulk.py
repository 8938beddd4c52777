"""All tasks of a table: the same answers as one by one, however the work is cut, stopped and begun again."""

import re

import numpy as np
import own_runs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import LocalCluster
from in_process import InThisProcess
from own_runs import COLOUR, X, Y

from metagrove.bulk import parts
from metagrove.bulk.run import run_work
from metagrove.bulk.work import WorkFolder, describe_work
from metagrove.cli.app import main
from metagrove.errors import InputError
from metagrove.tables import sort

NUM_TASKS = 23


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Several parts, batches and chunks of a small table."""
    monkeypatch.setattr(sort, "PIECE", 37)
    monkeypatch.setattr(sort, "SAMPLE", 16)
    monkeypatch.setattr(sort, "TASKS_PER_PART", 5)
    monkeypatch.setattr(parts, "WIDTH", 4)
    monkeypatch.setattr(parts, "QUERIES", 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return own_runs.table_run(tmp_path_factory.mktemp("bulk"))


def rows(num_tasks=NUM_TASKS):
    """Tasks of 3 to 9 rows in random order; some rows have no target."""
    rng = np.random.default_rng(1)
    each = [{"sensor": [f"s{i}"] * (3 + i % 7), **own_runs.sensors(3 + i % 7, i)} for i in range(num_tasks)]
    columns = {name: np.concatenate([one[name] for one in each]).astype(object) for name in each[0]}
    for name in np.unique(columns["sensor"]):
        columns[Y][np.flatnonzero(columns["sensor"] == name)[2 :: 1 + len(name)]] = None
    order = rng.permutation(len(columns[Y]))
    return {name: cells[order] for name, cells in columns.items()}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({name: pa.array(cells.tolist()) for name, cells in rows().items()}), path)
    return path


def work_on(kind, run, table, out, pool):
    count = run_work(describe_work(kind, run.folder, table), out, pool)
    return count, pq.read_table(out).to_pydict()


def test_predictions_are_those_of_each_task_by_itself(run, table, tmp_path):
    given = rows()
    count, found = work_on("predict", run, table, tmp_path / "out.parquet", InThisProcess())
    asked = np.array([y is None for y in given[Y]])
    assert count == asked.sum() == len(found["row"])
    assert found["task"] == sorted(found["task"])
    assert sorted(found["row"]) == (1 + np.flatnonzero(asked)).tolist()  # as in the file, from 1
    for name in ("s3", "s11"):
        mine = given["sensor"] == name
        support = {column: given[column][mine & ~asked] for column in (X, COLOUR, Y)}
        query = {column: given[column][mine & asked] for column in (X, COLOUR)}
        expected = run.adapt(support).predict(query)[Y]
        here = [y for task, y in zip(found["task"], found[Y], strict=True) if task == name]
        np.testing.assert_allclose(here, expected, rtol=1e-5)
    assert not list(tmp_path.glob("*.work"))


@pytest.mark.parametrize("kind", ["predict", "adapt"])
def test_the_result_does_not_depend_on_how_the_work_was_cut_and_stopped(kind, run, table, tmp_path):
    outs = [tmp_path / f"{way}.parquet" for way in ("one", "two", "again")]
    work_on(kind, run, table, outs[0], InThisProcess(1))
    two = InThisProcess(2)
    work_on(kind, run, table, outs[1], two)
    num_parts = sum(len(job.parts) for job in two.jobs)
    assert num_parts > 3

    stopped = InThisProcess(2)
    stopped.run = lambda command: 130 if len(stopped.jobs) == 2 else main(command)
    assert run_work(describe_work(kind, run.folder, table), outs[2], stopped) is None
    folder = WorkFolder(tmp_path / "again.parquet.work")
    assert [folder.is_done(number) for number in range(num_parts)] == [i % 2 == 0 for i in range(num_parts)]
    kept, times = folder.result(0).stat().st_mtime_ns, []
    folder.result(2).write_bytes(b"damaged")

    def run_and_look(command):
        code = main(command)
        times.append(folder.result(0).stat().st_mtime_ns)
        return code

    again = InThisProcess(1)
    again.run = run_and_look
    work_on(kind, run, table, outs[2], again)
    assert times == [kept]
    assert outs[0].read_bytes() == outs[1].read_bytes() == outs[2].read_bytes()


def test_a_task_is_described_by_clusters_and_embedding(run, table, tmp_path):
    count, found = work_on("adapt", run, table, tmp_path / "out.parquet", InThisProcess())
    assert count == NUM_TASKS
    given = rows()
    mine = (given["sensor"] == "s11") & np.array([y is not None for y in given[Y]])
    task = run.adapt({column: given[column][mine] for column in (X, COLOUR, Y)})
    at = found["task"].index("s11")
    assert found["rows"][at] == mine.sum()
    np.testing.assert_allclose(found["embedding"][at], task.task_embedding, rtol=1e-4, atol=1e-6)
    for level, expected in enumerate(task.about["clusters"], 1):
        np.testing.assert_allclose(found[f"clusters_{level}"][at], expected, rtol=1e-4)


def test_csv_files_two_processes_and_a_dask_cluster(run, table, tmp_path):
    """The processes have the usual widths and compile for one core: the same answers but for the last bits."""
    cells = {name: ["" if cell is None else cell for cell in column] for name, column in rows().items()}
    path = own_runs.write_csv(tmp_path / "many.csv", cells)
    out = tmp_path / "csv.parquet"
    assert main(["predict", str(run.folder), "--tasks", str(path), "--out", str(out), "--workers", "2"]) == 0
    _, expected = work_on("predict", run, table, tmp_path / "parquet.parquet", InThisProcess())
    found = pq.read_table(out).to_pydict()
    assert found["task"] == expected["task"]
    assert found["row"] == [row + 1 for row in expected["row"]]  # the header is row 1
    np.testing.assert_allclose(found[Y], expected[Y], rtol=1e-5)
    again = ["predict", str(run.folder), "--tasks", str(path), "--out", str(tmp_path / "dask.parquet")]
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        assert main([*again, "--cluster", cluster.scheduler_address]) == 0
    assert (tmp_path / "dask.parquet").read_bytes() == out.read_bytes()


def test_what_cannot_be_used_is_named(run, tmp_path):
    good = {name: [str(cell or "") for cell in column] for name, column in rows(8).items()}
    first = good[X].copy()
    first[44] = "deep"
    unnamed = good["sensor"].copy()
    unnamed[3] = " "
    lonely = ["" if name == "s4" else y for name, y in zip(good["sensor"], good[Y], strict=True)]
    place = 2 + good["sensor"].index("s4")
    for changed, message in [
        ({X: first}, f"row 46, column {X!r}: expected a number, got 'deep'"),
        ({"sensor": unnamed}, "row 5, column 'sensor': the task's name is missing"),
        ({Y: lonely}, f"row {place}: the task 's4' has no row with its target"),
        ({Y: ["1"] * len(lonely)}, "has a target in every row: leave it empty in the rows to predict"),
    ]:
        path = own_runs.write_csv(tmp_path / "bad.csv", {**good, **changed})
        with pytest.raises(InputError, match=re.escape(message)):
            work_on("predict", run, path, tmp_path / f"{len(message)}.parquet", InThisProcess())


def test_other_work_in_the_same_place_is_refused(run, table, tmp_path, capsys):
    out = tmp_path / "out.parquet"
    stopped = InThisProcess()
    stopped.run = lambda _: 130
    assert run_work(describe_work("adapt", run.folder, table), out, stopped) is None
    with pytest.raises(InputError, match=r"out.parquet.work is unfinished work with another inner_steps"):
        run_work(describe_work("adapt", run.folder, table, inner_steps=1), out, stopped)
    arguments = [str(run.folder), "--tasks", str(table), "--out"]
    assert main(["predict", *arguments, str(tmp_path / "out.csv")]) == 2
    assert main(["predict", *arguments, str(out), "--input", str(table)]) == 2
    assert main(["adapt", str(run.folder), "--out", str(out)]) == 2
    assert main(["adapt", *arguments, str(out), "--task-column", "tsk"]) == 2
    errors = capsys.readouterr().err
    assert "must end in .parquet" in errors
    assert "give either --support ROWS (one task) or --tasks TABLE (many tasks)" in errors


def test_predictions_with_std_and_with_classes(tmp_path):
    values = {
        "task": [1, 1, 1, 2, 2],
        "a": [0.1, 0.2, 0.3, 0.5, 1],
        "u": [1, 2, None, 3, None],
        "v": [1, 2, None, 0, None],
    }
    labels = {"task": [1, 1, 1], "a": [0.1, 0.2, 0.3], "b": [1.0, 2.0, 3.0], "kind": ["x", "9", None]}
    for name, run, columns in (
        ("values", own_runs.value_run(tmp_path / "v"), values),
        ("labels", own_runs.label_run(tmp_path / "l"), labels),
    ):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(columns), path)
        _, found = work_on("predict", run, path, tmp_path / f"{name}-out.parquet", InThisProcess())
        inputs = {key: columns[key] for key in columns if key in ("a", "b", "u", "v", "kind")}
        task = run.adapt({key: cells[:2] for key, cells in inputs.items()})
        expected = task.predict({key: inputs[key][2:3] for key in ("a", "b") if key in inputs})
        assert list(found) == ["task", "row", *expected]
        for key, cells in expected.items():
            if key == "kind":
                assert found[key][0] == cells[0]
            else:
                np.testing.assert_allclose(found[key][0], cells[0], rtol=1e-4)

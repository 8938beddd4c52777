"""Intervals cover what they say on new tasks, probabilities are right as often as they say, and both are served."""

import jax
import numpy as np
import pytest
from own_runs import NET, Y, sensors, table_run, value_run

import metagrove as mg
from metagrove.evaluation.row_scores import class_scores, reliability, score_rows
from metagrove.serve.calibrate import Draws, calibrate, calibrate_predictions, choose_scale, draw_rows, split_tasks
from metagrove.serve.calibration import Calibration, read_calibration, write_calibration
from metagrove.serve.conformal import fit_temperature, interval_scores, task_quantile, tempered, weighted_quantile
from metagrove.serve.served import Served, baseline_folder, save_fitted_run, write_served
from metagrove.tables.schema import Column, Schema


def test_a_weighted_quantile_by_hand():
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 1.0])
    assert [weighted_quantile(values, weights, level) for level in (0.1, 0.5, 0.51, 0.75, 0.76, 1.0)] == [
        1.0,
        1.0,
        2.0,
        2.0,
        3.0,
        3.0,
    ]


def made_up_errors(rng, num_tasks):
    """Every task has its own noise, so that rows of a task are far from independent."""
    return [np.abs(rng.normal(size=12) * rng.lognormal(sigma=0.6)) for _ in range(num_tasks)]


def test_quantiles_cover_the_rows_of_new_tasks():
    rng, covered = np.random.default_rng(0), []
    for _ in range(60):
        quantile = task_quantile(made_up_errors(rng, 12), 0.9)
        covered += [(one <= quantile).mean() for one in made_up_errors(rng, 20)]
    assert 0.88 < np.mean(covered) < 0.95


def test_one_task_with_large_errors_weighs_no_more_than_another():
    few, many = [np.ones(10)] * 19, [np.ones(10)] * 19
    assert task_quantile([*few, np.full(10, 9.0)], 0.9) == task_quantile([*many, np.full(10_000, 9.0)], 0.9) == 1.0


def test_interval_scores_by_hand():
    """Two tasks: each has the other's largest error as its quantile."""
    found = interval_scores([np.array([1.0, 2.0]), np.array([4.0])], [np.ones(2), np.ones(1)], 0.9)
    np.testing.assert_allclose(found, [2 * 4.0, 2 * 2.0 + 20 * 2.0])


def test_the_temperature_of_probabilities_that_are_too_sure():
    rng = np.random.default_rng(0)
    true = tempered(rng.normal(size=(4000, 3)), 1.0)
    labels = np.array([rng.choice(3, p=np.exp(row)) for row in true])
    assert fit_temperature([3 * true], [labels]) == pytest.approx(3, rel=0.15)
    np.testing.assert_allclose(np.exp(tempered(3 * true, 3.0)), np.exp(true), rtol=1e-6)


def draws_with(error_of, num_tasks=20):
    rng = np.random.default_rng(0)
    support = [np.zeros((2, 1))] * num_tasks
    x = [rng.uniform(0, 3, (15, 1)) for _ in range(num_tasks)]
    y = [(error_of(one) * rng.normal(size=one.shape)).astype(np.float32) for one in x]
    return Draws(list(range(num_tasks)), support, x, y, [np.zeros_like(one) for one in y], None)


def test_intervals_widen_with_distance_only_where_errors_do():
    assert choose_scale(draws_with(lambda x: 0.1 + x))[0] == "distance"
    assert choose_scale(draws_with(lambda x: np.ones_like(x))) == ("constant", 0.0)


def test_balanced_accuracy_and_recall_by_hand():
    """Nine of ten rows are of one class; a classifier that always says so has balanced accuracy 50."""
    logs = np.log(np.tile([[0.8, 0.2]], (10, 1)))
    true = np.eye(2)[[0] * 9 + [1]]
    schema = Schema((), (Column("k", "category", categories=("common", "rare")),))
    x = [np.zeros((10, 1))]
    found = class_scores(Draws([0], x, x, [true], [logs], None), schema)
    assert (found.accuracy, found.balanced_accuracy) == (90.0, 50.0)
    assert (found.recall, found.rows) == ({"common": 100.0, "rare": 0.0}, {"common": 9, "rare": 1})
    assert found.calibration_error == pytest.approx(0.1)
    one = reliability(np.array([0.8, 0.85, 0.95]), np.array([True, False, True]))
    assert [(b.accuracy, b.rows) for b in one] == [(0.5, 2), (1.0, 1)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return calibrate(table_run(tmp_path_factory.mktemp("own")))


def test_a_run_is_calibrated_on_its_validation_tasks(run):
    kept = read_calibration(run.folder)
    assert (kept.num_tasks, kept.inner_steps) == (9, run.inner_steps)
    assert list(kept.quantiles) == ["2", "4"]
    levels = [kept.quantiles["4"][level][0] for level in ("0.5", "0.8", "0.9", "0.95")]
    assert levels == sorted(levels)
    columns = run.adapt(sensors(4)).predict(sensors(6, seed=1))
    assert (columns[f"{Y}_lower"] < columns[Y]).all()
    assert (columns[Y] < columns[f"{Y}_upper"]).all()
    assert calibrate(run.folder).folder == run.folder  # again, with the same result
    assert read_calibration(run.folder) == kept


def test_scores_of_rows_are_in_the_targets_units(run):
    found = score_rows(run)
    draws = draw_rows(run, split_tasks(run, "test"), 4, seed=1)
    column = run.config.source.schema.targets[0]
    errors = [(y - p)[:, 0] * column.std for y, p in zip(draws.y, draws.predicted, strict=True)]
    tasks = np.array(draws.task)
    means = [np.mean([np.square(errors[i]).mean() for i in np.flatnonzero(tasks == t)]) for t in np.unique(tasks)]
    assert found.targets[Y].rmse == pytest.approx(np.sqrt(np.mean(means)), rel=1e-5)
    assert (found.num_tasks, found.shots, found.calibrated_on) == (len(means), 4, 9)
    assert found.targets[Y].r2 < 1
    interval = found.targets[Y].interval
    assert interval.asked == 0.9
    assert 0.75 < interval.coverage <= 1
    assert mg.evaluate(run, num_tasks=12).rows == found


def test_a_learners_own_std_scales_its_intervals(tmp_path):
    run = value_run(tmp_path / "run")
    write_calibration(run.folder, Calibration(9, run.inner_steps, "std", 0.0, {"2": {"0.9": [2.0, 3.0]}}))
    rows = {"a": [1.0, 2.0, 3.0], "u": [100.0, 120.0, 90.0], "v": [0.0, 1.0, -1.0]}
    x = np.array([[0.25], [0.75]], np.float32)
    task = run.adapt(rows)
    lower, upper = task.interval(x)
    np.testing.assert_allclose(upper - lower, 2 * np.array([[2.0, 3.0]]) * task.std(x), rtol=1e-5)
    schema = task.schema
    support = schema.encode_inputs(as_cells(rows), "s"), schema.encode_targets(as_cells(rows), "s")
    np.testing.assert_allclose(run.adapt_many([support]).std([x])[0], task.std(x), rtol=1e-4)
    assert (
        table_run(tmp_path / "maml", mg.MAML(net=NET))
        .adapt_many([(np.zeros((2, 3)), np.zeros((2, 1)))])
        .std([np.zeros((1, 3))])
        is None
    )


def as_cells(columns):
    return {name: np.array(cells) for name, cells in columns.items()}


def test_what_is_served_is_scored_with_its_own_intervals(tmp_path):
    """A run that serves a baseline: its predictions and its quantiles, placed among tasks as the run itself was."""
    run = calibrate(table_run(tmp_path, mg.MAML(net=NET)))
    folder = baseline_folder(run.folder, "far-off")
    save_fitted_run(folder, run.config.source, run.config.learner, far_off(run.meta), seconds=0.0, command="a test")
    calibrate_predictions(run.using("far-off"))
    own, before = score_rows(run), run.adapt(sensors(4)).about
    write_served(run.folder, Served("far-off", "far off"))
    served = score_rows(run)
    assert (own.served, served.served) == (None, "far-off")
    assert served.targets[Y].rmse > 2 * own.targets[Y].rmse
    assert served.targets[Y].interval.coverage > 0.75  # with the quantiles of the other it would be near 0
    about = run.adapt(sensors(4)).about
    assert about["learner"] == "far-off"
    assert about["percentiles"] == before["percentiles"]


def far_off(meta):
    """The same net with all numbers ten times as large."""
    return jax.tree.map(lambda leaf: 10 * leaf, meta)

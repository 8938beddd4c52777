"""Baselines: each against a slow oracle or another package, and all of them through the same doors."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from table_files import sensors, write

from metagrove.baselines import trees
from metagrove.baselines.blend import blend_weights, blending_helps
from metagrove.baselines.data import Rows, baseline_data, mean_loss
from metagrove.baselines.features import FeatureSettings
from metagrove.baselines.fit import baselines_for
from metagrove.baselines.gaussian_process import fit_task_gp, predict_tasks
from metagrove.baselines.mixed_model import fit_ridge
from metagrove.config.config import Config
from metagrove.config.encoding import learner_from_json, to_json
from metagrove.mixture import em
from metagrove.serve.run import load
from metagrove.serve.saved import load_fitted
from metagrove.serve.served import save_fitted_run
from metagrove.sources.tables import open_tables
from metagrove.tables.settings import TableData


@pytest.fixture(scope="module", params=["y", "colour"])
def source(request, tmp_path_factory):
    """Slopes by sensor to predict, or colours."""
    path = write(tmp_path_factory.mktemp("tables") / "sensors.csv", sensors(num_tasks=30))
    inputs = ("time", "colour") if request.param == "y" else ("time", "y")
    return open_tables(TableData(str(path), "sensor", (request.param,), inputs, shots=4))[0]


@pytest.fixture(scope="module")
def data(source):
    return baseline_data(source, classifies=source.schema.classifies)


def random_rows(tasks=40, rows=9, seed=0):
    """Lines with random intercepts and slopes, and noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tasks, rows, 1))
    weights = rng.normal(size=(tasks, 2)) * [0.5, 1.0] + [1.0, -0.5]
    y = weights[:, :1, None] + x * weights[:, 1:, None] + 0.3 * rng.normal(size=(tasks, rows, 1))
    return Rows(x, y, np.arange(rows)[None] < rng.integers(3, rows + 1, tasks)[:, None])


def design(rows):
    return np.concatenate([np.ones_like(rows.x), rows.x], -1)


def test_all_rows_of_training_tasks_are_there(source, data):
    x, y = data.train.flat()
    expected_x, expected_y = (np.asarray(part, np.float64) for part in source.rows("train"))
    assert x.shape == expected_x.shape
    np.testing.assert_allclose(np.sort(y.sum(1)), np.sort(expected_y.sum(1)), rtol=1e-6)
    assert data.train.mask.sum(1).tolist() == [8] * len(data.train.x)


def test_em_is_the_mixed_model_of_statsmodels():
    """The same likelihood on the data of a real panel, and a maximum of it."""
    pytest.importorskip("statsmodels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from statsmodels.datasets import grunfeld
        from statsmodels.regression.mixed_linear_model import MixedLM

        table = grunfeld.load_pandas().data
        x, y = (np.asarray(table[name], float) for name in ("value", "invest"))
        x, y, firm = (x - x.mean()) / x.std(), (y - y.mean()) / y.std(), np.asarray(table["firm"], str)
        both = np.column_stack([np.ones_like(x), x])
        found = MixedLM(y, both, groups=firm, exog_re=both).fit(reml=False, method="powell")
    firms = np.unique(firm)
    rows = Rows(
        np.stack([x[firm == f][:, None] for f in firms]),
        np.stack([y[firm == f][:, None] for f in firms]),
        np.ones((len(firms), 20), bool),
    )
    statistics = em.statistics_of(design(rows), rows.y, rows.mask)
    prior = em.fit_em(statistics, em.first_prior(statistics, np.ones(2)), steps=2000, tolerance=1e-9)
    assert em.expect(prior, statistics).log_marginal.sum() == pytest.approx(found.llf, abs=0.05)
    np.testing.assert_allclose(prior.mean[0], found.fe_params, atol=0.02)


def test_evidence_and_posterior_are_those_of_the_joint_gaussian():
    rows = random_rows(tasks=3)
    prior = em.Prior(
        np.array([[1.0, -0.5], [0.0, 2.0]]),
        np.array([[[0.3, 0.1], [0.1, 1.0]], np.eye(2)]),
        np.log([0.7, 0.3]),
        np.array([0.4]),
    )
    found = em.expect(prior, em.statistics_of(design(rows), rows.y, rows.mask))
    for t, mask in enumerate(rows.mask):
        phi, y = design(rows)[t][mask], rows.y[t, mask, 0]
        for k in range(2):
            covariance = phi @ prior.covariance[k] @ phi.T + 0.16 * np.eye(len(y))
            residual = y - phi @ prior.mean[k]
            log_density = -0.5 * (
                residual @ np.linalg.solve(covariance, residual) + np.linalg.slogdet(2 * np.pi * covariance)[1]
            )
            assert found.log_evidence[t, k] == pytest.approx(log_density)
            mean = prior.mean[k] + prior.covariance[k] @ phi.T @ np.linalg.solve(covariance, residual)
            np.testing.assert_allclose(found.means[t, k], mean)
    np.testing.assert_allclose(found.shares.sum(1), 1)


def test_em_never_lowers_the_likelihood_and_finds_two_kinds():
    one, other = random_rows(seed=1), random_rows(seed=2)
    rows = Rows(*(np.concatenate(p) for p in ((one.x, other.x), (one.y, 8 - other.y), (one.mask, other.mask))))
    statistics = em.statistics_of(design(rows), rows.y, rows.mask)
    first = em.fit_em(statistics, em.first_prior(statistics, np.ones(2)))
    prior, values = em.split_prior(first, statistics, 2, seed=0, shrinkage=0.0), []
    for _ in range(15):
        expected = em.expect(prior, statistics)
        values.append(expected.log_marginal.sum())
        prior = em.maximize(expected, statistics, shrinkage=0.0)
    assert (np.diff(values) > -1e-6).all()
    strongest = expected.shares.argmax(1)
    assert len(set(strongest[:40])) == len(set(strongest[40:])) == 1


def test_ridge_is_scikit_learns(tmp_path):
    path = write(tmp_path / "sensors.csv", sensors(num_tasks=20))
    source, _ = open_tables(TableData(str(path), "sensor", ("y",), ("time",), shots=4))
    data = baseline_data(source, classifies=False)
    fitted = fit_ridge(data)
    support, query = data.validation.joined()
    penalty = float(fitted.variant.removeprefix("penalty "))
    found = np.asarray(predict_tasks(fitted.learner, fitted.meta, support, query))
    scale = data.train.flat()[0].std()
    for i in range(5):
        mask = support.mask[i]
        model = Ridge(alpha=penalty).fit(support.x[i][mask] / scale, support.y[i][mask])
        np.testing.assert_allclose(found[i], model.predict(query.x[i] / scale).reshape(-1, 1), atol=2e-3)


def test_trees_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = np.stack([np.sin(3 * x[:, 0]) + x[:, 1] ** 2, x[:, 2]], 1)
    how = {"max_iter": trees.TREES, "max_leaf_nodes": trees.LEAVES, "max_depth": trees.DEPTH, "learning_rate": 0.07}
    how |= {"early_stopping": False, "random_state": 0}
    forest = trees.fit_forest(x, y, classifies=False)
    found = trees.TreePredictor(forest, None, False)(jnp.asarray(x[:50]))
    expected = HistGradientBoostingRegressor(**how).fit(x, y[:, 0]).predict(x[:50])
    np.testing.assert_allclose(np.asarray(found)[:, 0], expected, atol=1e-4)
    for classes in (2, 3):
        labels = np.digitize(x[:, 0] + x[:, 1], [0.0, 1.0][: classes - 1])
        forest = trees.fit_forest(x, np.eye(4)[labels], classifies=True)
        found = np.exp(np.asarray(trees.TreePredictor(forest, None, True)(jnp.asarray(x[:50]))))
        expected = HistGradientBoostingClassifier(**how).fit(x, labels).predict_proba(x[:50])
        np.testing.assert_allclose(found[:, :classes], expected, atol=1e-3)
        assert found[:, classes:].max() < 1e-3


def test_a_process_of_a_task_alone_interpolates(data):
    if data.classifies:
        pytest.skip("for numbers")
    fitted = fit_task_gp(data)
    support, _ = data.validation.joined()
    found = np.asarray(predict_tasks(fitted.learner, fitted.meta, support, support))
    assert mean_loss(found, support, classifies=False) < 0.2 * np.var(support.y)


def test_every_baseline_is_fitted_saved_and_served(source, data, tmp_path):
    """Through a run folder, a fitted task and its saved form, the predictions are those of the learner itself."""
    support, query = data.validation.joined()
    rows = support.x[0][support.mask[0]], support.y[0][support.mask[0]]
    losses = {}
    for name, entry in baselines_for(classifies=data.classifies).items():
        if name == "mixture":
            with pytest.raises(ValueError, match="2 clusters need 40 training tasks"):
                entry.fit(data)
            continue
        fitted = entry.fit(data)
        assert learner_from_json(to_json(Config(source, fitted.learner))["learner"]) == fitted.learner
        save_fitted_run(tmp_path / name, source, fitted.learner, fitted.meta, seconds=0.0, command="a test")
        run = load(tmp_path / name)
        direct = np.asarray(predict_tasks(fitted.learner, fitted.meta, support, query), np.float64)
        losses[name] = mean_loss(direct, query, classifies=data.classifies)
        task = run.adapt(*rows)
        np.testing.assert_allclose(task.predict(query.x[0]), direct[0], atol=2e-3)
        task.save(tmp_path / "task")
        again = load_fitted(tmp_path / "task").predict(query.x[0])
        np.testing.assert_array_equal(again, task.predict(query.x[0]))
    assert losses["mixed-model"] < (0.95 if data.classifies else 0.2) * losses["support-mean"]
    assert losses["mixed-model"] < losses["pooled-linear"] + 0.05


def test_knots_of_a_spline_are_apart_where_a_value_is_frequent():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(300) < 0.7, 0.0, rng.exponential(size=300))[:, None]
    features = FeatureSettings("spline", 8, False, (0,))(x)
    grid = jnp.linspace(-0.5, x.max() + 0.5, 50)[:, None]
    phi = np.asarray(features(grid))
    assert phi.shape == (50, features.num_features)
    assert np.abs(phi).max() < 100  # no direction that hardly any row has is blown up


def test_a_blend_is_no_worse_than_its_best_member():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(20, 6, 1))
    query = Rows(np.zeros((20, 6, 1)), y, np.ones((20, 6), bool))
    predictions = {name: y + 0.5 * rng.normal(size=y.shape) for name in ("a", "b")} | {"far": y + 5}
    weights = blend_weights(predictions, query, classifies=False)
    assert set(weights) == {"a", "b"}
    assert sum(weights.values()) == pytest.approx(1)
    blend = sum(weight * predictions[name] for name, weight in weights.items())
    assert mean_loss(blend, query, classifies=False) < min(
        mean_loss(predictions[name], query, classifies=False) for name in "ab"
    )
    task = np.repeat(np.arange(10), 2)
    assert blending_helps(predictions, query, task, classifies=False)
    assert not blending_helps(predictions, query, np.zeros(20, int), classifies=False)  # a single task tells nothing


def test_a_blend_that_fits_the_noise_of_few_tasks_is_not_taken():
    """The others are off by a constant of each task, so that some of them happen to help on these five."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(5, 6, 1))
    query = Rows(np.zeros((5, 6, 1)), y, np.ones((5, 6), bool))
    predictions = {"good": y + 0.5 * rng.normal(size=(5, 1, 1))}
    predictions |= {f"odd {i}": y + 1.5 * rng.normal(size=(5, 1, 1)) for i in range(8)}
    assert len(blend_weights(predictions, query, classifies=False)) > 1
    assert not blending_helps(predictions, query, np.arange(5), classifies=False)


def test_data_is_hashed_by_identity(data):
    assert hash(data) != hash(dataclasses.replace(data))

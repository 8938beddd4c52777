"""scikit-learn's manners: its own checks without a run, its own errors with one."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from own_runs import COLOUR, NUMBERS, X, Y, image_run, label_run, sensor_run, sensors, value_run
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import metagrove as mg
from metagrove.errors import InputError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sensor_run(tmp_path_factory.mktemp("own") / "run")


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    return value_run(tmp_path_factory.mktemp("own") / "values")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Two classes, 9 and 10, whose names sort the other way round as text."""
    return label_run(tmp_path_factory.mktemp("own") / "numbers", NUMBERS)


def frames(count, seed=0):
    frame = pd.DataFrame(sensors(count, seed))
    return frame[[X, COLOUR]], frame[Y]


@pytest.mark.parametrize("estimator", [mg.FewShotRegressor(), mg.FewShotClassifier()], ids=lambda e: type(e).__name__)
def test_scikit_learns_own_checks(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert len(results) > 40
    assert [r["check_name"] for r in results if r["status"] == "skipped"] == ["check_array_api_input"]


def test_importing_the_package_leaves_slow_ones_alone():
    code = "import sys, metagrove.cli.app; assert not {'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'FewShots'"):
        _ = mg.FewShots


def test_fit_adapts_and_predict_is_in_the_persons_units(run):
    x, y = frames(5)
    new, _ = frames(4, seed=1)
    model = mg.FewShotRegressor(run).fit(x, y)
    assert model.feature_names_in_.tolist() == [X, COLOUR]
    assert model.n_features_in_ == 2
    task = mg.adapt(run, sensors(5))
    np.testing.assert_allclose(model.predict(new), task.predict(new)[Y], rtol=1e-6)
    assert model.task_.about == task.about
    assert np.isfinite(model.score(*frames(20, seed=2)))
    by_folder = mg.FewShotRegressor(str(run.folder)).fit(x, y)
    np.testing.assert_array_equal(by_folder.predict(new), model.predict(new))


def test_arrays_serve_as_well(run):
    x, y = frames(5)
    model = mg.FewShotRegressor(run).fit(x.to_numpy(object), y.to_numpy())
    assert not hasattr(model, "feature_names_in_")
    np.testing.assert_allclose(
        model.predict(x.to_numpy(object)), mg.FewShotRegressor(run).fit(x, y).predict(x), rtol=1e-6
    )


def test_a_wrong_width_or_name_is_scikit_learns_own_error(run):
    x, y = frames(5)
    with pytest.raises(ValueError, match="X has 1 features, but FewShotRegressor is expecting 2 features as input"):
        mg.FewShotRegressor(run).fit(x[[X]].to_numpy(), y)
    with pytest.raises(ValueError, match=r"(?s)The feature names should match.*unseen at fit time:\n- color"):
        mg.FewShotRegressor(run).fit(x.rename(columns={COLOUR: "color"}), y)
    model = mg.FewShotRegressor(run).fit(x, y)
    with pytest.raises(ValueError, match="Feature names must be in the same order as they were in fit"):
        model.predict(x[[COLOUR, X]])
    with pytest.raises(ValueError, match=r"(?s)The feature names should match.*unseen at fit time:\n- third"):
        model.predict(x.assign(third=1.0))
    with pytest.raises(ValueError, match="y has 2 targets, but the run was trained on 1"):
        mg.FewShotRegressor(run).fit(x, np.zeros((5, 2)))
    with pytest.raises(NotFittedError):
        mg.FewShotRegressor(run).predict(x)


def test_columns_may_come_in_another_order(run):
    x, y = frames(5)
    new, _ = frames(4, seed=1)
    other = mg.FewShotRegressor(run).fit(x[[COLOUR, X]], y)
    assert other.feature_names_in_.tolist() == [COLOUR, X]
    np.testing.assert_array_equal(other.predict(new[[COLOUR, X]]), mg.FewShotRegressor(run).fit(x, y).predict(new))


def test_a_frame_serves_a_run_whose_inputs_have_no_names():
    """Without a warning about missing names, which would be an error here."""
    frame, y = pd.DataFrame({"hour": [-1.0, 0.0, 2.0]}), [-1.0, 1.0, 5.0]
    model = mg.FewShotRegressor("toy-5shot-best").fit(frame, y)
    np.testing.assert_array_equal(
        model.predict(frame), mg.FewShotRegressor("toy-5shot-best").fit(frame.to_numpy(), y).predict(frame.to_numpy())
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({COLOUR: "blau"}, "X, row 1, column 'colour': 'blau' was not seen in training"),
        ({X: "lang"}, "X, row 1, column .*expected a number, got 'lang'"),
        ({X: 1e300}, "too large"),
        ({X: np.nan}, "X, row 1, column .*the value is missing"),
    ],
)
def test_bad_cells_are_named(run, spoil, message):
    x, y = frames(3)
    for name, cell in spoil.items():
        x[name] = [x[name][0], cell, x[name][2]]
    with pytest.raises(ValueError, match=message):
        mg.FewShotRegressor(run).fit(x, y)


def test_in_a_pipeline_and_in_cross_validation(run):
    x, y = frames(12)
    model = make_pipeline(FunctionTransformer(), mg.FewShotRegressor(run))
    scores = cross_val_score(model, x, y, cv=3)
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()
    again = cross_val_score(clone(model), x, y, cv=3)
    np.testing.assert_array_equal(scores, again)


def test_two_targets_and_their_standard_deviations(values):
    x, y = np.array([[1.0], [2.0], [3.0]]), np.array([[100.0, 0.0], [120.0, 1.0], [90.0, -1.0]])
    model = mg.FewShotRegressor(values).fit(x, y)
    mean, sd = model.predict(x, return_std=True)
    assert mean.shape == sd.shape == (3, 2)
    assert (sd > 0).all()
    assert sd[0, 0] > sd[0, 1]  # u has a standard deviation of 20, v of 1
    np.testing.assert_array_equal(model.predict(x), mean)


def test_no_standard_deviation_where_there_is_none(run):
    x, y = frames(5)
    with pytest.raises(ValueError, match="this run's learner has no standard deviation"):
        mg.FewShotRegressor(run).fit(x, y).predict(x, return_std=True)
    with pytest.raises(ValueError, match="without a run there is no standard deviation"):
        mg.FewShotRegressor().fit(x[[X]], y).predict(x[[X]], return_std=True)


def test_classes_in_their_own_kind_and_order(numbers):
    x, y = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [3.0, 0.0]]), np.array([9, 9, 10, 10])
    model = make_pipeline(StandardScaler(), mg.FewShotClassifier(numbers, steps=50)).fit(x, y)
    assert model.classes_.tolist() == [9, 10]
    assert model.predict(x).tolist() == [9, 9, 10, 10]
    assert model.score(x, y) == 1.0
    probabilities = model.predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-6)
    assert (probabilities[:, 1] > 0.5).tolist() == [False, False, True, True]
    with pytest.raises(ValueError, match="'8' was not seen in training, only '10', '9'"):
        mg.FewShotClassifier(numbers).fit(x, [8, 8, 9, 9])


def test_images(tmp_path):
    run = image_run(tmp_path / "run")
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    model = mg.FewShotClassifier(run).fit(images, ["cat", "dog", "cat", "dog"])
    assert set(model.predict(images)) <= {"cat", "dog"}
    np.testing.assert_allclose(model.predict_proba(images / 255), model.predict_proba(images), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(model.predict_proba(images)[1:2], model.predict_proba(images[1:2]))
    with pytest.raises(ValueError, match="y has 1 classes, but the run distinguishes 2 to 3"):
        mg.FewShotClassifier(run).fit(images, ["cat"] * 4)


def test_a_run_of_the_other_kind_is_refused(run, numbers):
    with pytest.raises(InputError, match="use FewShotRegressor"):
        mg.FewShotClassifier(run).fit(*frames(5))
    with pytest.raises(InputError, match="use FewShotClassifier"):
        mg.FewShotRegressor(numbers).fit(np.zeros((2, 2)), [0.0, 1.0])

"""Fitted tasks, indices and calibrations from strangers."""

import shutil

import numpy as np
import pytest
from conftest import LEARNERS, TINY
from strangers import at, edited, seal, without

import metagrove as mg
from metagrove.errors import MetagroveError, RunError
from metagrove.evaluation.baselines import read_baselines
from metagrove.serve.calibration import read_calibration
from metagrove.serve.index import read_index
from metagrove.serve.standing import described
from metagrove.training import checkpoint
from metagrove.training.loop import train


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("fitted")
    config = mg.Config(mg.Functions(), LEARNERS["maml"], TINY.training)
    assert train(config.with_settings(steps=10), place / "run")
    x = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    mg.load(place / "run").adapt(x, x).save(place / "task")
    return place / "task"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("spec"), "spec is missing"),
        (at("spec.x_shape", "1"), "spec.x_shape must be a list"),
        (at("support_size", 10**12), "sizes from 1 to 100,000"),
        (at("support_size", -1), "sizes from 1 to 100,000"),
        (at("schema", []), "schema must be an object"),
        (at("schema", {"inputs": [{}], "targets": 3}), "schema.targets must be a list"),
        (at("learner", {"name": "maml", "inner_steps": "2"}), "learner.inner_steps must be a whole number"),
        (at("learner", {}), "learner.name must be the name of a learner"),
        (at("about", None), "about is missing"),
        (at("statistics", "mine"), "statistics must be one of support, query"),
        (at("task_embedding", ["x"]), "task_embedding"),
        (at("calibration", {"scale": "wide"}), "calibration.scale must be one of"),
        (at("calibration", {"quantiles": {"0.9": [1.0, 2.0]}}), "calibration.quantiles must be 1 numbers"),
        (at("calibration", {"quantiles": {"0.9": [None]}}), "calibration.quantiles must be 1 numbers"),
        (at("calibration", {"scale": "std"}), "calibration.scale must not be std"),
        (at("calibration", {"scale": "distance"}), "calibration.support must be rows of 1 numbers"),
        (at("calibration", {"temperature": 0}), "calibration.temperature and distance_weight must be positive"),
        (at("weights", "../task/x.safetensors"), "expected a file of this folder"),
        (at("spec.x_shape", []), "spec must have sizes"),
        (at("schema.inputs", [{"name": "a", "kind": "category", "categories": ["b", "c"]}]), "inputs of 1 values"),
        (at("schema.targets", []), "schema must have targets"),
        (at("learner.net", {"name": "mlp", "hidden": [0]}), "learner: .*hidden"),
        (at("assignments", [[["a"]]]), r"assignments\[0\]\[0\]\[0\] must be a number, got 'a'"),
        (at("assignments", [[[1.0], [0.5, 0.5]]]), "assignments must be matrices"),
        (at("about.percentile", "far"), "about.percentile must be a number, got 'far'"),
        (at("about.most_like", [1]), r"about.most_like\[0\] must be an object"),
        (at("about.clusters", [[None]]), r"about.clusters\[0\]\[0\] must be a number, got null"),
        (at("about.cluster_descriptions", [["a"]]), "must have an entry for each of about.clusters"),
        (at("about.counted_tasks", 0), "about.counted_tasks must be at least 1"),
        (without("about.run"), "about.run is missing"),
    ],
)
def test_a_bad_fitted_task_is_refused_in_words(fitted, tmp_path, change, words):
    with pytest.raises(MetagroveError, match=words):
        mg.load_fitted(edited(fitted, tmp_path, "adapted.json", change))


def test_the_good_one_is_loaded(fitted, tmp_path):
    assert mg.load_fitted(fitted).spec.y_dim == 1
    nameless = mg.load_fitted(edited(fitted, tmp_path, "adapted.json", at("schema.inputs", [])))
    with pytest.raises(MetagroveError, match="the columns of the inputs are not known: pass an array"):
        nameless.predict({"x": [1.0]})


def test_an_index_must_fit_its_arrays(tmp_path):
    words = {"names": ["a", "b"], "families": ["x", "x"], "splits": ["train", "train"], "clusters": [], "step": 1}
    checkpoint.save(tmp_path, "atlas", {"levels": np.zeros((2, 2), np.float32)}, words)
    assert read_index(tmp_path).names == ("a", "b")
    bad_splits = at("splits", ["test", "test"]), at("splits", ["validation", "validation"])
    for change in (at("names", ["a"]), at("names", 3), without("splits"), at("clusters", [[1]]), *bad_splits):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        with pytest.raises(RunError, match="cannot be used"):
            read_index(edited(tmp_path, tmp_path.with_name(f"{tmp_path.name}-copy"), "atlas.json", change))


def test_the_arrays_of_an_index_are_checked(tmp_path):
    words = {"names": ["a", "b"], "families": ["x", "x"], "splits": ["train", "train"]}
    for number, bad in enumerate((np.zeros(2), np.zeros((2, 1), np.int64), np.full((2, 1), np.nan))):
        (tmp_path / str(number)).mkdir()
        checkpoint.save(tmp_path / str(number), "atlas", {"levels": bad}, words)
        with pytest.raises(RunError, match="'levels' must be numbers"):
            read_index(tmp_path / str(number))
    (tmp_path / "other").mkdir()
    checkpoint.save(tmp_path / "other", "atlas", {"levels": np.zeros((2, 3), np.float32)}, words)
    with pytest.raises(RunError, match="does not fit the run: levels has 3 values, expected 2"):
        read_index(tmp_path / "other").measured(None, None, np.zeros(2))


ROW = {"name": "hsml", "label": "HSML", "variant": "", "value": 1.0, "value_ci95": 0.1, "by_family": {}}
MEASURED = {"metric": "mse", "num_tasks": 3, "rows": [ROW], "best": "hsml", "advice": "", "num_draws": 2, "seed": 0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": None}, "rows is missing"),
        ({"rows": [{**ROW, "label": None}, {**ROW, "by_family": None}]}, r"rows\[0\].label .*rows\[1\].by_family"),
        ({"num_draws": 10**9}, "num_draws to 10,000"),
        ({"num_tasks": 0}, "num_tasks must be from 1"),
        ({"seed": 10**30}, "seed of 64 bits"),
        ({"seed": None}, "seed is missing"),
    ],
)
def test_bad_baselines_are_refused_in_words(tmp_path, change, words):
    seal(tmp_path / "baselines.json", {"format": 2, **MEASURED})
    assert read_baselines(tmp_path).num_draws == 2
    seal(tmp_path / "baselines.json", {"format": 2, **MEASURED, **change})
    with pytest.raises(RunError, match=words):
        read_baselines(tmp_path)


def test_what_is_told_of_a_task_is_not_endless():
    about = {"run": "r" * 100_000, "rows": 3, "inner_steps": 1, "clusters": [], "most_like": [{}]}
    assert max(map(len, described(about))) < 1_100


@pytest.mark.parametrize("change", [{"quantiles": {"x": {}}}, {"quantiles": {}}, {"scale": "x"}, {"num_tasks": None}])
def test_a_bad_calibration_is_refused_in_words(tmp_path, change):
    good = {"format": 2, "num_tasks": 3, "inner_steps": 1, "quantiles": {"5": {"0.9": [1.0]}}}
    seal(tmp_path / "calibration.json", {**good, **change})
    with pytest.raises(RunError, match="cannot be used"):
        read_calibration(tmp_path)

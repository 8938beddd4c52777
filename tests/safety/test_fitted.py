"""Fitted tasks, indices and calibrations from strangers."""

import shutil

import numpy as np
import pytest
from conftest import LEARNERS, TINY
from strangers import at, edited, seal, without

import metagrove as mg
from metagrove.errors import MetagroveError, RunError
from metagrove.serve.calibration import read_calibration
from metagrove.serve.index import read_index
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
        (at("weights", "../task/x.safetensors"), "expected a file of this folder"),
    ],
)
def test_a_bad_fitted_task_is_refused_in_words(fitted, tmp_path, change, words):
    with pytest.raises(MetagroveError, match=words):
        mg.load_fitted(edited(fitted, tmp_path, "adapted.json", change))


def test_the_good_one_is_loaded(fitted):
    assert mg.load_fitted(fitted).spec.y_dim == 1


def test_an_index_must_fit_its_arrays(tmp_path):
    words = {"names": ["a", "b"], "families": ["x", "x"], "splits": ["train", "train"], "clusters": [], "step": 1}
    checkpoint.save(tmp_path, "atlas", {"levels": np.zeros((2, 2), np.float32)}, words)
    assert read_index(tmp_path).names == ("a", "b")
    for change in (at("names", ["a"]), at("names", 3), without("splits"), at("clusters", [[1]])):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        with pytest.raises(RunError, match="cannot be used"):
            read_index(edited(tmp_path, tmp_path.with_name(f"{tmp_path.name}-copy"), "atlas.json", change))


@pytest.mark.parametrize("change", [{"quantiles": {"x": {}}}, {"quantiles": {}}, {"scale": "x"}, {"num_tasks": None}])
def test_a_bad_calibration_is_refused_in_words(tmp_path, change):
    good = {"format": 2, "num_tasks": 3, "inner_steps": 1, "quantiles": {"5": {"0.9": [1.0]}}}
    seal(tmp_path / "calibration.json", {**good, **change})
    with pytest.raises(RunError, match="cannot be used"):
        read_calibration(tmp_path)

"""Calibration by hand, and of whole runs through the command."""

import json
import math

import numpy as np
import pytest
from conftest import LEARNERS
from own_runs import untrained

from metagrove import Functions, measure_calibration
from metagrove.cli.app import main
from metagrove.config.config import Config, Training
from metagrove.errors import InputError
from metagrove.evaluation.calibration import LEVELS, Answers, binned_error, covered, of_classes, of_values


def test_gaussian_predictions_that_are_right_cover_their_levels():
    rng = np.random.default_rng(0)
    std = rng.uniform(0.5, 2, (400, 100, 1))
    y, mask = std * rng.normal(size=std.shape), np.ones((400, 100), bool)
    nll, coverage, ece = of_values(Answers(np.zeros_like(y), std, y, mask))
    assert coverage[0.9] == pytest.approx(0.9, abs=0.01)
    assert ece < 0.01
    assert nll.mean() == pytest.approx(np.log(std).mean() + 0.5 + math.log(2 * math.pi) / 2, abs=0.02)
    _, narrow, wrong = of_values(Answers(np.zeros_like(y), std / 2, y, mask))
    expected = [math.erf(level_width(level) / 2 / math.sqrt(2)) for level in LEVELS]
    assert narrow[0.5] < 0.3
    assert wrong == pytest.approx(np.mean(np.abs(np.array(expected) - LEVELS)), abs=0.01)


def level_width(level):
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 + level / 2)


def test_masked_queries_do_not_count():
    y, std = np.array([[[0.0], [99.0]]]), np.ones((1, 2, 1))
    nll, coverage, _ = of_values(Answers(np.zeros((1, 2, 1)), std, y, np.array([[True, False]])))
    np.testing.assert_allclose(nll, [math.log(2 * math.pi) / 2])
    assert coverage[0.5] == 1


def test_sets_of_classes_and_bins_by_hand():
    p = np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.6, 0.3, 0.1]])
    labels = np.array([0, 1, 2])
    assert covered(p, labels, 0.5) == pytest.approx(1 / 3)
    assert covered(p, labels, 0.7) == pytest.approx(2 / 3)
    assert covered(p, labels, 0.95) == 1
    assert binned_error(np.array([0.9, 0.9, 0.5]), np.array([True, False, True])) == pytest.approx(
        2 / 3 * 0.4 + 1 / 3 * 0.5
    )
    nll, _, _ = of_classes(Answers(np.log(p)[None], None, np.eye(3)[None], np.ones((1, 3), bool)))
    assert nll[0] == pytest.approx(-np.log([0.6, 0.3, 0.1]).mean())


def test_runs_through_the_command(tmp_path, capsys):
    training = Training(max_eval_inner_steps=2)
    for name in ("platipus", "maml"):
        untrained(tmp_path / name, Config(Functions(), LEARNERS[name], training))
    file = tmp_path / "out.json"
    assert main(["uncertainty", str(tmp_path / "platipus"), "--num-tasks", "6", "--json", "--out", str(file)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["learner"] == "platipus"
    assert set(row["coverage"]) == {"0.5", "0.9"}
    assert json.loads(file.read_text())["rows"] == [row]
    with pytest.raises(InputError, match="maml predicts no standard deviation: measure runs of grove"):
        measure_calibration(tmp_path / "maml", num_tasks=4)

"""Scores, intervals and comparisons, worked out by hand."""

import dataclasses

import jax
import numpy as np
import pytest
from conftest import LEARNERS

from metagrove import Functions
from metagrove.errors import InputError
from metagrove.keys import key_for
from metagrove.losses import cross_entropy, metric_of, mse
from metagrove.outer import BATCH
from metagrove.training.scores import (
    Scores,
    best_step,
    ci95,
    clustering,
    compare_scores,
    join_scores,
    score_tasks,
    summarize,
)

SCORES = Scores(
    by_step=np.array([[4.0, 1.0], [2.0, 1.0], [6.0, 4.0], [0.0, 2.0]]),
    family=np.array([0, 0, 1, 1]),
    shares=np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.8, 0.2]]),
)


def test_summary_by_hand():
    summary = summarize(SCORES, ("a", "b", "never seen"), step=1, metric="mse")
    assert summary.by_step == [3.0, 2.0]
    assert summary.value == 2.0
    assert summary.value_ci95 == pytest.approx(1.96 * np.sqrt(2.0) / 2)  # sd of 1, 1, 4, 2 is √2
    assert summary.by_family["a"].by_step == [3.0, 1.0]
    assert summary.by_family["b"].num_tasks == 2
    assert "never seen" not in summary.by_family
    assert best_step(SCORES, metric_of(mse)) == 1
    assert best_step(SCORES, metric_of(cross_entropy)) == 0  # of accuracies the highest


def test_scores_after_the_last_step_alone():
    last = dataclasses.replace(SCORES, by_step=SCORES.by_step[:, 1:], first_step=1)
    np.testing.assert_array_equal(last.after(1), SCORES.after(1))
    whole, short = (summarize(one, ("a", "b"), step=1, metric="mse") for one in (SCORES, last))
    assert short.by_step == [2.0]
    assert (short.value, short.value_ci95) == (whole.value, whole.value_ci95)
    assert compare_scores(last, 1, SCORES, 1, ("a", "b")).difference == 0


def test_joined_scores_are_as_of_one_set():
    parts = [
        Scores(SCORES.by_step[rows], SCORES.family[rows], SCORES.shares[rows], first_step=3)
        for rows in (slice(0, 1), slice(1, 4))
    ]
    joined = join_scores(parts)
    for name in ("by_step", "family", "shares"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(SCORES, name))
    assert joined.first_step == 3
    assert join_scores([dataclasses.replace(one, shares=None) for one in parts]).shares is None


def test_clustering_by_hand():
    """Three of four tasks are in their cluster's commonest family."""
    result = clustering(SCORES)
    assert result.tasks_by_cluster_and_family == [[2, 1], [0, 1]]
    assert result.purity == 0.75
    assert result.largest_share == pytest.approx(0.75)
    mutual = 0.5 * np.log(0.5 / (0.5 * 0.75)) + 0.25 * np.log(0.25 / (0.5 * 0.75)) + 0.25 * np.log(0.25 / (0.5 * 0.25))
    entropies = np.log(2), -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert result.nmi == pytest.approx(mutual / np.mean(entropies))
    assert clustering(dataclasses.replace(SCORES, shares=None)) is None


def test_paired_difference_by_hand():
    other = dataclasses.replace(SCORES, by_step=SCORES.by_step - np.array([[0, 0.5], [0, 0.5], [0, 1.5], [0, 1.5]]))
    result = compare_scores(SCORES, 1, other, 1, ("a", "b"))
    assert result.difference == pytest.approx(1.0)
    assert result.ci95 == pytest.approx(1.96 * np.sqrt(1 / 3) / 2)
    assert result.by_family["a"].difference == pytest.approx(0.5)
    assert result.by_family["a"].ci95 == pytest.approx(0.0)


def test_ci_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    samples = rng.exponential(size=(400, 1000)).T  # 1,000 tasks, 400 times, mean 1
    covered = np.abs(samples.mean(0) - 1.0) < ci95(samples)
    assert 0.92 < covered.mean() < 0.98


@pytest.fixture(scope="module")
def maml():
    learner = LEARNERS["maml"]
    return learner, learner.init(Functions().spec, key=jax.random.key(0))


def test_a_task_depends_on_its_number_alone(maml):
    learner, meta = maml
    few, batch, many = (
        score_tasks(learner, meta, Functions(), key=key_for("test", 0), num_tasks=n, steps=2) for n in (7, BATCH, 620)
    )
    np.testing.assert_array_equal(batch.by_step, many.by_step[:BATCH])
    np.testing.assert_allclose(few.by_step, many.by_step[:7], rtol=1e-6)  # compiled for another number of tasks
    np.testing.assert_array_equal(few.family, many.family[:7])
    assert many.by_step.shape == (620, 3)
    assert few.shares is None


def test_tasks_in_flight_and_steps_looked_at_do_not_change_scores(maml):
    learner, meta = maml
    how = {"key": key_for("test", 0), "num_tasks": 7, "steps": 2}
    whole = score_tasks(learner, meta, Functions(), **how)
    for in_flight in (1, 3):
        last = score_tasks(learner, meta, Functions(), **how, every_step=False, task_chunk_size=in_flight)
        assert (last.by_step.shape, last.first_step) == ((7, 1), 2)
        np.testing.assert_allclose(last.after(2), whole.after(2), rtol=1e-5)
        np.testing.assert_array_equal(last.family, whole.family)


def test_streams_do_not_meet(maml):
    learner, meta = maml
    tasks = [
        score_tasks(learner, meta, Functions(), key=key_for(purpose, seed), num_tasks=50, steps=2).by_step[:, 0]
        for purpose in ("train", "validation", "test")
        for seed in (0, 1)
    ]
    assert len(np.unique(np.concatenate(tasks))) == 300


def test_one_task_has_no_interval(maml):
    with pytest.raises(InputError, match="at least 2"):
        score_tasks(*maml, Functions(), key=key_for("test", 0), num_tasks=1, steps=2)

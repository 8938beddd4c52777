"""Grove from end to end: a run without meta-steps, its predictions with std, its figures, report and export."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY_EVIDENCE

import metagrove as mg
from metagrove.config.config import check_config
from metagrove.errors import InputError
from metagrove.losses import cross_entropy
from metagrove.show.figures import draw_all
from metagrove.show.report import write_report
from metagrove.task import Spec
from metagrove.training import folders

X, Y = [[-3.0], [-1.0], [0.5], [2.0], [4.0]], [[-5.0], [-1.0], [2.0], [5.0], [9.0]]
ROWS = {"x": [row[0] for row in X], "y": [row[0] for row in Y]}
LEARNER = mg.Grove(cluster=dataclasses.replace(TINY_EVIDENCE, fit_steps=60, fit_batch=20, fit_lr=0.05))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "grove"
    return mg.train(source=mg.Functions(), learner=LEARNER, steps=0, log_every=30, validation_tasks=20, out=folder)


def test_a_fit_alone_is_a_whole_run(run):
    assert [record.step for record in folders.read_metrics(run.folder)] == [-30, 0]
    assert run.about["step"] == 0
    assert run.about["validation"]["value"] < 30  # 0 everywhere has more


def test_predictions_have_a_std_that_grows_away_from_the_rows(run, tmp_path):
    task = run.adapt(ROWS)
    table = task.predict({"x": [0.0, 5.0]})
    assert np.isfinite(table["y"]).all()
    near, far = task.std({"x": [0.5, -5.0]})["y"]
    assert far > near > 0
    task.save(tmp_path / "task")
    again = mg.load_fitted(tmp_path / "task")
    np.testing.assert_allclose(again.predict({"x": [0.0, 5.0]})["y"], table["y"])
    mg.export(task, tmp_path / "model")
    assert (tmp_path / "model" / "model.json").exists()


def test_figures_and_report(run, tmp_path):
    names = {path.stem for path in draw_all(run, [], tmp_path, seed=0)}
    assert {"fit", "assignments"} <= names
    page = write_report(run, [], tmp_path / "report.html", num_tasks=20, seed=0)
    assert "loss of the fit over 30 steps" in page.read_text(encoding="utf-8")


def test_classification_is_refused_with_alternatives():
    config = mg.Config(mg.Functions(), dataclasses.replace(LEARNER, loss=cross_entropy))
    with pytest.raises(InputError, match="hsml, maml or protonet"):
        check_config(config)
    with pytest.raises(InputError, match="hsml, maml or protonet"):
        LEARNER.init(Spec((8, 8, 3), 5), key=jax.random.key(0))


def test_no_meta_steps_need_a_fit():
    with pytest.raises(InputError, match="steps must be at least 1"):
        check_config(mg.Config(mg.Functions(), mg.MAML()).with_settings(steps=0))


def test_an_assignment_from_outside_chooses_the_cluster(run):
    support = mg.Examples(jnp.asarray(X), jnp.asarray(Y), jnp.ones(5, bool))
    p = jnp.zeros(run.config.learner.clusters[0]).at[0].set(1.0)
    predictor, info = run.config.learner.adapt(run.meta, support, assignment=p)
    leaves = run.meta.cluster.leaves
    weights = leaves.mean[0] + leaves.factor[0] @ leaves.posterior(support).coordinates[0]
    np.testing.assert_allclose(predictor.weight, weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(info.assignments[0][0], p)

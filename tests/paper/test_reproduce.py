"""Experiments: search, train, evaluate, write; stopped and gone on with; on a tiny one."""

import contextlib
import dataclasses
import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from in_process import InThisProcess

from metagrove import files, load
from metagrove.cli.app import main
from metagrove.config.config import check_config
from metagrove.config.presets import preset
from metagrove.errors import DivergedError, RunError
from metagrove.evaluation.hierarchy import HierarchyMeasures, LevelAgreement
from metagrove.paper import hierarchy_tables
from metagrove.paper import trainings as module
from metagrove.paper.evaluations import final_training, with_selected_steps
from metagrove.paper.experiments import BUDGETS, EXPERIMENTS, SEARCHES, Budget, Experiment, Row, Search, budget_of
from metagrove.paper.reproduce import context_of, reproduce
from metagrove.paper.results import ExperimentResult, SearchRecord, Trial
from metagrove.paper.seeds import Seeds, difference_over_seeds
from metagrove.paper.tables import EXPERIMENT_TABLES
from metagrove.paper.trainings import flags
from metagrove.training import loop
from metagrove.training.records import BlockRecord
from metagrove.training.scores import PairedDifference, Value
from metagrove.training.validate import validate

training_loop = importlib.import_module("metagrove.training.loop")  # `metagrove.train` is the function
TINY = {
    "steps": 4,
    "meta_batch": 2,
    "log_every": 2,
    "validate_every": 2,
    "validation_tasks": 10,
    "max_eval_inner_steps": 2,
}
TINY_NET = {"hidden": (4,), "inner_steps": 1}
SEARCH = Search("maml", "toy-5shot", "maml", ({"inner_lr": 0.01}, {"inner_lr": 1e30}), TINY_NET)
EXPERIMENT = Experiment(
    "a tiny one",
    (
        Row("ANIL, 5-shot", "toy-5shot", learner="maml", settings={**TINY_NET, "adapts": "head"}),
        Row("MAML, 5-shot", "toy-5shot", (0, 1), "maml", "2.205 ± 0.121", search=SEARCH),
    ),
    test_seed=3,
    max_eval_inner_steps=12,
)


@pytest.fixture
def pool(monkeypatch, tmp_path):
    """The tiny experiment in a folder of its own; trainings happen in this process and are counted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "tiny", EXPERIMENT)
    monkeypatch.setitem(BUDGETS, "paper", Budget(TINY, TINY, tasks=20))
    pool = InThisProcess()
    monkeypatch.setattr("metagrove.workers.pool.open_pool", lambda *_: pool)
    return pool


def test_searches_trains_evaluates_and_writes(pool, tmp_path, capsys):
    assert main(["reproduce", "tiny", "--out", "results"]) == 0
    assert "MAML, 5-shot" in capsys.readouterr().out
    result = json.loads((tmp_path / "results" / "tiny.json").read_text())
    assert result["provenance"]["command"] == "metagrove reproduce tiny"
    anil, maml = result["rows"]
    assert maml["search"]["chosen"] == 0
    assert maml["search"]["candidates"][0]["validation"]["value"] > 0
    assert maml["search"]["candidates"][1] == {"settings": {"inner_lr": 1e30}, "validation": None, "seconds": None}
    assert [one["config"]["learner"]["inner_lr"] for one in maml["seeds"]] == [0.01, 0.01]
    assert anil["seeds"][0]["config"]["learner"]["adapts"] == "head"
    assert anil["seeds"][0]["paired_difference"]["difference"] == 0
    assert maml["seeds"][0]["paired_difference"]["to"] == "ANIL, 5-shot"
    assert maml["sd_over_seeds"] > 0
    for one in (*anil["seeds"], *maml["seeds"]):
        assert one["evaluation"]["num_tasks"] == 20
        assert one["test_seed"] == 3
        means = one["evaluation"]["by_step"]
        assert len(means) == 1 + max(10, one["evaluation"]["steps"])
        assert one["evaluation"]["value"] == pytest.approx(means[one["evaluation"]["steps"]])
        assert one["steps_per_second"] > 0
        assert one["peak_memory_mb"] > 10
        assert one["provenance"]["command"].startswith("metagrove train toy-5shot --learner maml ")
    pool.jobs.clear()
    (again,) = reproduce("tiny", out=tmp_path / "again", pool=pool)
    assert pool.folders == []
    kept = files.from_json(ExperimentResult, result)
    assert files.as_json(kept) == {key: value for key, value in result.items() if key not in ("format", "checksum")}
    for first, second in zip(kept.rows, again.rows, strict=True):  # from the scores that were kept
        assert first.mean_over_seeds == pytest.approx(second.mean_over_seeds, rel=1e-5)
        assert first.seeds[0].paired_difference == second.seeds[0].paired_difference


def test_inner_steps_at_test_are_chosen_on_validation_tasks(pool, tmp_path):
    reproduce("tiny", only="ANIL*", out=tmp_path, pool=pool)
    run = load("runs/tiny/anil-5-shot-s0")
    chosen = with_selected_steps(run, 12)
    value = validate(run.config.with_settings(max_eval_inner_steps=12), run.meta)
    assert chosen.about["validation"] == files.as_json(value)
    assert value.value <= run.about["validation"]["value"] + 1e-6
    assert with_selected_steps(run, None) is run


def test_goes_on_where_a_person_stopped_it(pool, tmp_path, monkeypatch):
    stops = iter([False, True])

    def stopped_in_the_second(command):
        if next(stops, False):
            with monkeypatch.context() as patch:  # a person presses Ctrl-C in the first block
                patch.setattr(loop, "interruptible", lambda: contextlib.nullcontext(lambda: True))
                return main(command)
        return main(command)

    pool.run = stopped_in_the_second
    assert reproduce("tiny", out=tmp_path, pool=pool) is None
    assert not (tmp_path / "tiny.json").exists()
    before = list(pool.folders)
    assert before == ["runs/tiny/anil-5-shot-s0", "runs/tiny/search/maml-0", "runs/tiny/search/maml-1"]
    assert reproduce("tiny", out=tmp_path, pool=pool) is not None
    assert before[0] not in pool.folders[3:]
    assert pool.folders[3] == before[1]  # gone on with


def test_only_some_rows_and_no_result_yet(pool, tmp_path, capsys):
    assert main(["reproduce", "tiny", "--only", "ANIL*", "--out", "results"]) == 0
    assert pool.folders == ["runs/tiny/anil-5-shot-s0"]
    assert not (tmp_path / "results").exists()
    assert main(["reproduce", "tiny", "--only", "MAMMAL*"]) == 2
    assert "no row is called 'MAMMAL*'" in capsys.readouterr().err


def test_no_train_tells_what_is_there(pool, tmp_path):
    reproduce("tiny", only="ANIL*", out=tmp_path, pool=pool)
    (result,) = reproduce("tiny", train=False, out=tmp_path)
    assert len(pool.folders) == 1
    assert [row.label for row in result.rows] == ["ANIL, 5-shot"]
    assert result.provenance["command"] == "metagrove reproduce tiny --no-train"
    assert result.trials == {}
    first, _ = module.trial_jobs(SEARCH, context_of("tiny", "paper", None))
    assert main(first.command(tmp_path)) == 0
    (result,) = reproduce("tiny", train=False, out=tmp_path)
    (trial,) = result.trials["MAML, 5-shot"]
    assert trial.settings == {"inner_lr": 0.01}
    assert trial.validation.value > 0
    shutil.rmtree(tmp_path / "runs")
    (again,) = reproduce("tiny", train=False, out=tmp_path)
    assert again.trials == result.trials


def test_no_train_drops_nothing_that_was_measured(pool, tmp_path, monkeypatch):
    reproduce("tiny", out=tmp_path, pool=pool)
    other = dataclasses.replace(EXPERIMENT.rows[0], settings={**TINY_NET, "adapts": "head", "inner_lr": 0.02})
    renamed = dataclasses.replace(EXPERIMENT.rows[1], label="MAML again, 5-shot", seeds=(0,))
    monkeypatch.setitem(EXPERIMENTS, "tiny", dataclasses.replace(EXPERIMENT, rows=(other, renamed)))
    shutil.rmtree("runs")
    (result,) = reproduce("tiny", train=False, out=tmp_path)
    assert [row.label for row in result.rows] == ["ANIL, 5-shot", "MAML, 5-shot"]
    assert result.rows[0].seeds[0].config["learner"]["inner_lr"] != 0.02  # until it is trained again


MEASURES = HierarchyMeasures(
    num_tasks=20,
    as_trained=Value(0.5, 0.1),
    shuffled=Value(5.0, 1.0),
    shuffled_minus_own=PairedDifference(4.5, 1.0),
    own_median=0.1,
    shuffled_median=2.0,
    typical_ratio=(30.0, 20.0, 45.0),
    matters=True,
    node_share=0.75,
    effective_clusters=3.9,
    largest_share=0.98,
    levels=[LevelAgreement(4, 0.95, 0.4), LevelAgreement(2, 0.5, 0.3)],
    merged=LevelAgreement(4, 0.95, 0.4),
)


def test_the_measures_of_a_hierarchy_are_in_the_result_and_measured_once(pool, tmp_path, monkeypatch):
    asked = []

    def measure(run, **how):
        asked.append(how)
        return MEASURES

    monkeypatch.setattr("metagrove.paper.evaluations.measure_hierarchy", measure)
    reproduce("tiny", only="ANIL*", out=tmp_path, pool=pool)
    for _ in range(2):
        (result,) = reproduce("tiny", train=False, out=tmp_path)
        assert result.rows[0].seeds[0].hierarchy == MEASURES
    assert asked == [{"num_tasks": 20, "seed": 3}]
    stored = json.loads((tmp_path / "tiny.json").read_text())["rows"][0]["seeds"][0]["hierarchy"]
    assert (stored["node_share"], stored["levels"][1]["families"]) == (0.75, 0.5)
    rows = hierarchy_tables.measures(result)
    assert rows[1] == [
        "ANIL, 5-shot",
        "10",
        "30",
        "0.75",
        "3.9",
        "0.95 (4), 0.50 (2)",
        "0.950",
        "0.40 (4), 0.30 (2)",
        "1",
    ]


def test_the_record_of_another_search_is_refused(pool, tmp_path):
    path = tmp_path / "runs" / "tiny" / "search" / "maml.json"
    path.parent.mkdir(parents=True)
    same = SearchRecord("toy-5shot", SEARCH.base, TINY, [Trial(one) for one in SEARCH.candidates], 0)
    other = dataclasses.replace(same, candidates=[Trial({"inner_lr": 0.5})])
    files.write_json(path, {"format": 1, **files.as_json(other)})
    with pytest.raises(RunError, match="is the record of another search"):
        reproduce("tiny", only="MAML*", out=tmp_path)
    other = dataclasses.replace(same, base={"hidden": [9]})
    files.write_json(path, {"format": 1, **files.as_json(other)})
    with pytest.raises(RunError, match="is the record of another search"):
        reproduce("tiny", only="MAML*", out=tmp_path)


def test_a_search_in_which_all_diverge_is_an_error(pool, tmp_path, monkeypatch):
    hopeless = Search("maml", "toy-5shot", "maml", ({"inner_lr": 1e30},), TINY_NET)
    row = Row("MAML, 5-shot", "toy-5shot", learner="maml", search=hopeless)
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("", (row,)))
    with pytest.raises(DivergedError, match="every candidate of the search for maml diverged"):
        reproduce("tiny", out=tmp_path, pool=pool)


def test_settings_become_flags():
    settings = {"inner_lr": 0.01, "hidden": (4, 2), "first_order": True, "augment": False}
    assert flags(settings) == ["--inner-lr", "0.01", "--hidden", "4", "2", "--first-order", "--no-augment"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_settings_that_exist(name):
    for budget in (*EXPERIMENTS[name].budgets.values(), budget_of(EXPERIMENTS[name], "smoke")):
        unsearched = dataclasses.replace(budget, trial=None)
        place = module.ExperimentContext(EXPERIMENTS[name], unsearched, Path("runs"), None)
        for row in EXPERIMENTS[name].rows:
            config, _, _ = module.run_of(row, 0, place)
            check_config(config)
            assert not (row.label.startswith("HSML-S") and config.training.growth.growth_window)


def test_an_experiment_may_have_budgets_of_its_own(pool, tmp_path, monkeypatch):
    own = {"paper": Budget({**TINY, "steps": 2}, None, tasks=7)}
    row = Row("MAML, 5-shot", "toy-5shot", learner="maml", search=SEARCH)
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("", (row,), budgets=own, keep_scores=True, every_step=False))
    (result,) = reproduce("tiny", out=tmp_path, pool=pool)
    (seed,) = result.rows[0].seeds
    assert seed.config["learner"]["inner_lr"] == 0.01  # known, not searched for
    assert (seed.meta_steps, seed.evaluation.num_tasks) == (2, 7)
    assert len(seed.evaluation.by_step) == 1
    assert sum(len(text.split()) for text in seed.scores.values()) == 7
    assert "data" not in files.as_json(seed)


def test_every_search_is_equally_wide_and_known_by_its_published_result():
    rows = json.loads((Path(__file__).parents[2] / "results" / "table1.json").read_text(encoding="utf-8"))["rows"]
    published = {row["label"]: row["search"] for row in rows}
    for row in EXPERIMENTS["table1"].rows:
        if row.search is not None and row.label in published:
            assert published[row.label]["chosen"] == row.search.known
            assert published[row.label]["trial"]["steps"] <= 5000
    for search in SEARCHES.values():
        assert len(search.candidates) == 6
        for candidate in search.candidates:
            config = preset(search.preset, search.learner).with_settings(**search.base, **candidate)
            assert config.learner.validation_errors() == []


def test_the_final_training_is_that_of_the_last_steps_alone():
    records = [BlockRecord(0), *(BlockRecord(step, {"loss": step / 100}) for step in (100, 200, 300))]
    assert final_training(records, 200) == pytest.approx({"loss": 2.5})
    assert final_training(records, 1000) == pytest.approx({"loss": 2.0})
    last = {"loss": 1.0, "accuracy": 60.0}
    assert final_training([*records, BlockRecord(400, last)], 100) == pytest.approx(last)


@pytest.mark.parametrize("name", sorted({file for file, _ in EXPERIMENT_TABLES.values()}))
def test_published_results_are_read_whole(name):
    """Every key of every row but those of a format that is no longer written."""
    stored = json.loads((Path(__file__).parents[2] / "results" / f"{name}.json").read_text(encoding="utf-8"))
    again = files.as_json(files.from_json(ExperimentResult, stored))
    for old, new in zip(stored["rows"], again["rows"], strict=True):
        for before, after in zip(old["seeds"], new["seeds"], strict=True):
            assert set(before) <= set(after)
            same = set(before) - {"evaluation", "evaluation_4000", "growth"}
            assert {key: after[key] for key in same} == {key: before[key] for key in same}
            same = set(before["evaluation"]) - {"by_family"}
            assert all(after["evaluation"][key] == before["evaluation"][key] for key in same)


def test_the_best_preset_for_images_is_the_row_that_is_released():
    experiment = EXPERIMENTS["table2"]
    place = module.ExperimentContext(experiment, experiment.budgets["small"], Path("runs"), 32)
    (row,) = (row for row in experiment.rows if row.release == "images-1shot")
    config, _, _ = module.run_of(row, 0, place)
    assert config == preset("images-32-1shot-best")


def test_what_a_result_has_is_not_trained_again(pool, tmp_path, monkeypatch):
    (first,) = reproduce("tiny", out=tmp_path, pool=pool)
    shutil.rmtree(tmp_path / "runs")
    pool.jobs.clear()
    anil, maml = EXPERIMENT.rows
    more = dataclasses.replace(EXPERIMENT, rows=(anil, dataclasses.replace(maml, seeds=(0, 1, 2))))
    monkeypatch.setitem(EXPERIMENTS, "tiny", more)
    (second,) = reproduce("tiny", out=tmp_path, pool=pool)
    assert [Path(folder).name for folder in pool.folders] == ["maml-5-shot-s2"]  # and no search
    assert second.rows[0] == first.rows[0]
    assert second.rows[1].seeds[:2] == first.rows[1].seeds
    assert [one.seed for one in second.rows[1].seeds] == [0, 1, 2]
    assert second.rows[1].mean_over_seeds == pytest.approx(np.mean([s.evaluation.value for s in second.rows[1].seeds]))
    other = dataclasses.replace(anil, settings={**anil.settings, "inner_lr": 0.02})
    monkeypatch.setitem(EXPERIMENTS, "tiny", dataclasses.replace(more, rows=(other, more.rows[1])))
    pool.jobs.clear()
    reproduce("tiny", out=tmp_path, pool=pool)
    assert [Path(folder).name for folder in pool.folders] == ["anil-5-shot-s0"]  # its settings are others now


def test_rows_with_the_same_settings_share_their_runs():
    for name in ("ablations-images", "cluster-numbers-images", "aggregators-images", "cluster-numbers", "aggregators"):
        place = context_of(name, "studies", 32 if "images" in name else None)
        for row in (row for row in EXPERIMENTS[name].rows if row.shares is not None):
            owner, label = row.shares
            (other,) = (one for one in EXPERIMENTS[owner].rows if one.label == label)
            shared = context_of(owner, "studies", place.size)
            assert module.run_of(row, 0, place)[:2] == module.run_of(other, 0, shared)[:2]


def test_differences_over_seeds_are_those_of_welch():
    found = difference_over_seeds(Seeds([1.0, 2.0, 3.0]), Seeds([0.0, 0.0, 0.3]))
    expected = scipy.stats.ttest_ind([1.0, 2.0, 3.0], [0.0, 0.0, 0.3], equal_var=False).confidence_interval(0.95)
    assert found.difference == pytest.approx(1.9)
    assert found.ci95 == pytest.approx((expected.high - expected.low) / 2)
    assert (found.exceeds, difference_over_seeds(Seeds([1.0]), Seeds([0.0, 1.0])).ci95) == (False, None)

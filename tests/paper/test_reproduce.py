"""Experiments: search, train, evaluate, write; stopped and gone on with; on a tiny one."""

import contextlib
import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

from metagrove import files, load
from metagrove.cli.app import main
from metagrove.config.config import check_config
from metagrove.config.presets import preset
from metagrove.errors import DivergedError, RunError
from metagrove.paper import trainings as module
from metagrove.paper.evaluations import final_training, with_steps_chosen
from metagrove.paper.experiments import BUDGETS, EXPERIMENTS, SEARCHES, Budget, Experiment, Row, Search
from metagrove.paper.reproduce import reproduce
from metagrove.paper.results import ExperimentResult, SearchRecord, Trial
from metagrove.paper.tables import EXPERIMENT_TABLES
from metagrove.paper.trainings import flags, train_in_own_process
from metagrove.training import loop
from metagrove.training.records import BlockRecord
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
def trainings(monkeypatch, tmp_path):
    """The tiny experiment in a folder of its own; trainings happen in this process and are counted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "tiny", EXPERIMENT)
    monkeypatch.setitem(BUDGETS, "paper", Budget(TINY, TINY, tasks=20))
    done = []

    def in_this_process(command):
        assert command[:3] == [sys.executable, "-m", "metagrove"]
        done.append(command[command.index("--out") + 1])
        return main(command[3:])

    monkeypatch.setattr(module, "run_and_wait", in_this_process)
    return done


def test_searches_trains_evaluates_and_writes(trainings, tmp_path, capsys):
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
    trainings.clear()
    again = reproduce("tiny", out=tmp_path / "again")
    assert trainings == []
    assert again is not None
    kept = files.from_json(ExperimentResult, result)
    assert files.as_json(kept) == {key: value for key, value in result.items() if key not in ("format", "checksum")}
    for first, second in zip(kept.rows, again.rows, strict=True):  # from the scores that were kept
        assert first.mean_over_seeds == pytest.approx(second.mean_over_seeds, rel=1e-5)
        assert first.seeds[0].paired_difference == second.seeds[0].paired_difference


def test_inner_steps_at_test_are_chosen_on_validation_tasks(trainings, tmp_path):
    reproduce("tiny", only="ANIL*", out=tmp_path)
    run = load("runs/tiny/anil-5-shot-s0")
    chosen = with_steps_chosen(run, 12)
    value = validate(run.config.with_settings(max_eval_inner_steps=12), run.meta)
    assert chosen.about["validation"] == files.as_json(value)
    assert value.value <= run.about["validation"]["value"] + 1e-6
    assert with_steps_chosen(run, None) is run


def test_goes_on_where_a_person_stopped_it(trainings, tmp_path, monkeypatch):
    run, stops = module.run_and_wait, iter([False, True])

    def stopped_in_the_second(command):
        if next(stops, False):
            with monkeypatch.context() as patch:  # a person presses Ctrl-C in the first block
                patch.setattr(loop, "interruptible", lambda: contextlib.nullcontext(lambda: True))
                assert run(command) == 130
            return 130
        return run(command)

    monkeypatch.setattr(module, "run_and_wait", stopped_in_the_second)
    assert reproduce("tiny", out=tmp_path) is None
    assert not (tmp_path / "tiny.json").exists()
    before = list(trainings)
    assert reproduce("tiny", out=tmp_path) is not None
    assert len(before) == 2
    assert trainings[2] == before[1]  # gone on with
    assert before[0] not in trainings[2:]


def test_only_some_rows_and_no_result_yet(trainings, tmp_path, capsys):
    assert main(["reproduce", "tiny", "--only", "ANIL*", "--out", "results"]) == 0
    assert trainings == ["runs/tiny/anil-5-shot-s0"]
    assert not (tmp_path / "results").exists()
    assert main(["reproduce", "tiny", "--only", "MAMMAL*"]) == 2
    assert "no row is called 'MAMMAL*'" in capsys.readouterr().err


def test_no_train_tells_what_is_there(trainings, tmp_path):
    reproduce("tiny", only="ANIL*", out=tmp_path)
    trainings.clear()
    result = reproduce("tiny", train=False, out=tmp_path)
    assert trainings == []
    assert [row.label for row in result.rows] == ["ANIL, 5-shot"]
    assert result.provenance["command"] == "metagrove reproduce tiny --no-train"


def test_the_record_of_another_search_is_refused(trainings, tmp_path):
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


def test_a_search_in_which_all_diverge_is_an_error(trainings, tmp_path, monkeypatch):
    hopeless = Search("maml", "toy-5shot", "maml", ({"inner_lr": 1e30},), TINY_NET)
    row = Row("MAML, 5-shot", "toy-5shot", learner="maml", search=hopeless)
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("", (row,)))
    with pytest.raises(DivergedError, match="every candidate of the search for maml diverged"):
        reproduce("tiny", out=tmp_path)


@pytest.mark.slow
def test_a_training_in_a_process_of_its_own(tmp_path):
    folder = tmp_path / "run"
    assert train_in_own_process("toy-5shot", "maml", {**TINY, "hidden": (4,)}, folder)
    assert json.loads((folder / "last.json").read_text())["step"] == 4
    with pytest.raises(RunError, match=r"failed with code 2, see above"):
        train_in_own_process("toy-5shot", "maml", {"steps": 0}, tmp_path / "other")


def test_settings_become_flags():
    settings = {"inner_lr": 0.01, "hidden": (4, 2), "first_order": True, "augment": False}
    assert flags(settings) == ["--inner-lr", "0.01", "--hidden", "4", "2", "--first-order", "--no-augment"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_settings_that_exist(name):
    for budget in EXPERIMENTS[name].budgets.values():
        unsearched = dataclasses.replace(budget, trial=None)
        place = module.ExperimentContext(EXPERIMENTS[name], unsearched, Path("runs"), None)
        for row in EXPERIMENTS[name].rows:
            config, _, _ = module.run_of(row, 0, place)
            check_config(config)
            assert not (row.label.startswith("HSML-S") and config.training.growth.growth_window)


def test_an_experiment_may_have_budgets_of_its_own(trainings, tmp_path, monkeypatch):
    own = {"paper": Budget({**TINY, "steps": 2}, None, tasks=7)}
    row = Row("MAML, 5-shot", "toy-5shot", learner="maml", search=SEARCH)
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment("", (row,), budgets=own, keep_scores=True, every_step=False))
    (seed,) = reproduce("tiny", out=tmp_path).rows[0].seeds
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

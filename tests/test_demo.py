"""The demo without its work: what it trains, that it resumes, and that it can be stopped."""

import pytest

from metagrove import Run, demo


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What the demo asked to be trained; nothing is."""
    monkeypatch.chdir(tmp_path)
    calls = []

    def train(preset, **settings):
        calls.append(settings)
        return object.__new__(Run)

    monkeypatch.setattr(demo, "train", train)
    monkeypatch.setattr(demo, "load", lambda name: name)
    monkeypatch.setattr(demo, "compare", lambda runs, **_: runs)
    monkeypatch.setattr(demo, "print_comparison", lambda runs: print("compared", len(runs)))
    monkeypatch.setattr(demo, "measure_hierarchy", lambda run, num_tasks: None)
    monkeypatch.setattr(demo, "draw_all", lambda run, others, out, seed: [out / "training.png"])
    return calls


def test_the_demo_trains_compares_and_draws(asked, tmp_path, capsys):
    (tmp_path / "runs" / "demo" / "hsml").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "hsml" / "run.json").write_text("{}")
    assert demo.demo(tmp_path)
    assert [(one.get("learner"), one["steps"], one["resume"]) for one in asked] == [
        (None, 2000, True),
        ("maml", 2000, False),
    ]
    out = capsys.readouterr().out
    assert "HSML and MAML are trained for 2,000" in out
    assert "compared 3" in out
    assert "training.png" in out


def test_a_person_may_stop_it(asked, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train", stopped)
    assert not demo.demo(tmp_path)

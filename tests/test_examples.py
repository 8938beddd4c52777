"""Every script of examples/ runs as a person would run it, for a few meta-steps."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "released_model.py": "f(1) = 3.",
    "own_table.py": "mean absolute error on six readings",
    "own_problem.py": "truth 0.05",
    "compare_learners.py": "minus first",
    "new_learner.py": "[[",
}


def test_every_example_is_run_and_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name})" in listed for name in SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "10"])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out

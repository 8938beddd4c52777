"""The wheel, built and installed in a clean environment outside the repository, uses a shipped model."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import metagrove as mg
adapted = mg.load("toy-5shot-best").adapt([-3, -1, 0.5, 2, 4], [-5, -1, 2, 5, 9])
print(mg.__file__, float(adapted.predict([1.0])[0, 0]), adapted.assignments[0].shape)
"""


UV = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
"""Far faster than pip, if it is there."""


def build_wheel(folder):
    how = [UV, "build", "--out-dir"] if UV else [sys.executable, "-m", "build", "--outdir"]
    subprocess.run([*how, folder, "--wheel", ROOT], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel, folder):
    """The wheel and what it depends on in an environment of its own; its Python."""
    venv.create(folder, with_pip=UV is None)
    python = folder / "bin" / "python"
    how = [UV, "pip", "install", "--python", python] if UV else [python, "-m", "pip", "install"]
    subprocess.run([*how, "--quiet", wheel], check=True, cwd=folder)
    return python


@pytest.mark.slow
def test_wheel_works_in_a_clean_environment(tmp_path):
    wheel = build_wheel(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for model in ("toy-5shot", "toy-10shot", "toy-5shot-best", "toy-10shot-best", "images-1shot-32"):
        assert f"metagrove/models/{model}/run.json" in names
    assert "metagrove/py.typed" in names
    python = install(wheel, tmp_path / "env")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    how = {"check": True, "cwd": tmp_path, "capture_output": True, "text": True, "env": clean}
    done = subprocess.run([python, "-c", SCRIPT], **how)
    where, prediction, *_ = done.stdout.split()
    assert str(tmp_path) in where
    assert abs(float(prediction) - 3.0) < 0.3  # y = 2x + 1
    shown = subprocess.run([python, "-m", "metagrove", "list"], **how)
    assert "toy-10shot-best" in shown.stdout

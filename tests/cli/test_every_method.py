"""Every method through the same commands at tiny size: train, resume, adapt, predict, export or a refusal in words."""

import contextlib
import json

import numpy as np
import pytest
from own_runs import read_csv, write_csv
from PIL import Image

from metagrove.cli.app import main
from metagrove.config.registry import LEARNER_GROUPS, learners
from metagrove.pools import pool
from metagrove.training import loop

SIZE = 8
TRAINING = ["--steps", "2", "--log-every", "1", "--validate-every", "2", "--meta-batch", "1"]
TRAINING += ["--validation-tasks", "2", "--max-eval-inner-steps", "1"]
ON_IMAGES = ["images-1shot", "--size", str(SIZE), "--ways", "2", "--queries", "1", "--test-queries", "1"]
IMAGE_METHODS = tuple(LEARNER_GROUPS["metric"])
NET = ["--hidden", "3", "--inner-steps", "1"]
CONV = ["--filters", "2", "--blocks", "1"]
TINY = {
    "hsml": [*NET, "--embed", "mean", "--task-dim", "3", "--example-dim", "3", "--clusters", "2", "1"],
    "mumomaml": [*NET, "--hidden-dim", "2", "--encoder-layers", "1", "--test-permutations", "2"],
    "arml": [*NET, "--prototypes", "2", "--vertices", "2", "--example-dim", "3", "--task-dim", "3"],
    "meta-lstm": [*NET, "--hidden-dim", "2"],
    "bmaml": [*NET, "--particles", "2"],
    "platipus": [*NET, "--samples", "2"],
    "snail": ["--key-dims", "2", "2", "--value-dims", "2", "2", "--filters-per-block", "2", "--dilations", "1"],
    "neural-process": ["--width", "4", "--attention-layers", "1", "--attention-heads", "1"],
    "scratch": ["--hidden", "3", "--updates-per-step", "2"],
    "matching-net-fce": [*CONV, "--feature-dim", "3", "--read-steps", "1", "--test-permutations", "2"],
    "relation-net": ["--filters", "2"],
    "gnn": [*CONV, "--feature-dim", "3", "--edge-dims", "2", "--node-dim", "2", "--graph-layers", "1"],
}
EXPORTS = {
    "hsml",
    "maml",
    "meta-sgd",
    "mt-net",
    "mumomaml",
    "arml",
    "reptile",
    "meta-lstm",
    "neural-process",
    "scratch",
}
EXPORTS |= {"bmaml", "platipus", "protonet"}
HAS_STD = {"bmaml", "platipus", "llama"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A pool of two classes of each meta-split, and a folder with an image of each of two classes."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    place = pool.folder_of("tiny", SIZE, folder)
    place.mkdir()
    classes = [(f"{split} {i}", split, 3) for split in pool.SPLITS for i in range(2)]
    pool.write(place, "tiny", rng.integers(0, 256, (18, SIZE, SIZE, 3)).astype(np.uint8), classes, {})
    for name in ("elm", "oak"):
        (folder / "support" / name).mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)).save(
            folder / "support" / name / "a.png"
        )
    return folder


def train_command(name, folder, images):
    where = [*ON_IMAGES, "--datasets", "tiny", "--data", str(images)] if name in IMAGE_METHODS else ["toy-5shot"]
    tiny = TINY.get(name, CONV if name in IMAGE_METHODS else NET)
    return ["train", *where, "--learner", name, *TRAINING, *tiny, "--out", str(folder)]


@pytest.mark.parametrize("name", [name for name in learners() if name != "grove"])  # fitted: tests/test_grove.py
def test_trains_resumes_adapts_predicts_and_exports(name, images, tmp_path, monkeypatch, capsys):
    run, task, rows = tmp_path / "run", tmp_path / "task", tmp_path / "rows.csv"
    with monkeypatch.context() as patch:  # a person presses Ctrl-C in the first meta-step
        patch.setattr(loop, "interruptible", lambda: contextlib.nullcontext(lambda: True))
        assert main(train_command(name, run, images)) == 130
    assert json.loads((run / "last.json").read_text())["step"] == 1
    assert main([*train_command(name, run, images), "--resume"]) == 0
    assert json.loads((run / "last.json").read_text())["step"] == 2
    if name in IMAGE_METHODS:
        support = asked = images / "support"
    else:
        support = write_csv(tmp_path / "support.csv", {"x": [0.0, 1.0, 2.0], "y": [0.0, 2.0, 4.0]})
        asked = write_csv(tmp_path / "asked.csv", {"x": [3.0, 4.0]})
    assert main(["adapt", str(run), "--support", str(support), "--out", str(task)]) == 0
    assert main(["predict", str(task), "--input", str(asked), "--out", str(rows)]) == 0
    columns = read_csv(rows)
    assert all(len(values) == 2 for values in columns.values())
    assert ("y_sd" in columns) == (name in HAS_STD)
    capsys.readouterr()
    code = main(["export", str(task), "--out", str(tmp_path / "model")])
    assert code == (0 if name in EXPORTS else 2)
    assert code == 0 or "cannot be written as plain layers" in capsys.readouterr().err

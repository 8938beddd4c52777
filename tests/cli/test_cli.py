"""The command line, end to end at tiny size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_runs import untrained

from metagrove.cli.app import main
from metagrove.config.presets import preset
from metagrove.config.registry import learners
from metagrove.serve.run import load

TINY_FLAGS = [
    *("--steps", "20", "--meta-batch", "2", "--validate-every", "10", "--log-every", "10"),
    # as many validation as test tasks, here and below: one compiled program scores both
    *("--validation-tasks", "40", "--inner-steps", "1", "--hidden", "6"),
]
MAML_FLAGS = ["--learner", "maml", *TINY_FLAGS, "--hidden", "64", "64"]  # large enough for the test of a full disk
HSML_FLAGS = ["--aggregator", "mean", "--task-dim", "4", "--example-dim", "4", "--clusters", "3", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A tiny HSML and a tiny MAML."""
    folder = tmp_path_factory.mktemp("cli")
    hsml, maml = str(folder / "hsml"), str(folder / "maml")
    assert main(["train", "toy-5shot", *TINY_FLAGS, *HSML_FLAGS, "--out", hsml]) == 0
    assert main(["train", "toy-5shot", *MAML_FLAGS, "--out", maml]) == 0
    return hsml, maml


def test_train_keeps_the_command_and_every_setting(runs):
    about = json.loads((Path(runs[0]) / "run.json").read_text())
    assert about["provenance"]["command"].startswith("metagrove train toy-5shot --steps 20")
    assert about["config"]["learner"]["cluster"]["clusters"] == [3, 1]
    assert about["config"]["learner"]["net"]["hidden"] == [6]
    assert about["config"]["training"]["meta_batch"] == 2


def test_evaluate_prints_one_json_object(runs, capsys):
    assert main(["evaluate", runs[0], "--num-tasks", "40", "--seed", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metric"] == "mse"
    assert len(result["by_step"]) == len(result["ci95"]) == 11
    assert set(result["by_family"]) == {"sinusoid", "line", "quadratic", "cubic"}
    assert (result["num_tasks"], result["seed"]) == (40, 3)
    assert {"nmi", "purity"} <= set(result["clustering"])
    assert result["value"] == result["by_step"][result["steps"]]


def test_evaluate_for_a_person(runs, capsys):
    assert main(["evaluate", runs[1], "--num-tasks", "40"]) == 0
    assert "inner steps, selected on validation tasks" in capsys.readouterr().out


def test_compare_is_paired(runs, capsys):
    assert main(["compare", *runs, "--num-tasks", "40", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    hsml, maml = result["runs"]
    paired = maml["minus_first"]
    assert paired["difference"] == pytest.approx(maml["value"] - hsml["value"], abs=1e-9)
    first, second = (load(run) for run in runs)
    a, b = (run.scores(num_tasks=40, seed=0).by_step[:, run.inner_steps] for run in (first, second))
    assert paired["ci95"] == pytest.approx(1.96 * (b - a).std(ddof=1) / 40**0.5)
    assert hsml["minus_first"] == {**hsml["minus_first"], "difference": 0.0, "ci95": 0.0}
    assert main(["compare", *runs, "--num-tasks", "40"]) == 0
    assert "minus first" in capsys.readouterr().out


def test_compare_refuses_runs_of_different_tasks(runs, tmp_path, capsys):
    other = untrained(tmp_path / "other", preset("toy-10shot", "maml"))
    assert main(["compare", runs[1], str(other.folder), "--num-tasks", "40"]) == 2
    assert "was trained on a different source" in capsys.readouterr().err


def test_show_draws_every_figure(runs, tmp_path, capsys):
    assert main(["show", runs[0], "--compare-with", runs[1], "--out", str(tmp_path)]) == 0
    paths = capsys.readouterr().out.split()
    assert sorted(Path(p).name for p in paths) == ["assignments.png", "sixteen-tasks.png", "training.png"]
    assert all(Path(p).read_bytes().startswith(b"\x89PNG") for p in paths)


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for word in ("toy-quick", "toy-5shot-best", "own-images", *learners(), "released models"):
        assert word in out


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["evaluate", "nope"], 3, "nope is not a run folder (it has no run.json)"),
        (["train", "toy-quik"], 2, "no preset is called 'toy-quik': did you mean 'toy-quick'?"),
        (["train", "toy-quick", "--learner", "mmal"], 2, "no learner is called 'mmal': did you mean 'maml'?"),
        (["train", "toy-quick", "--clusters", "4", "2"], 2, "clusters must be positive numbers ending in 1 (the root)"),
        (["trian"], 2, "unknown command 'trian': did you mean 'train'?"),
        (["reproduce", "tabel"], 2, "no experiment is called 'tabel'"),
        (["compare", "toy-5shot"], 2, "compare needs two or more runs, got 1"),
        (["train", "--learner", "maml", "toy-quick", "--hidden", "0"], 2, "hidden must be positive numbers, got (0,)"),
        (["train", "toy-quick", "--resume", "--out", "nowhere"], 3, "nowhere holds no run to resume"),
        (["evaluate", "toy-5shot", "--num-tasks", "1"], 2, "num_tasks must be at least 2"),
    ],
)
def test_errors_are_one_line_and_a_code(args, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == code
    err = capsys.readouterr().err
    assert err.startswith(f"metagrove: {message}")
    assert "Traceback" not in err
    assert not list(tmp_path.glob("runs/*/run.json"))
    assert not (tmp_path / "nowhere").exists()


def test_unknown_setting_names_the_nearest(capsys):
    assert main(["train", "toy-quick", "--iner-lr", "0.1"]) == 2
    assert "--inner-lr" in capsys.readouterr().err


def test_debug_shows_the_traceback():
    from metagrove.errors import RunError

    with pytest.raises(RunError):
        main(["evaluate", "nope", "--debug"])


@pytest.mark.parametrize("args", [["--help"], ["train", "--help"], ["--version"]])
def test_help(args, capsys):
    assert main(args) == 0
    assert capsys.readouterr().out


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", "toy-quick", "--out", str(tmp_path / "file" / "run")]) == 3
    assert "could not be written (Not a directory)" in capsys.readouterr().err


SMALL_FILES = """
import resource, signal, sys
from metagrove.cli.app import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(main())
"""


@pytest.mark.skipif(os.name != "posix", reason="needs resource limits")
def test_a_disk_that_is_full(tmp_path):
    """A real limit of the system on the size of a file stands in for the full disk."""
    out = tmp_path / "run"
    args = ["train", "toy-5shot", *MAML_FLAGS, "--out", str(out)]
    result = subprocess.run([sys.executable, "-c", SMALL_FILES, *args], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr.splitlines()[-1].startswith(f"metagrove: {out}")
    assert "could not be written (File too large)" in result.stderr
    assert [p.name for p in out.iterdir() if p.suffix == ".safetensors" or p.name.startswith(".best")] == []
    assert main([*args, "--resume"]) == 0


@pytest.mark.parametrize("command", ["--help", "list"])
def test_a_reader_that_has_had_enough_is_no_error(command):
    """As in `metagrove list | head -1`; rich raises a SystemExit there."""
    read, write = os.pipe()
    os.close(read)
    code = subprocess.run([sys.executable, "-m", "metagrove", command], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (code.returncode, code.stderr) == (0, b"")


def test_a_report_is_named_by_its_run(monkeypatch, capsys, tmp_path):
    """So that one never overwrites another's; paths may be text."""
    from metagrove.show import report

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "collect_context", lambda *_, **__: None)
    monkeypatch.setattr(report, "page", lambda _: "a page")
    assert main(["report", "toy-5shot-best"]) == 0
    assert capsys.readouterr().out.strip() == "report-toy-5shot-best.html"
    assert report.write_report(load("toy-5shot-best"), [], "x.html").read_text() == "a page"


def test_version_completion_and_calibration_for_a_shell(tmp_path, capsys):
    assert main(["-V"]) == main(["--version"]) == 0
    assert len(set(capsys.readouterr().out.split())) == 1
    assert main(["completion", "bash"]) == 0
    (tmp_path / "complete.sh").write_text(capsys.readouterr().out, encoding="utf-8")
    words = "COMP_WORDS=(metagrove predict --co); COMP_CWORD=2"
    ask = f". {tmp_path}/complete.sh; {words}; _metagrove; echo ${{COMPREPLY[@]}}"
    assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout == "--coverage\n"
    assert main(["completion", "tcsh"]) == 2
    assert main(["calibrate", str(tmp_path)]) == 3

"""Training in several processes, for real: two against one, and one of them killed."""

import json
import signal
import socket
import subprocess
import sys

import pytest

SETTINGS = "toy-quick --learner maml --hidden 8 --inner-steps 1 --meta-batch 3 --task-blocks 2 --steps 1200"
SETTINGS += " --log-every 100 --validate-every 300 --validation-tasks 10"


def start(folder, *options):
    command = [sys.executable, "-m", "metagrove", "train", *SETTINGS.split(), "--out", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def start_two(folder, *options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = ["--coordinator", f"127.0.0.1:{free.getsockname()[1]}", "--num-processes", "2"]
    return [start(folder, *place, "--process-id", str(i), *options) for i in (0, 1)]


def wait_for(process, text):
    return next((line for line in process.stderr if text in line), None)


def last(folder):
    return json.loads((folder / "last.json").read_text(encoding="utf-8"))


@pytest.mark.skipif(sys.platform != "linux", reason="gloo")
def test_two_processes_equal_one_and_the_loss_of_one_ends_both(tmp_path):
    first, second = start_two(tmp_path / "two")
    alone = start(tmp_path / "one", "--devices", "1")
    assert wait_for(first, "step 600: validation")
    second.send_signal(signal.SIGKILL)
    said, silent = first.communicate(timeout=600)[1], second.communicate()[1]
    assert (first.returncode, second.returncode) == (3, -signal.SIGKILL)
    assert "another process of the training has ended; the last checkpoint is kept: restart all with --resume" in said
    assert "Traceback" not in said
    assert silent == ""  # process 0 alone prints
    kept = last(tmp_path / "two")
    assert kept["devices"] == 2
    assert 300 <= kept["step"] < 1200
    resumed = start(tmp_path / "two", "--resume", "--devices", "1")
    for process in (alone, resumed):
        process.communicate(timeout=600)
        assert process.returncode == 0
    assert last(tmp_path / "two")["sha256"] == last(tmp_path / "one")["sha256"]
    assert (tmp_path / "two" / "metrics.jsonl").read_text() == (tmp_path / "one" / "metrics.jsonl").read_text()

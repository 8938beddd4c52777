"""Faults in the middle: nothing is lost, and an answer is always in words."""

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import TINY
from faults import digest

from metagrove import compilation_cache, files
from metagrove.errors import RunError
from metagrove.paper import tables
from metagrove.training import checkpoint, folders
from metagrove.training import loop as train_module
from metagrove.training.loop import train

CONFIG = TINY.with_settings(steps=40, validate_every=10)
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train(CONFIG, folder)
    return folder


def stopped(folder, number, step=20):
    """A training that a signal stops after a step."""
    return train(CONFIG, folder, callback=lambda record: signal.raise_signal(number) if record.step == step else None)


def test_ten_kills_and_some_crash_points_lose_nothing(tmp_path):
    """`make faults` has 200 kills and every crash point."""
    out = tmp_path / "faults.json"
    command = [sys.executable, str(HERE / "faults.py"), "--kills", "10", "--every", "60", "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"10  SIGKILL", ended.stdout), ended.stdout
    assert re.search(r" 0  lost", ended.stdout), ended.stdout
    result = files.read_json(out)
    assert {"what": "SIGKILL", "faults": 10, "lost": 0} in result["rows"]
    assert result["settings"] == {"kills": 10, "every": 60, "seed": 0}
    assert tables.faults(result)[-1][1:] == [str(sum(row["faults"] for row in result["rows"])), "0"]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_stops_training_with_a_checkpoint(whole, tmp_path, number):
    assert not stopped(tmp_path, number)
    assert files.read_json(tmp_path / "last.json")["step"] == 20
    assert train(CONFIG, tmp_path, resume=True)
    assert digest(tmp_path) == digest(whole)


def test_a_folder_that_is_removed_is_an_error(tmp_path):
    folder = tmp_path / "run"

    def remove(record):
        if record.step == 10:
            shutil.rmtree(folder)

    with pytest.raises(RunError, match="could not be written"):
        train(CONFIG, folder, callback=remove)


def test_a_limit_on_the_size_of_files_is_an_error_and_loses_nothing(whole, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        with pytest.raises(RunError, match=r"could not be written \(File too large\): free some space"):
            train(CONFIG, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert train(CONFIG, tmp_path, resume=True)
    assert digest(tmp_path) == digest(whole)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    def read_only(*args, **how):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files.tempfile, "mkstemp", read_only)
    with pytest.raises(RunError, match=r"Read-only file system\): choose a writable folder"):
        train(CONFIG, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_weights_that_cannot_be_removed_go_with_the_next_checkpoint(tmp_path, monkeypatch):
    def full(*args, **how):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    checkpoint.save(tmp_path, "last", {"a": np.zeros(1, np.float32)}, {})
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", full)
        checkpoint.save(tmp_path, "last", {"a": np.ones(1, np.float32)}, {})
    assert checkpoint.load(tmp_path, "last", {"a": np.zeros(1, np.float32)})[0]["a"] == 1
    checkpoint.save(tmp_path, "last", {"a": np.full(1, 2, np.float32)}, {})
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_superseded_weights_of_a_killed_process_go_with_the_next_resume(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "last-000000000000.safetensors").touch()
    assert train(CONFIG, tmp_path / "run", resume=True)
    assert digest(tmp_path / "run") == digest(whole)


def test_a_clock_set_back_changes_nothing(whole, tmp_path, monkeypatch):
    now = [2e9]

    def backwards():
        now[0] -= 1000
        return now[0]

    monkeypatch.setattr(time, "time", backwards)
    assert train(CONFIG, tmp_path)
    assert digest(tmp_path) == digest(whole)


def flip(content):
    at = content.index(b'"step": 20') + 12
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "kept"),
    [(flip, 1), (lambda c: c[:-30], 2), (lambda c: b"", 0), (lambda c: b"\xff\0" * 99, 0), (lambda c: c + b'{"st', 3)],
    ids=["flipped", "cut", "emptied", "noise", "half a line"],
)
def test_damaged_metrics_are_noticed_and_repaired(whole, tmp_path, capsys, damage, kept):
    assert not stopped(tmp_path, signal.SIGINT, step=30)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    assert train(CONFIG, tmp_path, resume=True)
    said = capsys.readouterr().err
    assert ("was damaged: its checksum differs" in said) == (kept < 3)
    assert [record.step for record in folders.read_metrics(tmp_path)] == [*[10, 20, 30][:kept], 40]
    assert {k: v for k, v in digest(tmp_path).items() if k != "metrics.jsonl"} == {
        k: v for k, v in digest(whole).items() if k != "metrics.jsonl"
    }
    last = files.read_json(tmp_path / "last.json")
    assert last["marks"][-1]["lines"] == kept + 1  # the next damage is noticed as well


def test_runs_of_older_versions_have_no_checksum_of_their_metrics(whole, tmp_path):
    assert not stopped(tmp_path, signal.SIGINT, step=30)
    last = files.read_json(tmp_path / "last.json")
    files.write_json(tmp_path / "last.json", {k: v for k, v in last.items() if k not in ("log", "marks", "bytes")})
    assert train(CONFIG, tmp_path, resume=True)
    assert digest(tmp_path) == digest(whole)


def test_two_trainings_do_not_share_a_folder(tmp_path):
    def second(record):
        if record.step == 10:
            with pytest.raises(RunError, match="another training is writing"):
                train_module.train(CONFIG, tmp_path, resume=True)

    assert train(CONFIG, tmp_path, callback=second)


def test_temporary_files_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    (tmp_path / ".a.json.dead.tmp").write_text("half")
    with files.open_atomically(tmp_path / "a.json") as file:
        file.write("whole")
        assert len(list(tmp_path.glob(".a.json.*"))) == 1
        files.remove_abandoned(tmp_path)
        assert len(list(tmp_path.glob(".a.json.*"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_damaged_entry_of_the_compilation_cache_is_replaced(tmp_path, recwarn):
    before = jax.config.jax_compilation_cache_dir
    try:
        from jax._src import compilation_cache as cache

        cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        compilation_cache.remove_damaged_entries()
        expected = jax.jit(lambda x: x * 3 + 7)(np.float32(1))
        entries = sorted(tmp_path.glob("*-cache"))
        assert entries
        for path in entries:
            path.write_bytes(b"damaged")
        jax.clear_caches()
        assert jax.jit(lambda x: x * 3 + 7)(np.float32(1)) == expected
        assert all(path.read_bytes() != b"damaged" for path in tmp_path.glob("*-cache"))
        assert not [one for one in recwarn if "compilation cache" in str(one.message)]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        cache.reset_cache()

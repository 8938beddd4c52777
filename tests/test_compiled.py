"""What one process has compiled serves the next."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from metagrove.compilation_cache import enable_compilation_cache

WORK = """
import jax, jax.monitoring
from metagrove.compilation_cache import enable_compilation_cache
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
enable_compilation_cache()
jax.block_until_ready(jax.jit(lambda x: x * 2 + 1)(1.0))
print(len(hits), jax.config.jax_compilation_cache_dir)
"""


def work(folder):
    """Cache hits, and the folder used."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", WORK]
    done = subprocess.run(
        command, env={**clean, "XDG_CACHE_HOME": str(folder)}, capture_output=True, text=True, check=True
    )
    hits, used = done.stdout.split()
    return int(hits), used


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is elsewhere")
def test_a_second_process_compiles_nothing(tmp_path):
    hits, used = work(tmp_path)
    assert hits == 0
    assert used.startswith(str(tmp_path / "metagrove" / "compiled-"))
    assert work(tmp_path)[0] > 0


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """What jax was told, instead of telling it."""
    told = {}
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return told


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is elsewhere")
def test_a_person_may_say_where(settings, tmp_path, monkeypatch):
    enable_compilation_cache()
    assert Path(settings.pop("jax_compilation_cache_dir")).parent == tmp_path / "metagrove"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "mine"))
    enable_compilation_cache()
    assert settings == {}  # jax reads the variable itself


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is elsewhere")
def test_a_folder_that_cannot_be_made_is_done_without(settings, tmp_path, monkeypatch):
    blocked = tmp_path / "a file"
    blocked.write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    enable_compilation_cache()
    assert settings == {}

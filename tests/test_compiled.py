"""What one process has compiled serves the next."""

import os
import subprocess
import sys

import pytest

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


def work(folder, **environment):
    """Cache hits, and the folder used."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", WORK]
    done = subprocess.run(
        command, env={**clean, "XDG_CACHE_HOME": str(folder), **environment}, capture_output=True, text=True, check=True
    )
    hits, used = done.stdout.split()
    return int(hits), used


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is elsewhere")
def test_a_second_process_compiles_nothing_and_a_person_may_say_where(tmp_path):
    hits, used = work(tmp_path)
    assert hits == 0
    assert used.startswith(str(tmp_path / "metagrove" / "compiled-"))
    assert work(tmp_path)[0] > 0
    assert work(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine")) == (0, str(tmp_path / "mine"))


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is elsewhere")
def test_a_folder_that_cannot_be_made_is_done_without(tmp_path):
    blocked = tmp_path / "a file"
    blocked.write_text("in the way", encoding="utf-8")
    assert work(blocked) == (0, "None")

"""Persistent compilation cache: later commands need neither the time nor the memory of compiling again."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path

import jax
import platformdirs


def enable_compilation_cache() -> None:
    """Store compiled programs in the user's cache folder, unless JAX_COMPILATION_CACHE_DIR names another one.

    JAX_ENABLE_COMPILATION_CACHE=false disables the cache. A folder that is not writable is ignored.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = Path(platformdirs.user_cache_dir("metagrove")) / f"compiled-{processor_mark()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(folder))


def processor_mark() -> str:
    """Return a hash of the processor type, since home folders are shared and compiled code is specific to it."""
    about = f"{platform.machine()} {platform.processor()}"
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        about += next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(about.encode()).hexdigest()[:12]

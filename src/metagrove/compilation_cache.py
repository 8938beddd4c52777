"""What was compiled is kept on disk: the next command that needs it neither waits for the compiler nor has the memory
that compiling takes."""

import contextlib
import hashlib
import os
import platform
from pathlib import Path

import jax
import platformdirs


def enable_compilation_cache() -> None:
    """Keep what this process compiles in the user's cache folder, unless it is said where (JAX_COMPILATION_CACHE_DIR).

    JAX_ENABLE_COMPILATION_CACHE=false keeps nothing. A folder that cannot be written is done without.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = Path(platformdirs.user_cache_dir("metagrove")) / f"compiled-{processor_mark()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(folder))


def processor_mark() -> str:
    """Tells processors apart: code that is compiled for one may not run on another, and home folders are shared."""
    about = f"{platform.machine()} {platform.processor()}"
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        about += next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(about.encode()).hexdigest()[:12]

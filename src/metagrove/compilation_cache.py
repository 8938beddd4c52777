"""Persistent compilation cache: later commands need neither the time nor the memory of compiling again."""

import contextlib
import glob
import hashlib
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import jax
import platformdirs


def enable_compilation_cache() -> None:
    """Store compiled programs in the user's cache folder, unless JAX_COMPILATION_CACHE_DIR names another one.

    JAX_ENABLE_COMPILATION_CACHE=false disables the cache. A folder that is not writable is ignored.
    """
    warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
    with contextlib.suppress(ImportError, AttributeError):  # of other versions of JAX; the warning is not shown then
        remove_damaged_entries()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = Path(platformdirs.user_cache_dir("metagrove")) / f"compiled-{processor_mark()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            jax.config.update("jax_compilation_cache_dir", str(folder))


def remove_damaged_entries() -> None:
    """Make JAX remove a cache entry that cannot be read, so that it is compiled and written again.

    JAX itself warns of such an entry at every start and never replaces it.
    """
    from jax._src import compilation_cache

    read = compilation_cache.get_executable_and_time
    if getattr(read, "removes_damaged", False):
        return

    def read_or_remove(cache_key: str, *args: Any, **how: Any) -> Any:
        try:
            return read(cache_key, *args, **how)
        except Exception:
            folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
            for path in Path(folder).glob(f"{glob.escape(cache_key)}*") if folder else ():
                path.unlink(missing_ok=True)
            return None, None

    read_or_remove.removes_damaged = True  # pyright: ignore[reportFunctionMemberAccess]
    compilation_cache.get_executable_and_time = read_or_remove


def processor_mark() -> str:
    """Return a hash of the processor type, since home folders are shared and compiled code is specific to it."""
    about = f"{platform.machine()} {platform.processor()}"
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        about += next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(about.encode()).hexdigest()[:12]

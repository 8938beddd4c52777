"""Messages of failed commands on standard error, and their exit codes."""

import contextlib
import sys

from metagrove.errors import MetagroveError, RunError, visible
from metagrove.terminal import discard_stdout

__all__ = ["complain", "explain", "flushed"]


def flushed() -> bool:
    """Whether standard output was flushed; a pipe that its reader closed is not an error."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()
        return False
    return True


def complain(message: str) -> None:
    """Print a message to standard error, if that is open."""
    with contextlib.suppress(OSError):
        print(f"metagrove: {visible(message)}", file=sys.stderr, flush=True)


def explain(error: Exception) -> int:
    """Print what went wrong, and return the exit code."""
    if isinstance(error, MetagroveError):
        complain(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        complain("not enough memory: close other programs, or reduce the size of the request")
        return RunError.exit_code
    if isinstance(error, OSError):
        if error.filename is None:
            discard_stdout()
        complain(f"{error.filename or 'standard output'} could not be read or written ({error.strerror or error})")
        return RunError.exit_code
    complain(f"internal error, {type(error).__name__}: {error}; --debug shows the traceback")
    return 1

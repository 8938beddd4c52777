"""Messages of failed commands on standard error, and their exit codes."""

import contextlib
import sys

from metagrove.errors import MetagroveError, RunError, visible
from metagrove.terminal import discard_stdout

__all__ = ["complain", "explain", "flushed"]

LONGEST = 1_000
"""Characters of a path or an error that a message shows."""


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
        where = "standard output" if error.filename is None else cut(str(error.filename))
        complain(f"{where} could not be read or written ({error.strerror or cut(str(error))})")
        return RunError.exit_code
    complain(f"internal error, {type(error).__name__}: {cut(str(error))}; --debug shows the traceback")
    return 1


def cut(text: str) -> str:
    """A text of a message, of which a long one is cut."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"

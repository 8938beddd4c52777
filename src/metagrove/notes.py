"""Messages to the user on standard error, at the level of the logger "metagrove".

`metagrove --quiet` sets its level to WARNING, `--verbose` to DEBUG; in Python, `logging.getLogger("metagrove")` does.
"""

import contextlib
import logging
import sys

from metagrove.errors import visible

__all__ = ["is_quiet", "is_verbose", "note", "set_verbosity"]

LOGGER = logging.getLogger("metagrove")


def set_verbosity(*, quiet: bool = False, verbose: bool = False) -> None:
    """Set the level of messages: errors and results alone, or more than usual."""
    LOGGER.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.NOTSET)


def is_quiet() -> bool:
    """Whether notes are suppressed."""
    return LOGGER.level >= logging.WARNING


def is_verbose() -> bool:
    """Whether details are printed."""
    return 0 < LOGGER.level <= logging.DEBUG


def note(line: str) -> None:
    """Print a line to standard error, unless notes are suppressed."""
    if not is_quiet():
        with contextlib.suppress(OSError):  # a closed or full standard error does not end a training
            print(visible(line), file=sys.stderr, flush=True)

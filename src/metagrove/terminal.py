"""Standard output and standard error: names are shown as they are, and nothing that is printed ends a training.

Names of tasks, columns, classes and folders come from people and files. On a terminal their control characters are
escaped (`errors.visible`), and brackets are no markup.
"""

import contextlib
import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from metagrove.errors import visible

__all__ = ["TerminalConsole", "discard_stdout", "prepare_streams", "say"]


class TerminalConsole(Console):
    """A console that prints text as it is.

    One for standard error says nothing more once that is closed or full; of standard output this is an error.
    """

    def __init__(self, **how: Any):
        super().__init__(markup=False, emoji=False, **how)

    def render_str(self, text: str, **how: Any) -> Text:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Text without markup and with visible control characters."""
        return super().render_str(visible(text), **{**how, "markup": False, "emoji": False})

    def print(self, *objects: Any, **how: Any) -> None:
        """Print to the console."""
        try:
            super().print(*objects, **how)
        except OSError:
            if not (self.stderr or self.file is sys.stderr):
                raise
            self.quiet = True

    def on_broken_pipe(self) -> None:
        """Raise what the command line handles."""
        raise BrokenPipeError


def say(*lines: object) -> None:
    """Print lines to standard output, with visible control characters."""
    for line in lines:
        print(visible(str(line)))


def prepare_streams() -> None:
    """Make standard output and error usable: characters that they do not have are replaced, closed ones discarded."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, e.g. `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace" if name == "stdout" else "backslashreplace")


def discard_stdout() -> None:
    """Send what is left of standard output nowhere, so that the interpreter does not complain when it ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

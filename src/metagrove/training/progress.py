"""Training progress: a progress bar on a terminal, periodic lines elsewhere.

The first block of meta-steps compiles, so the remaining time is estimated from the second block on.
"""

import sys
import time

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from metagrove.notes import is_quiet, is_verbose
from metagrove.terminal import TerminalConsole
from metagrove.training.records import BlockRecord

SECONDS_BETWEEN_LINES = 10.0
COMPILING = "compiling the training step; the next run of the same settings starts faster"


class Progress:
    """Loss, steps per second and remaining time, on standard error."""

    def __init__(self, total: int, *, start: int, begin: int = 0):
        self.console = TerminalConsole(file=sys.stderr, soft_wrap=True, quiet=is_quiet())
        self.total, self.begin = total, begin
        self.compiled = False
        self.bar = Bar(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TextColumn("{task.fields[rate]} steps/s"),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            disable=is_quiet() or not self.console.is_terminal,
        )
        done = start - begin
        self.row = self.bar.add_task("", total=total - begin, completed=done, loss=float("nan"), rate="-", left="")
        self.last_line = time.monotonic()
        if start < total:
            self.note(COMPILING)

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, record: BlockRecord, *, steps_per_second: float) -> None:
        """Update the display after a block."""
        rate, left = "-", "compiled"
        if self.compiled:
            rate = f"{steps_per_second:.{0 if steps_per_second >= 10 else 2}f}"
            left = f"{duration((self.total - record.step) / steps_per_second)} left"
        first, self.compiled = not self.compiled, True
        self.bar.update(self.row, completed=record.step - self.begin, loss=record.loss, rate=rate, left=left)
        waited = time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES
        if is_verbose() or (not self.console.is_terminal and waited):
            speed = "compiled, remaining time is known after the next block" if first else f"{rate} steps/s  {left}"
            self.note(f"step {record.step}/{self.total}  loss {record.loss:.4f}  {speed}")

    def note(self, line: str) -> None:
        """Print a permanent line."""
        self.last_line = time.monotonic()
        self.console.print(line, highlight=False)


def duration(seconds: float) -> str:
    """Format a time in seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

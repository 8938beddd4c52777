"""What a person sees while training: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from metagrove.training.records import BlockRecord

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Loss, steps a second and time left, on standard error."""

    def __init__(self, total: int, *, start: int):
        self.console = Console(file=sys.stderr)
        self.total = total
        self.bar = Bar(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TextColumn("{task.fields[rate]} steps/s"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.row = self.bar.add_task("", total=total, completed=start, loss=float("nan"), rate="-")
        self.last_line = time.monotonic()

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, record: BlockRecord, *, steps_per_second: float) -> None:
        """After each block."""
        rate = f"{steps_per_second:.{0 if steps_per_second >= 10 else 2}f}"
        self.bar.update(self.row, completed=record.step, loss=record.means["loss"], rate=rate)
        if not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            left = (self.total - record.step) / steps_per_second
            self.note(
                f"step {record.step}/{self.total}  loss {record.means['loss']:.4f}  {rate} steps/s  {left:.0f} s left"
            )

    def note(self, line: str) -> None:
        """A line that stays."""
        self.last_line = time.monotonic()
        self.console.print(line, highlight=False)

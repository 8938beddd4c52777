"""A live table of jobs on a terminal: state, step, rate and time left; elsewhere plain lines."""

import dataclasses
import sys
import time

from rich.live import Live
from rich.table import Table

from metagrove.errors import STOPPED, DivergedError
from metagrove.terminal import TerminalConsole
from metagrove.workers.job import Job

SECONDS_BETWEEN_READINGS = 1.0
SECONDS_BETWEEN_LINES = 60.0
ENDS = {0: "done", STOPPED: "interrupted", DivergedError.exit_code: "diverged"}
SHOWN = 30
"""Maximum number of jobs in the live table: the last to end, the running and the next ones."""


@dataclasses.dataclass
class Line:
    """State of a job."""

    job: Job
    submitted: float
    state: str = "waiting"
    step: int = 0
    first: tuple[float, int] | None = None
    """Time and step of the first progress, so that the rate excludes compilation."""
    read: float = 0.0
    printed: float = 0.0

    @property
    def rate(self) -> float | None:
        """Steps per second; None if not known yet."""
        if self.first is None or self.step <= self.first[1]:
            return None
        return (self.step - self.first[1]) / max(self.read - self.first[0], 1e-9)

    def read_progress(self) -> None:
        """Read the progress of the job from its files."""
        log = self.job.log
        if self.state == "waiting" and log.exists() and log.stat().st_mtime >= self.submitted - 1:
            self.state = "running"
        if self.state != "running":
            return
        self.step, self.read = self.job.done(), time.time()
        if self.first is None and self.step > 0:
            self.first = self.read, self.step

    def cells(self) -> tuple[str, str, str, str, str]:
        """Label, state, step, rate and time left."""
        rate, left = self.rate, ""
        if rate and self.state == "running":
            seconds = (self.job.total - self.step) / rate
            left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
        step = f"{self.step:,}/{self.job.total:,}" if self.step else ""
        return self.job.label, self.state, step, f"{rate:.3g}/s" if rate else "", left


class JobTable:
    """The table of all jobs, on standard error."""

    def __init__(self):
        self.console = TerminalConsole(file=sys.stderr)
        self.lines: list[Line] = []
        self.live = Live(console=self.console, auto_refresh=False, transient=False)
        self.looked = 0.0

    def __enter__(self) -> "JobTable":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.refresh(now=True)
        if self.console.is_terminal:
            self.live.stop()

    def add(self, job: Job) -> None:
        """Add a job that was submitted."""
        self.lines.append(Line(job, time.time()))

    def end(self, job: Job, code: int) -> None:
        """Record that a job has ended."""
        line = next(one for one in self.lines if one.job is job)
        line.state = "running"
        line.read_progress()
        line.state = ENDS.get(code, f"failed ({code})")
        self._print(line)

    def refresh(self, *, now: bool = False) -> None:
        """Read the progress of all jobs, at most once a second, and show it."""
        if not now and time.time() - self.looked < SECONDS_BETWEEN_READINGS:
            return
        self.looked = time.time()
        for line in self.lines:
            before = line.state
            line.read_progress()
            if line.state != before or (line.state == "running" and self.looked - line.printed > SECONDS_BETWEEN_LINES):
                self._print(line)
        if self.console.is_terminal:
            self.live.update(self._table(), refresh=True)

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self.console.print(text, highlight=False)

    def _print(self, line: Line) -> None:
        line.printed = time.time()
        if not self.console.is_terminal:
            self.console.print("  ".join(filter(None, line.cells())), highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        states = [line.state for line in self.lines]
        ended = sum(state not in ("waiting", "running") for state in states)
        table = Table(title=f"{ended} of {len(states)} done, {states.count('running')} running")
        for heading in ("job", "state", "step", "rate", "time left"):
            table.add_column(heading, justify="left" if heading in ("job", "state") else "right")
        active = [i for i, state in enumerate(states) if state == "running"] or [len(states)]
        first = max(0, min(active[0] - SHOWN // 3, len(states) - SHOWN))
        for line in self.lines[first : first + SHOWN]:
            table.add_row(*line.cells())
        return table

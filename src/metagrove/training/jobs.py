"""A training as a job: `metagrove train ...` into a folder, resumed if it was started before."""

import dataclasses
import json
import os
from pathlib import Path

from metagrove import files
from metagrove.config.config import Config
from metagrove.config.encoding import to_json

__all__ = ["TrainJob", "config_job", "last_step"]

TAIL = 65_536
"""Bytes at the end of metrics.jsonl that hold its last line."""


@dataclasses.dataclass(frozen=True)
class TrainJob:
    """A training, for `workers.pool.run_jobs`.

    Args:
        label: Display name of the job.
        arguments: Arguments of `metagrove train`: a preset and settings.
        folder: The run folder.
        total: Number of meta-steps.
    """

    label: str
    arguments: tuple[str, ...]
    folder: Path
    total: int

    @property
    def log(self) -> Path:
        """File of what the command prints, beside the run folder."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def command(self, cwd: Path) -> list[str]:
        """Arguments of `metagrove`."""
        resume = ["--resume"] if (cwd / self.folder / "run.json").exists() else []
        return ["train", *self.arguments, "--out", str(self.folder), *resume]

    def done(self) -> int:
        """The last meta-step that was logged."""
        return last_step(self.folder)


def config_job(label: str, config: Config, folder: Path, command: str) -> TrainJob:
    """Make a job of a config, which is written to a file beside the run folder.

    Args:
        label: Display name of the job.
        config: What to train.
        folder: The run folder.
        command: The command to record in the provenance of the run.

    Returns:
        The job.
    """
    path = folder.with_name(f"{folder.name}.config.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, {"format": files.FORMAT, "config": to_json(config), "provenance": {"command": command}})
    return TrainJob(label, (str(path),), folder, config.training.steps)


def last_step(folder: Path) -> int:
    """Read the last meta-step of a run from the end of its metrics.jsonl; 0 if nothing is logged yet."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL), os.SEEK_SET)
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):  # a line that is being written
            continue
    return 0

"""The learner that a run serves: its own, or a baseline or blend with a better validation score.

served.json          its name, next to run.json; without it, the run's own learner
baselines/NAME/      each fitted baseline, a run folder; or failed.json with the error
"""

import dataclasses
from pathlib import Path

from metagrove import files
from metagrove.config.config import Config, Training
from metagrove.config.encoding import to_json
from metagrove.errors import InputError, quoted
from metagrove.learner import Learner, Meta
from metagrove.sources.source import Source
from metagrove.training import checkpoint, folders

__all__ = ["Served", "baseline_folder", "read_served", "save_fitted_run", "write_served"]

FILE, FAILED = "served.json", "failed.json"
LONGEST_LEARNER_NAME = 100
"""Maximum number of characters of the name of a learner."""
FITTED = Training(steps=1, max_eval_inner_steps=1)
"""Training settings of a run that is fitted without meta-steps."""


@dataclasses.dataclass(frozen=True)
class Served:
    """The learner that `adapt` and `predict` use by default."""

    name: str
    label: str
    """Display name."""
    why: str = ""
    """The reason."""


def baseline_folder(run: Path, name: str) -> Path:
    """Folder of a baseline of a run.

    Raises:
        InputError: The name leads out of the run folder.
    """
    if name in ("", ".", "..") or "\0" in name or len(name) > LONGEST_LEARNER_NAME or Path(name).name != name:
        raise InputError(f"{run.name} has no learner {quoted(name)}: expected the name of a baseline")
    return run / "baselines" / name


def read_served(run: Path) -> Served | None:
    """Read which learner a run serves; None for its own."""
    path = run / FILE
    return files.read_record(Served, path, needs=("name", "label")) if path.exists() else None


def write_served(run: Path, served: Served) -> None:
    """Store which learner a run serves."""
    files.write_json(run / FILE, {"format": files.FORMAT, **files.as_json(served)})


def save_fitted_run(
    folder: Path, source: Source, learner: Learner, meta: Meta, *, seconds: float, command: str, variant: str = ""
) -> None:
    """Save a learner that was fitted without meta-steps as a run folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.save_error(folder, error) from error
    about = {"step": 0, "validation": {"steps": 0}, "seconds": seconds, "variant": variant}
    checkpoint.save(folder, "best", meta, about)
    config = to_json(Config(source, learner, FITTED))
    stored = {"format": files.FORMAT, "config": config, "provenance": folders.provenance(command)}
    files.write_json(folder / "run.json", stored)


def refuse_unknown(run: Path, name: str, own: str) -> InputError:
    """Return the error for a learner that a run does not have."""
    known = [own, *sorted(path.parent.name for path in (run / "baselines").glob("*/run.json"))]
    return InputError(f"{run.name} has no learner {quoted(name)}, only {', '.join(known)}")

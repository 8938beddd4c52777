"""Train a run from Python; the command line uses the same training loop."""

import dataclasses
from pathlib import Path
from typing import Any

from metagrove.config.config import Config
from metagrove.config.presets import default_learner, preset
from metagrove.errors import InputError
from metagrove.learner import Learner
from metagrove.serve.run import Run, load
from metagrove.sources.source import Source
from metagrove.training.loop import Callback
from metagrove.training.loop import train as train_into

__all__ = ["default_folder", "train"]


def train(
    config: str | Config | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    learner: Learner | str | None = None,
    source: Source | None = None,
    callback: Callback | None = None,
    devices: int | None = None,
    **settings: Any,
) -> Run:
    """Train a learner on a source of tasks.

    Args:
        config: A preset by name (`metagrove list` shows them) or a `Config`; without one, `source` and `learner` are
            needed, and the training has its default settings.
        out: The run folder; by default runs/NAME-LEARNER-sSEED.
        resume: Continue from the last checkpoint in that folder.
        learner: A learner, or the name of one, in place of the config's.
        source: A source of tasks, in place of the config's.
        callback: Called with the record of each logged block: its step, its means, and its validation if there was one.
        devices: Devices that share the tasks of a meta-step, which does not change the result; by default all
            devices, at most one for each block of tasks (see `Training.task_blocks`).
        **settings: Settings by their own names, as on the command line, e.g. `steps=500, clusters=(6, 3, 1)`.

    Returns:
        The trained run, at its best checkpoint by validation.

    Raises:
        InputError: A setting is unknown or cannot work; the message lists all of them.
        DivergedError: A loss or gradient was not finite; the last good checkpoint is kept.
        KeyboardInterrupt: Ctrl-C stopped it; the same call with `resume=True` goes on.

    Example:
        >>> import metagrove as mg
        >>> run = mg.train("toy-quick", steps=500)  # doctest: +SKIP
        >>> run = mg.train(source=mg.Functions(), learner=mg.MAML(), steps=500)  # doctest: +SKIP
    """
    name = config if isinstance(config, str) else "own"
    whole = complete(preset(config) if isinstance(config, str) else config, learner, source).with_settings(**settings)
    folder = Path(out) if out is not None else default_folder(name, whole)
    command = f"metagrove.train({config!r}, ...)" if isinstance(config, str) else "metagrove.train(Config(...), ...)"
    if not train_into(whole, folder, resume=resume, command=command, callback=callback, devices=devices):
        raise KeyboardInterrupt
    return load(folder, learner=whole.learner, source=whole.source)


def complete(config: Config | None, learner: Learner | str | None, source: Source | None) -> Config:
    """The config with the given learner and source in place of its own, or a new config of both."""
    if config is None:
        if source is None or learner is None or isinstance(learner, str):
            raise InputError("train needs a preset's name, a Config, or both source=... and learner=... as objects")
        return Config(source, learner)
    method = default_learner(learner, config) if isinstance(learner, str) else learner or config.learner
    return dataclasses.replace(config, learner=method, source=source or config.source)


def default_folder(name: str, config: Config) -> Path:
    """Return the default run folder, runs/PRESET-LEARNER-sSEED."""
    return Path("runs") / f"{name}-{type(config.learner).__name__.lower()}-s{config.training.seed}"

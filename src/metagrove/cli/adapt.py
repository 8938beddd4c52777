"""metagrove adapt, predict and export."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import tyro

Positional = tyro.conf.Positional
OLD_FLAGS = {"--steps": "--inner-steps"}
"""Spellings of version 0.1 that `adapt` and `predict` still take."""


@dataclasses.dataclass(frozen=True)
class Adapt:
    """Fit a run to a new task from a few rows, and say where the task stands among those the run knows."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    support: Path
    """The rows to adapt to, CSV or Parquet with inputs and targets; for images a folder class/*.jpg."""
    out: Path
    """The folder that keeps the adapted task, for `metagrove predict` and `metagrove export`."""
    inner_steps: int | None = None
    """Inner steps; by default as many as were best on validation tasks."""
    json: bool = False
    """Print one JSON object instead of lines."""

    def __call__(self) -> None:
        from metagrove.serve.adapt import adapt

        task = adapt(self.run, self.support, steps=self.inner_steps)
        task.save(self.out)
        tell(task.about, self.json)


@dataclasses.dataclass(frozen=True)
class Predict:
    """Predict for new rows of a task: `predict ADAPTED`, or `predict RUN --support ROWS` to adapt first."""

    model: Positional[str]
    """A folder that `metagrove adapt` wrote; with --support, a run folder or the name of a released model."""
    input: Path
    """The rows, CSV or Parquet with the inputs; for images a folder. Of any size."""
    out: Path
    """Where the predictions go, a CSV file with a line for each row."""
    support: Path | None = None
    """The rows to adapt to."""
    inner_steps: int | None = None
    """Inner steps; by default as many as were best on validation tasks."""
    json: bool = False
    """Print one JSON object instead of lines."""

    def __call__(self) -> None:
        from metagrove.errors import InputError
        from metagrove.serve.predict_files import predict_file
        from metagrove.serve.saved import load_fitted

        if self.support is None and self.inner_steps is not None:
            raise InputError("--inner-steps is for adapting: give --support as well")
        if self.support is None:
            task = load_fitted(self.model)
        else:
            from metagrove.serve.adapt import adapt

            task = adapt(self.model, self.support, steps=self.inner_steps)
        count = predict_file(task, self.input, self.out)
        tell({**task.about, "predictions": count, "out": str(self.out)}, self.json)


@dataclasses.dataclass(frozen=True)
class Export:
    """Write an adapted task as plain layers that can be used without this package (docs/export.md)."""

    adapted: Positional[Path]
    """A folder that `metagrove adapt` wrote."""
    out: Path
    """The folder for model.json and its weights."""

    def __call__(self) -> None:
        from metagrove.serve.export import export
        from metagrove.serve.saved import load_fitted

        export(load_fitted(self.adapted), self.out)
        print(self.out / "model.json")


def tell(about: dict[str, Any], as_json: bool) -> None:
    """What is to be said of a task, for a machine or a person."""
    from metagrove.serve.standing import described

    if as_json:
        print(json.dumps(about))
        return
    print("\n".join(described(about)))
    if "predictions" in about:
        print(f"{about['predictions']:,} predictions: {about['out']}")

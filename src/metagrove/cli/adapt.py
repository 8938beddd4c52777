"""metagrove adapt, predict and export."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import tyro

Positional = tyro.conf.Positional


@dataclasses.dataclass(frozen=True)
class Adapt:
    """Adapt a run to a new task from a few rows, and report its clusters and the most similar known tasks."""

    run: Positional[str]
    """A run folder, or the name of a released model."""
    support: Path
    """Support rows: CSV or Parquet with inputs and targets; for images a folder class/*.jpg."""
    out: Path
    """Folder of the fitted task, for `metagrove predict` and `metagrove export`."""
    inner_steps: int | None = None
    """Number of inner steps; by default the number selected on validation tasks."""
    json: bool = False
    """Print one JSON object instead of lines."""

    def __call__(self) -> None:
        from metagrove.serve.adapt import adapt

        task = adapt(self.run, self.support, steps=self.inner_steps)
        task.save(self.out)
        tell(task.about, self.json)


@dataclasses.dataclass(frozen=True)
class Predict:
    """Predict new rows of a task: `predict FITTED`, or `predict RUN --support ROWS` to adapt first."""

    model: Positional[str]
    """A folder that `metagrove adapt` wrote; with --support, a run folder or the name of a released model."""
    input: Path
    """Rows to predict: CSV or Parquet of any size with the inputs; for images a folder."""
    out: Path
    """CSV file of the predictions, with a line for each row."""
    support: Path | None = None
    """Support rows to adapt to."""
    inner_steps: int | None = None
    """Number of inner steps; by default the number selected on validation tasks."""
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
    """Export a fitted task as plain layers that can be used without this package (docs/export.md)."""

    adapted: Positional[Path]
    """A folder that `metagrove adapt` wrote."""
    out: Path
    """Folder of model.json and its weights."""

    def __call__(self) -> None:
        from metagrove.serve.export import export
        from metagrove.serve.saved import load_fitted

        export(load_fitted(self.adapted), self.out)
        print(self.out / "model.json")


def tell(about: dict[str, Any], as_json: bool) -> None:
    """Print a description of a task, as JSON or as lines."""
    from metagrove.serve.standing import described

    if as_json:
        print(json.dumps(about))
        return
    print("\n".join(described(about)))
    if "predictions" in about:
        print(f"{about['predictions']:,} predictions: {about['out']}")

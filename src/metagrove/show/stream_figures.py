"""Figures of runs on a stream (paper, figures 4 and 7): training curves, arrivals, growth, and scores by family."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metagrove.serve.run import Run
from metagrove.show.figures import BLACK, BLUE, FIT_STYLES, GREEN, ORANGE, SKY, VERMILION
from metagrove.sources.source import Source
from metagrove.training import folders
from metagrove.training.records import BlockRecord

WINDOW = 10
"""Number of records that a point of the curve averages."""
FAMILY_COLORS = (BLUE, ORANGE, GREEN, VERMILION, SKY, BLACK)


def stream_curves(runs: Sequence[Run]) -> Figure:
    """Draw the training score of each run with its growth (top) and the first run's scores by family (bottom)."""
    source = runs[0].config.source
    figure = Figure(figsize=(8, 6.4))
    above, below = figure.subplots(2, sharex=True)
    steps = runs[0].config.training.steps
    of_each = [folders.read_metrics(run.folder) for run in runs]
    name = "accuracy" if all("accuracy" in records[-1].means for records in of_each) else "loss"
    for run, records, (color, dashes) in zip(runs, of_each, FIT_STYLES, strict=False):
        trained = [r for r in records if "loss" in r.means]
        at, values = smoothed([r.step for r in trained], [r.means[name] for r in trained])
        above.plot(at, values, dashes, color=color, linewidth=1.2, label=run.folder.name)
        mark_growth(above, records, at, values, color)
    above.set_ylabel(f"training {name}" + ("" if name == "accuracy" else ", log scale"))
    if name == "loss":
        above.set_yscale("log")
    families(below, runs[0], source, steps)
    mark_phases([above, below], source, steps)
    below.set_xlabel("meta-step")
    for panel in (above, below):
        panel.grid(axis="y", alpha=0.2)
        panel.legend(loc="best", fontsize=7)
    return figure


def smoothed(steps: Sequence[int], values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Average a curve over windows of `WINDOW` records."""
    whole = max(1, len(values) // WINDOW)
    parts = zip(np.array_split(steps, whole), np.array_split(values, whole), strict=True)
    at, means = zip(*[(part[-1], own.mean()) for part, own in parts], strict=True)
    return np.array(at), np.array(means)


def mark_growth(axes: Axes, records: Sequence[BlockRecord], at: np.ndarray, values: np.ndarray, color: str) -> None:
    """Mark growth events by triangles, with the number of first-level clusters."""
    for record in records:
        if record.growth is not None:
            height = np.interp(record.step, at, values)
            axes.plot(record.step, height, "^", color=color, markersize=8, markeredgecolor="white", zorder=3)
            axes.annotate(
                f"{record.growth.clusters[0]} clusters",
                (record.step, height),
                textcoords="offset points",
                xytext=(6, 6),
                fontsize=7,
            )


def families(axes: Axes, run: Run, source: Source, steps: int) -> None:
    """Draw the validation score of each family, dotted while it is absent from training."""
    checks = [(r.step, r.validation.by_family) for r in folders.read_metrics(run.folder) if r.validation]
    checks = [(step, by_family) for step, by_family in checks if by_family]
    at = [step for step, _ in checks]
    for family, color in zip(source.family_names, itertools.cycle(FAMILY_COLORS), strict=False):
        values = np.array([by_family.get(family, np.nan) for _, by_family in checks])
        present = np.array([family in source.families_in(source.phase_at(max(0, step - 1), steps)) for step in at])
        axes.plot(at, values, ":", color=color, linewidth=1)
        drawn = present | np.append(present[1:], False)  # a line that ends at a family in training was trained on it
        axes.plot(at, np.where(drawn, values, np.nan), color=color, linewidth=1.4, label=family)
    axes.set_ylabel(f"validation {run.metric}" + (", log scale" if run.metric != "accuracy" else ""))
    axes.set_title(f"{run.folder.name} by family; dotted: absent from training", loc="left")
    if run.metric != "accuracy":
        axes.set_yscale("log")


def mark_phases(panels: Sequence[Axes], source: Source, steps: int) -> None:
    """Draw a line where the mixture changes, with the families that arrive and leave."""
    before: tuple[str, ...] = ()
    for number, begin in enumerate(source.begins(steps)):
        now = source.families_in(number)
        came = [f"+ {name}" for name in source.family_names if name in now and name not in before]
        went = [f"− {name}" for name in source.family_names if name not in now and name in before]
        before = now
        for panel in panels:
            panel.axvline(begin, color="#888888", linewidth=0.8, linestyle="--")
        panels[0].annotate(
            "\n".join([*came, *went]),
            (begin, 0.02),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(3, 0),
            fontsize=7,
            va="bottom",
        )

"""Figures of a run: the training curve, and for functions soft assignments with fitted curves (figure 3, appendix I).

Figures for images are in `show.image_figures`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jaxtyping import PRNGKeyArray
from matplotlib.figure import Figure

from metagrove.errors import InputError
from metagrove.files import save_error
from metagrove.losses import metric_of
from metagrove.outer import family_of, map_drawn, task_keys
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.run import Run
from metagrove.show.tree_figures import first_level_functions, tree_and_heat_map
from metagrove.sources.source import Source, TaskDraw
from metagrove.task import Task
from metagrove.training import folders
from metagrove.training.records import BlockRecord
from metagrove.training.scores import test_parts

# Okabe and Ito's palette, which is safe for colour-blind readers; fits also differ by dashes.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00"
FIT_STYLES = [(BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (SKY, ":")]
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
FIRST = 1000
"""Number of test tasks of each part of the source from which those of a figure are chosen."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A task of a figure."""

    name: str
    key: PRNGKeyArray
    task: Task


def draw_all(run: Run, others: Sequence[Run], out: Path | None, *, seed: int) -> list[Path]:
    """Draw all figures of a run as PNG files, and return their paths."""
    if len(others) >= len(FIT_STYLES):
        raise InputError(f"at most {len(FIT_STYLES) - 1} runs can be compared with one, got {len(others)}")
    folder = out or Path("figures") / run.folder.name
    x_shape = run.config.source.spec.x_shape
    figures: dict[str, Figure] = {}
    with mpl.rc_context(STYLE):
        if trained(run):
            figures["training"] = training_curve([one for one in (run, *others) if trained(one)])
        if any(record.fitted for record in folders.read_metrics(run.folder)):
            figures["fit"] = fit_curve(folders.read_metrics(run.folder))
        if x_shape == (1,):
            figures["assignments"] = assignments_beside_fits(run, others, seed=seed)
            figures["sixteen-tasks"] = sixteen_tasks(run, others, seed=seed)
        if run.config.source.has_phases and "training" in figures:
            from metagrove.show.stream_figures import stream_curves

            figures["stream"] = stream_curves([run, *(one for one in others if one.config.source == run.config.source)])
        if len(x_shape) == 3:
            from metagrove.show.image_figures import draw_images  # imports scikit-learn, which is slow

            figures |= draw_images(run, others, seed=seed)
    if not figures:
        raise InputError(f"{run.folder} has nothing to draw: no metrics.jsonl, and no curves or images")
    return save_figures(folder, figures)


def save_figures(folder: Path, figures: Mapping[str, Figure]) -> list[Path]:
    """Save figures as PNG files in a folder, and return their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for title, figure in figures.items():
            figure.savefig(folder / f"{title}.png", dpi=160)
    except OSError as error:
        raise save_error(folder, error) from error
    return [folder / f"{title}.png" for title in figures]


def trained(run: Run) -> bool:
    """Whether a run has records of meta-steps."""
    return any("loss" in record.means for record in folders.read_metrics(run.folder))


def training_curve(runs: Sequence[Run]) -> Figure:
    """Draw the training loss and the validation score with its CI; an accuracy has a panel of its own."""
    apart = metric_of(runs[0].config.learner.loss).higher_is_better
    figure = Figure(figsize=(7, 5.6 if apart else 4.2))
    panels = np.ravel(figure.subplots(2 if apart else 1, sharex=True))
    scored, lost = panels[0], panels[-1]
    for run, (color, dashes) in zip(runs, FIT_STYLES, strict=False):
        records = [r for r in folders.read_metrics(run.folder) if "loss" in r.means]
        steps, losses = zip(*[(r.step, r.means["loss"]) for r in records], strict=True)
        label = label_of(run)
        lost.plot(
            steps, losses, color=color, alpha=0.6 if apart else 0.3, linewidth=0.8, label=f"{label}, training loss"
        )
        checks = [(r.step, r.validation) for r in records if r.validation is not None]
        values = np.array([check.value for _, check in checks])
        ci = np.array([check.ci95 for _, check in checks])
        at = [step for step, _ in checks]
        dots = "." if len(at) < 10 else ""
        scored.plot(
            at, values, color=color, linestyle=dashes, marker=dots, label=f"{label}, validation {run.metric} ± 95 % CI"
        )
        scored.fill_between(at, values - ci, values + ci, color=color, alpha=0.15, linewidth=0)
    if apart:
        scored.set(ylabel=f"{runs[0].metric}, %")
        lost.set(xlabel="meta-step", ylabel="training loss")
    else:
        scored.set(xlabel="meta-step", ylabel=runs[0].metric, yscale="log")
    for panel in panels:
        panel.grid(axis="y", which="both", alpha=0.2)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def fit_curve(records: Sequence[BlockRecord]) -> Figure:
    """Draw the loss of the fit that comes before the first meta-step."""
    figure = Figure(figsize=(7, 4.2))
    axes = figure.subplots()
    fitted = [record for record in records if record.fitted]
    axes.plot([r.step for r in fitted], [r.loss for r in fitted], color="black", linewidth=1)
    axes.set(xlabel="step of the fit, before the first meta-step", ylabel="-log p(task), nats")
    axes.grid(axis="y", alpha=0.2)
    return figure


def assignments_beside_fits(run: Run, others: Sequence[Run], *, seed: int) -> Figure:
    """Draw the assignments of six tasks to first-level clusters, and the fitted curves."""
    tasks = choose_tasks(run.config.source, 6, seed=seed)
    return heat_map_and_curves(Figure(figsize=(11, 5.2)), tasks, run, others, columns=3)


def sixteen_tasks(run: Run, others: Sequence[Run], *, seed: int) -> Figure:
    """Draw the same for sixteen tasks, four of each family, as in the paper's appendix I."""
    tasks = choose_tasks(run.config.source, 16, seed=seed)
    return heat_map_and_curves(Figure(figsize=(13, 8.4)), tasks, run, others, columns=4)


def heat_map_and_curves(
    figure: Any, tasks: Sequence[Drawn], run: Run, others: Sequence[Run], *, columns: int
) -> Figure:
    """Draw the tree with assignments on the left and fitted curves on the right."""
    left, right = figure.subfigures(1, 2, width_ratios=[1.2, 0.8 * columns])
    adapted = [adapt(run, drawn.task) for drawn in tasks]
    assignments(left, tasks, run, adapted)
    curves(right, tasks, run, adapted, others, columns=columns)
    return figure


def choose_tasks(source: Source, count: int, *, seed: int) -> list[Drawn]:
    """Choose the first test tasks of each family, as evenly as `count` allows, among those of `Run.scores`."""
    found: dict[int, list[tuple[TaskDraw, PRNGKeyArray, int]]] = {}
    for part, part_key in test_parts(source, seed):
        for index, family in enumerate(map_drawn(family_of, part, task_keys(part_key, FIRST)).tolist()):
            found.setdefault(family, []).append((part, part_key, index))
    families, chosen = sorted(found), []
    for place, family in enumerate(families):
        wanted = count // len(families) + (place >= len(families) - count % len(families))
        for number, (part, part_key, index) in enumerate(found[family][:wanted], 1):
            task_key = jax.random.fold_in(part_key, index)
            chosen.append(Drawn(f"{source.family_names[family]} {number}", task_key, _sample(part, task_key)))
    return chosen


@eqx.filter_jit
def _sample(tasks: TaskDraw, key: PRNGKeyArray) -> Task:
    return tasks.sample(key)


def adapt(run: Run, task: Task, *, steps: int | None = None) -> FittedTask:
    """The run fitted to the task's real support rows; of images transductive, as its scores are."""
    real = np.asarray(task.support.mask)
    rows = np.asarray(task.support.x)[real], np.asarray(task.support.y)[real]
    statistics = "query" if run.config.source.spec.is_image else "support"
    return run.alone().adapt(*rows, steps=steps, statistics=statistics)


def assignments(figure: Any, tasks: Sequence[Drawn], run: Run, adapted: Sequence[FittedTask]) -> None:
    """Draw the tree of clusters and, below it, the assignments of the tasks."""
    if not adapted[0].assignments:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.text(0.5, 0.5, "this learner\nhas no clusters", ha="center", va="center")
        return
    functions = first_level_functions(run.config.learner, run.meta, input_grid(tasks))
    tree_and_heat_map(figure, [drawn.name for drawn in tasks], [one.assignments for one in adapted], functions)


def input_grid(tasks: Sequence[Drawn]) -> np.ndarray:
    """200 inputs over the range of the tasks'."""
    inputs = np.concatenate([rows.x for drawn in tasks for rows in (drawn.task.support, drawn.task.query)])
    return np.linspace(inputs.min(), inputs.max(), 200, dtype=np.float32)[:, None]


def curves(
    figure: Any, tasks: Sequence[Drawn], run: Run, adapted: Sequence[FittedTask], others: Sequence[Run], *, columns: int
) -> None:
    """Draw the true function, support points and the fits of all runs, one panel per task."""
    panels = np.ravel(figure.subplots(-(-len(tasks) // columns), columns, sharex=True))
    x = input_grid(tasks)
    for panel, drawn, own in zip(panels, tasks, adapted, strict=True):
        truth = run.config.source.curve(drawn.key, jnp.asarray(x))
        if truth is not None:
            panel.plot(x, truth, color=BLACK, linewidth=2.5, alpha=0.35, label="truth")
        fits = [own, *(adapt(other, drawn.task) for other in others)]
        draw_band(panel, own, x)
        for fitted, fitter, (color, dashes) in zip(fits, [run, *others], FIT_STYLES, strict=False):
            panel.plot(x, fitted.predict(x), dashes, color=color, linewidth=1.4, label=label_of(fitter))
        real = np.asarray(drawn.task.support.mask)
        support = drawn.task.support
        panel.plot(support.x[real], support.y[real], "*", color=VERMILION, markersize=8, label="support points")
        panel.set_title(drawn.name)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def draw_band(panel: Any, fitted: FittedTask, x: np.ndarray) -> None:
    """Draw a band of two standard deviations around the prediction, of a learner that predicts one."""
    if (std := fitted.std(x)) is not None:
        mean, std = np.ravel(fitted.predict(x)), np.ravel(std)
        panel.fill_between(x[:, 0], mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.15, linewidth=0, label="2 std")


def label_of(run: Run) -> str:
    """Return the name of a run's learner in a legend; variants of HSML have letters (README, Names)."""
    return run.config.learner.name

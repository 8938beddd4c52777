"""Drawings for the documents: schemes like the paper's figures 1 and 2, and the figure of the theory study.

Lengths are in units of the axes; figures 1 and 2 show no measurements.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from metagrove.files import from_json
from metagrove.paper.names import display_name
from metagrove.paper.results import read_result
from metagrove.paper.theory.records import TaskRow, TheoryResult
from metagrove.show.figures import BLACK, BLUE, GREEN, ORANGE, STYLE, VERMILION

TASK_COLORS = (BLUE, BLUE, ORANGE, ORANGE)
METHOD_STYLES = ((GREEN, "o"), (BLUE, "s"), (VERMILION, "^"))
SHARED = (0.0, 0.0)
OPTIMA = np.array([(-1.9, 1.5), (-1.2, 2.1), (1.3, 1.9), (2.0, 1.2)])
"""Best parameters of four tasks, two of each kind."""
CENTRES = np.array([(-1.15, 1.25), (1.2, 1.1)])


def draw_figures(out: Path, *, budget: str = "paper", results: Path = Path("results")) -> list[Path]:
    """Draw the figures into a folder.

    Args:
        out: Folder of the PNG files.
        budget: Not used; every analysis has it.
        results: Folder with theory.json, without which its figure is not drawn.

    Returns:
        The paths of the figures.
    """
    del budget
    out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figures = {"initialisations": three_initialisations(), "stages": three_stages()}
        if (results / "theory.json").exists():
            figures["theory"] = theory_figure(from_json(TheoryResult, read_result(results / "theory.json")))
        for name, figure in figures.items():
            figure.savefig(out / f"{name}.png", dpi=160)
    return [out / f"{name}.png" for name in figures]


def three_initialisations() -> Figure:
    """One initialisation for all tasks, one for each task, and one for each cluster of tasks (paper, figure 1)."""
    figure = Figure(figsize=(9, 3.2))
    shared, single, clustered = figure.subplots(1, 3, sharex=True, sharey=True)
    for axes, title in zip(
        (shared, single, clustered),
        ("shared by all tasks (MAML)", "for each task (MUMOMAML)", "for each cluster (HSML)"),
        strict=True,
    ):
        draw_tasks(axes)
        axes.set_title(title)
    own = 0.72 * OPTIMA
    near = CENTRES[[0, 0, 1, 1]]
    for optimum, mine, cluster, color in zip(OPTIMA, own, near, TASK_COLORS, strict=True):
        arrow(shared, SHARED, optimum, color, "-")
        arrow(single, SHARED, mine, "0.55", "--")
        arrow(single, mine, optimum, color, "-")
        arrow(clustered, cluster, optimum, color, "-")
        single.plot(*mine, "D", color=color, markersize=5)
    for centre in CENTRES:
        arrow(clustered, SHARED, centre, "0.55", "--")
        clustered.plot(*centre, "D", color=BLACK, markersize=6)
    figure.legend(*legend_entries(), loc="outside lower center", ncols=5, fontsize=8)
    return figure


def draw_tasks(axes: Axes) -> None:
    """The shared initialisation and the best parameters of each task."""
    axes.plot(*SHARED, "s", color=BLACK, markersize=8)
    axes.annotate("$\\theta_0$", SHARED, textcoords="offset points", xytext=(9, -6), fontsize=12)
    for number, (optimum, color) in enumerate(zip(OPTIMA, TASK_COLORS, strict=True), 1):
        axes.plot(*optimum, "*", color=color, markersize=13)
        axes.annotate(f"$\\theta_{number}$", optimum, textcoords="offset points", xytext=(7, 4), fontsize=11)
    axes.set(xlim=(-2.6, 2.8), ylim=(-0.6, 2.7), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def arrow(axes: Axes, start: Sequence[float], end: Sequence[float], color: str, dashes: str) -> None:
    """An arrow between two points of a drawing."""
    how = {"arrowstyle": "->", "color": color, "linestyle": dashes, "linewidth": 1.4, "shrinkA": 5, "shrinkB": 6}
    axes.annotate("", (end[0], end[1]), (start[0], start[1]), arrowprops=how)


def legend_entries() -> tuple[list[Line2D], list[str]]:
    """Symbols of the drawing of initialisations, and what they stand for."""
    entries = {
        "shared initialisation": Line2D([], [], marker="s", color=BLACK, linestyle=""),
        "tailored initialisation": Line2D([], [], marker="D", color=BLACK, linestyle=""),
        "best for a task": Line2D([], [], marker="*", color="0.4", markersize=11, linestyle=""),
        "tailoring": Line2D([], [], color="0.55", linestyle="--"),
        "gradient steps": Line2D([], [], color="0.3"),
    }
    return list(entries.values()), list(entries)


def three_stages() -> Figure:
    """Task representation, hierarchical clustering and knowledge adaptation, in order (paper, figure 2)."""
    figure = Figure(figsize=(11, 3.6))
    axes = figure.subplots()
    axes.set(xlim=(0, 22), ylim=(0, 7), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    for left, width, title in (
        (0.2, 6.6, "1  task representation, eqs. (2)-(5)"),
        (7.4, 6.8, "2  hierarchical clustering, eqs. (6)-(7)"),
        (14.8, 7.0, "3  knowledge adaptation, eqs. (8)-(9)"),
    ):
        axes.add_patch(FancyBboxPatch((left, 0.3), width, 5.7, boxstyle="round,pad=0.1", fc="#f4f6f8", ec="0.75"))
        axes.text(left + width / 2, 6.4, title, ha="center", fontsize=10)
    draw_representation(axes)
    draw_clustering(axes)
    draw_adaptation(axes)
    return figure


def box(axes: Axes, x: float, y: float, text: str, *, width: float = 1.6, color: str = "white") -> None:
    """A labelled box centred at a point."""
    shape = FancyBboxPatch((x - width / 2, y - 0.4), width, 0.8, boxstyle="round,pad=0.08", fc=color, ec="0.3")
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", fontsize=9)


def draw_representation(axes: Axes) -> None:
    """Examples, their embeddings, the aggregator with its reconstruction, and g."""
    for y in (1.2, 2.4, 4.6):
        box(axes, 1.2, y, "$x_j, y_j$", width=1.3)
        box(axes, 3.1, y, "$\\mathcal{F}$", width=0.6)
        arrow(axes, (1.9, y), (2.8, y), BLACK, "-")
        arrow(axes, (3.4, y), (4.2, 2.9 + (y - 2.9) * 0.3), BLACK, "-")
    axes.text(1.2, 3.5, "⋮", ha="center", va="center", fontsize=13)
    box(axes, 5.0, 2.9, "encoder", width=1.5)
    arrow(axes, (5.0, 2.4), (5.0, 1.5), "0.5", "--")
    axes.text(5.0, 1.05, "decoder: $\\mathcal{L}_r$", ha="center", color="0.4", fontsize=8)
    arrow(axes, (5.8, 2.9), (7.9, 2.9), BLACK, "-")
    axes.text(6.5, 3.25, "$g_i$", ha="center", fontsize=12)


def draw_clustering(axes: Axes) -> None:
    """Four clusters, two above them, and the root; darker where the task is assigned more."""
    levels = {9.3: (1.2, 2.4, 3.6, 4.8), 11.3: (2.0, 4.0), 13.0: (2.9,)}
    shares = {9.3: (0.15, 0.7, 0.05, 0.1), 11.3: (0.75, 0.25), 13.0: (1.0,)}
    columns = list(levels)
    for y, share in zip(levels[9.3], shares[9.3], strict=True):
        axes.plot((8.1, 9.3), (2.9, y), color=BLUE, alpha=0.15 + 0.85 * share, linewidth=1 + 2 * share, zorder=1)
    for first, second in itertools.pairwise(columns):
        for y, share in zip(levels[first], shares[first], strict=True):
            for to, onward in zip(levels[second], shares[second], strict=True):
                strength = share * onward
                axes.plot((first, second), (y, to), color=BLUE, alpha=0.1 + 0.9 * strength, linewidth=1.3, zorder=1)
    for x in columns:
        axes.scatter([x] * len(levels[x]), levels[x], s=330, c=shares[x], cmap="Blues", vmin=0, vmax=1.1,
                     edgecolors="0.3", zorder=2)  # fmt: skip
    axes.text(9.3, 5.55, "$K^1 = 4$", ha="center", fontsize=8)
    axes.text(11.3, 5.55, "$K^2 = 2$", ha="center", fontsize=8)
    axes.text(13.0, 5.55, "root", ha="center", fontsize=8)
    arrow(axes, (13.3, 2.9), (15.5, 2.9), BLACK, "-")
    axes.text(13.85, 3.25, "$h^L_i$", ha="center", fontsize=12)


def draw_adaptation(axes: Axes) -> None:
    """The gate on g and h, the shared initialisation, and gradient steps to the task's parameters."""
    box(axes, 16.4, 2.9, "gate $o_i$", width=1.5)
    box(axes, 16.4, 4.9, "shared $\\theta_0$", width=1.8)
    axes.plot((7.0, 7.0, 16.4), (2.9, 0.75, 0.75), color="0.5", linestyle=":", linewidth=1.2)
    arrow(axes, (16.4, 0.75), (16.4, 2.35), "0.5", ":")
    axes.text(15.6, 0.95, "$g_i$", ha="center", fontsize=10, color="0.4")
    box(axes, 19.4, 4.9, "$\\theta_{0i} = \\theta_0 \\circ o_i$", width=2.5, color="#e8f1fa")
    arrow(axes, (17.4, 4.9), (18.0, 4.9), BLACK, "-")
    arrow(axes, (17.2, 3.1), (18.6, 4.35), BLACK, "-")
    box(axes, 19.4, 1.7, "$\\theta_{\\mathcal{T}_i}$", width=1.6, color="#fdeee6")
    arrow(axes, (19.4, 4.4), (19.4, 2.25), VERMILION, "-")
    axes.text(19.6, 3.3, "gradient steps on\nthe support set", fontsize=8, va="center")


def theory_figure(result: TheoryResult) -> Figure:
    """Gap against theorem 1's term, over tasks; curvature and gap by the number of support points."""
    middle = [row for row in result.rows if row.kappa == 30]
    smallest = min(row.shots for row in middle)
    figure = Figure(figsize=(10, 3.7))
    tasks, gaps, curvature = figure.subplots(1, 3)
    for method, (color, marker) in zip(dict.fromkeys(row.method for row in middle), METHOD_STYLES, strict=False):
        rows = [row for row in middle if row.method == method]
        at_smallest = next(row for row in rows if row.shots == smallest)
        shots = [row.shots for row in rows]
        tasks.plot(at_smallest.terms, at_smallest.gaps, marker, color=color, markersize=3.5, alpha=0.6)
        label = f"{display_name(method)} (rank correlation {rank_text(at_smallest)})"
        gaps.plot(shots, [row.gap for row in rows], marker=marker, color=color, label=label)
        curvature.plot(shots, [row.hessian_norm for row in rows], marker=marker, color=color)
    tasks.set(xlabel="theorem 1's term at $\\theta_{0t}$", ylabel="gap, $R - \\hat R$ (over M)")
    tasks.set_yscale("symlog", linthresh=1e-4)
    tasks.set_title(f"tasks with {smallest} support points")
    gaps.set(xlabel="support points n", ylabel="median gap (over M)", yscale="log", title="gap")
    curvature.set(xlabel="support points n", ylabel="$\\|\\nabla^2 L\\|$ of a point (over M), median over tasks")
    curvature.set_title("curvature at $\\theta_{0t}$, κ = 30")
    figure.legend(*gaps.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def rank_text(row: TaskRow) -> str:
    """The rank correlation of a row, or a dash."""
    return "–" if row.rank_theorem1 is None else f"{row.rank_theorem1:+.2f}"

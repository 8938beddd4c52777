"""The hierarchy in figures: the tree above a heat map of assignments, and the functions of each cluster."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes

from metagrove.evaluation.agreement import level_shares, node_name
from metagrove.learner import ClusterFunctions, Learner, Meta

BLUE, EDGE = "#0072B2", "#C8CDD2"
NUM_DRAWS = 6
"""Functions drawn from a cluster's prior."""
LEAST_GAP = 0.4
"""Smallest distance of two nodes of a level, in columns."""
LEAST_FLOW = 0.02
"""Smallest share of tasks for which an edge is drawn."""


def tree_and_heat_map(
    figure: Any, names: Sequence[str], assignments: Sequence[Sequence[np.ndarray]], functions: ClusterFunctions | None
) -> None:
    """Draw the tree, first-level clusters as columns below it, and the assignment of each task as a row.

    Args:
        figure: A figure or subfigure.
        names: Names of the tasks.
        assignments: Soft assignments of each task, level by level.
        functions: Prior over functions of each first-level cluster, if there is one; drawn between tree and heat map.
    """
    levels = [np.stack(each) for each in zip(*assignments, strict=True)]
    order = column_order(levels)
    heights = [0.24 * len(levels), *([] if functions is None else [0.6]), 0.3 * len(names)]
    grid = figure.add_gridspec(len(heights), len(order), height_ratios=heights, hspace=0.02)
    draw_tree(figure.add_subplot(grid[0, :]), levels, order)
    if functions is not None:
        draw_functions([figure.add_subplot(grid[1, position]) for position in range(len(order))], functions, order)
    heat_map(figure.add_subplot(grid[-1, :]), names, level_shares(levels)[0][:, order], order)


def column_order(levels: Sequence[np.ndarray]) -> list[int]:
    """First-level clusters in an order in which edges do not cross: below each node, those of the first tasks first."""
    shares = level_shares(levels)
    rows = np.arange(len(shares[0]))[:, None]
    positions = [(rows * share).sum(0) / np.maximum(share.sum(0), 1e-9) for share in shares]
    paths = [[k] for k in range(len(positions[0]))]
    for level in levels[1:]:
        parent = level.mean(0).argmax(1)
        for path in paths:
            path.append(int(parent[path[-1]]))
    keys = [
        [(float(position[node]), node) for position, node in zip(positions, path, strict=True)][::-1] for path in paths
    ]
    return sorted(range(len(paths)), key=lambda k: keys[k])


def draw_tree(axes: Axes, levels: Sequence[np.ndarray], order: Sequence[int]) -> None:
    """Draw the root above the first level; an edge is as wide as the share that flows along it."""
    shares = level_shares(levels)
    across = [np.argsort(order).astype(float)]
    for level, (share, assignment) in enumerate(zip(shares, levels[1:], strict=False)):
        flow = np.einsum("nk,nkl->kl", share, assignment) / len(share)
        above = parent_positions(across[-1], flow)
        for k, to in zip(*np.nonzero(flow > LEAST_FLOW), strict=True):
            ends = (float(across[-1][k]), float(level)), (float(above[to]), level + 1.0)
            draw_edge(axes, *ends, 0.8 + 5 * float(flow[k, to]))
        across.append(above)
    for level, (positions, share) in enumerate(zip(across, shares, strict=True)):
        for k, position in enumerate(positions):
            size = 5 + 7 * np.sqrt(share[:, k].mean())
            axes.plot(
                position, level, "o", color=BLUE, markersize=size, markeredgecolor="white", zorder=3, clip_on=False
            )
            axes.annotate(
                node_name(level, k, len(shares)),
                (position, level),
                textcoords="offset points",
                xytext=(9, 3),
                fontsize=8,
            )
    axes.set(xlim=(-0.5, len(order) - 0.5), ylim=(-0.25, len(shares) - 0.75))
    axes.set_axis_off()


def draw_edge(axes: Axes, below: tuple[float, float], above: tuple[float, float], width: float) -> None:
    """Draw a smooth curve that leaves both nodes vertically."""
    t = np.linspace(0, 1, 40)
    x = below[0] + (above[0] - below[0]) * t**2 * (3 - 2 * t)
    axes.plot(x, below[1] + (above[1] - below[1]) * t, color=EDGE, linewidth=width, solid_capstyle="round")


def parent_positions(positions: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """Position of each parent: the centre of its main children, or equal distances if these coincide."""
    own = np.where(flow >= flow.max(1, keepdims=True), np.minimum(flow + 1e-6, 1e-3), 1e-9)
    above = (positions[:, None] * own).sum(0) / own.sum(0)
    apart = np.asarray(np.diff(np.sort(above)), np.float64)
    return above if (apart > LEAST_GAP).all() else (np.arange(len(above)) + 0.5) * len(positions) / len(above) - 0.5


def draw_functions(panels: Sequence[Axes], functions: ClusterFunctions, order: Sequence[int]) -> None:
    """Draw the mean, a band of two standard deviations and some functions of each cluster's prior."""
    x = functions.x[:, 0]
    for panel, k in zip(panels, order, strict=True):
        mean, std, draws = functions.mean[k, :, 0], functions.std[k, :, 0], functions.draws[k, :, :, 0]
        panel.fill_between(x, mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.12, linewidth=0)
        panel.plot(x, draws.T, color=BLUE, linewidth=0.9, alpha=0.75)
        panel.set(ylim=(min((mean - 2 * std).min(), draws.min()), max((mean + 2 * std).max(), draws.max())))
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)


def heat_map(axes: Axes, names: Sequence[str], shares: np.ndarray, order: Sequence[int]) -> None:
    """Draw p^{0→k}, eq. (6), of each task as a heat map; shares below .005 have no number."""
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        text = f"{share:.2f}" if share >= 0.005 else ""
        axes.text(column, row, text, ha="center", va="center", color="white" if share > 0.6 else "black")
    axes.set_xticks(range(shares.shape[1]), [f"C{k + 1}" for k in order])
    axes.set_yticks(range(len(names)), list(names))
    axes.set_xticks(np.arange(1, shares.shape[1]) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, len(names)) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("share of each cluster")


def first_level_functions(learner: Learner, meta: Meta, x: np.ndarray) -> ClusterFunctions | None:
    """The prior over functions of each first-level cluster, of a learner whose clusters are such priors."""
    found = learner.cluster_functions(meta, x, num_draws=NUM_DRAWS, key=jax.random.key(0))
    return None if found is None else found[0]

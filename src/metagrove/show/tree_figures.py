"""The hierarchy in figures: the tree above a heat map of assignments, and the functions of each cluster."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes

from metagrove.evaluation.agreement import level_shares, node_name
from metagrove.learner import ClusterFunctions, Learner, Meta

BLUE, GREY = "#0072B2", "#999999"
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
    heights = [0.2 * len(levels), *([] if functions is None else [0.55]), 0.36 * len(names)]
    grid = figure.add_gridspec(len(heights), len(order), height_ratios=heights)
    draw_tree(figure.add_subplot(grid[0, :]), levels, order)
    if functions is not None:
        draw_functions([figure.add_subplot(grid[1, place]) for place in range(len(order))], functions, order)
    heat_map(figure.add_subplot(grid[-1, :]), names, level_shares(levels)[0][:, order], order)


def column_order(levels: Sequence[np.ndarray]) -> list[int]:
    """First-level clusters sorted by their strongest parents from the top down, so that edges do not cross."""
    num_clusters = levels[0].shape[2]
    paths = [[k] for k in range(num_clusters)]
    for level in levels[1:]:
        parent = level.mean(0).argmax(1)
        for path in paths:
            path.append(int(parent[path[-1]]))
    return sorted(range(num_clusters), key=lambda k: paths[k][::-1])


def draw_tree(axes: Axes, levels: Sequence[np.ndarray], order: Sequence[int]) -> None:
    """Draw the root above the first level; an edge is as wide as the share that flows along it."""
    shares = level_shares(levels)
    across = [np.argsort(order).astype(float)]
    for level, (share, assignment) in enumerate(zip(shares, levels[1:], strict=False)):
        flow = np.einsum("nk,nkl->kl", share, assignment) / len(share)
        above = places_above(across[-1], flow)
        for k, to in zip(*np.nonzero(flow > LEAST_FLOW), strict=True):
            axes.plot(
                [across[-1][k], above[to]], [level, level + 1], color=GREY, linewidth=0.6 + 8 * flow[k, to], alpha=0.6
            )
        across.append(above)
    for level, (places, share) in enumerate(zip(across, shares, strict=True)):
        for k, place in enumerate(places):
            size = 4 + 8 * np.sqrt(share[:, k].mean())
            axes.plot(place, level, "o", color=BLUE, markersize=size, markeredgecolor="white", zorder=3)
            axes.annotate(
                node_name(level, k, len(shares)), (place, level), textcoords="offset points", xytext=(8, 1), fontsize=8
            )
    axes.set(xlim=(-0.5, len(order) - 0.5), ylim=(-0.4, len(shares) - 0.6))
    axes.set_axis_off()


def places_above(places: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """The place of each parent: the mean of its children's by flow, or equal distances where these coincide."""
    weights = flow + 1e-9
    above = (places[:, None] * weights).sum(0) / weights.sum(0)
    apart = np.asarray(np.diff(np.sort(above)), np.float64)
    return above if (apart > LEAST_GAP).all() else (np.arange(len(above)) + 0.5) * len(places) / len(above) - 0.5


def draw_functions(panels: Sequence[Axes], functions: ClusterFunctions, order: Sequence[int]) -> None:
    """Draw the mean, a band of two standard deviations and some functions of each cluster's prior."""
    x = functions.x[:, 0]
    lowest, highest = (fn(functions.draws[..., 0]) for fn in (np.min, np.max))
    for panel, k in zip(panels, order, strict=True):
        mean, std = functions.mean[k, :, 0], functions.std[k, :, 0]
        panel.fill_between(x, mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.12, linewidth=0)
        panel.plot(x, functions.draws[k, :, :, 0].T, color=BLUE, linewidth=0.6, alpha=0.7)
        panel.plot(x, mean, color="black", linewidth=1)
        panel.set(ylim=(lowest, highest), xticks=[], yticks=[])
        panel.spines[:].set_visible(False)


def heat_map(axes: Axes, names: Sequence[str], shares: np.ndarray, order: Sequence[int]) -> None:
    """Draw p^{0→k}, eq. (6), of each task as a heat map."""
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        axes.text(column, row, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.55 else "black")
    axes.set_xticks(range(shares.shape[1]), [f"C{k + 1}" for k in order])
    axes.set_yticks(range(len(names)), list(names))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("share of each cluster")


def first_level_functions(learner: Learner, meta: Meta, x: np.ndarray) -> ClusterFunctions | None:
    """The prior over functions of each first-level cluster, of a learner whose clusters are such priors."""
    found = learner.cluster_functions(meta, x, num_draws=NUM_DRAWS, key=jax.random.key(0))
    return None if found is None else found[0]

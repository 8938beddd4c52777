"""Charts of the report about clusters: the tree, the assignments, the families of a cluster."""

import math
from collections.abc import Sequence

import numpy as np

from metagrove.evaluation.agreement import node_name
from metagrove.show.report_data import TaskResults
from metagrove.show.report_html import Html, join, number, percent, shade, table, tag
from metagrove.show.report_marks import COLORS, name_of_family
from metagrove.show.report_plot import anchor, short

NO_FLOW = 1e-4
"""Smallest share of tasks for which an edge of the tree is drawn."""


def tree(results: TaskResults) -> Html:
    """Draw the tree of clusters; node size is the share of tasks, edge width the share that flows along the edge."""
    shares = [level.mean(0) for level in results.shares]
    top, gap = 34, 104
    down = [top + gap * (len(shares) - 1 - level) for level in range(len(shares))]
    edges = [
        edge(k, to, float(flow[k, to]), flow.shape, (down[level], down[level + 1]))
        for level, flow in enumerate(results.flows)
        for k, to in np.ndindex(flow.shape)
        if flow[k, to] > NO_FLOW
    ]
    nodes = [
        node(node_name(level, k, len(shares)), share, (k + 0.5) / len(each), down[level], crowded=len(each) > 8)
        for level, each in enumerate(shares)
        for k, share in enumerate(each)
    ]
    sizes = " to ".join(str(len(each)) for each in shares)
    label = f"tree of clusters, {sizes}; shares are in the cards below"
    return tag("svg", *edges, *nodes, class_="tree", height=down[0] + 46, role="img", aria_label=label)


def edge(k: int, to: int, flow: float, shape: tuple[int, ...], down: tuple[int, int]) -> Html:
    """Draw the edge from a cluster to one of the next level."""
    ends = (k + 0.5) / shape[0], (to + 0.5) / shape[1]
    x1, x2 = (f"{short(100 * end)}%" for end in ends)
    width = short(0.6 + 14 * flow)
    return tag(
        "line", x1=x1, x2=x2, y1=down[0], y2=down[1], stroke_width=width, class_="edge" if flow > 0.01 else "edge faint"
    )


def node(name: str, share: float, across: float, y: int, *, crowded: bool) -> Html:
    """Draw a cluster."""
    x, r = f"{short(100 * across)}%", short(5 + (8 if crowded else 19) * math.sqrt(share))
    title = tag("title", f"{name}: {percent(share)} of tasks")
    below = y + float(r) + 14
    label = tag("tspan", name, class_="node-name")
    text = tag(
        "text", label, "" if crowded else f" {percent(share)}", x=x, y=short(below), class_=f"label {anchor(across)}"
    )
    ground = tag("circle", cx=x, cy=y, r=r, class_="node-ground")
    return tag("g", title, ground, tag("circle", cx=x, cy=y, r=r, class_="node", style=f"--share:{share:.2f}"), text)


def heat_map(results: TaskResults, chosen: Sequence[int]) -> Html:
    """Render p^{0→k}, eq. (6), one row per task, as a table, which is accessible and can be copied."""
    share = results.shares[0]
    head = ["task", *(node_name(0, k, len(results.shares)) for k in range(share.shape[1]))]
    several = len(np.unique(results.family)) > 1
    names = [name_of_family(c.family, c.name) if several else c.name for c in results.cases]
    rows = [[names[i], *map(heat_cell, share[i])] for i in chosen]
    return table(head, rows, class_="heat")


def heat_cell(share: float) -> Html:
    """Render a shaded cell."""
    return tag("span", f"{share:.2f}", **shade(share))


def describe(results: TaskResults, index: int, families: Sequence[str]) -> str:
    """Describe a task in one line: name, family, score and strongest cluster."""
    case = results.cases[index]
    parts = [case.name] if case.name.startswith(families[case.family]) else [case.name, families[case.family]]
    parts.append(f"{results.metric.name} {number(results.scores[index])}")
    if results.assignments:
        share = results.shares[0][index]
        parts.append(f"{node_name(0, int(share.argmax()), len(results.shares))} {percent(float(share.max()))}")
    return " · ".join(parts)


def composition(results: TaskResults, share: np.ndarray, families: Sequence[str]) -> Html | None:
    """Draw the families of a cluster as a stacked bar; None if there is only one family."""
    there = np.unique(results.family).tolist()
    if len(there) < 2 or share.sum() <= 0:
        return None
    parts = {f: float(share[results.family == f].sum() / share.sum()) for f in there}
    most = max(parts, key=lambda f: parts[f])
    bars, start = [], 0.0
    for f, part in parts.items():
        title = tag("title", f"{families[f]}: {percent(part)}")
        place = {"x": f"{short(100 * start)}%", "width": f"{short(100 * part)}%", "height": 8}
        bars.append(tag("rect", title, **place, class_=f"f{f % COLORS}"))
        start += part
    label = ", ".join(f"{families[f]} {percent(part)}" for f, part in parts.items() if part >= 0.005)
    said = f"mostly {families[most]} ({percent(parts[most])})" if parts[most] > 0.5 else "of several families"
    bar = tag("svg", *bars, class_="composition", height=8, role="img", aria_label=label)
    return join(bar, tag("p", said, class_="mostly"))

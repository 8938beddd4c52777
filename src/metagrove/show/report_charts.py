"""Charts of the report: training curve, comparison, tree of clusters, assignments, histogram."""

import math
from collections.abc import Sequence

import numpy as np

from metagrove.losses import Metric
from metagrove.show.report_data import Look
from metagrove.show.report_html import Html, join, number, percent, shade, table, tag, with_ci
from metagrove.show.report_plot import Axis, Frame, Number, anchor, axis, plot, short
from metagrove.show.report_rivals import Standing
from metagrove.training.records import BlockRecord, ValidationRecord

COLORS, SHAPES = 7, 5
"""Number of colours and shapes of families, which are then repeated."""
BINS = 36
"""Number of bins of the histogram."""
THINNED = 400
"""Maximum number of points of the loss curve."""


def training(records: Sequence[BlockRecord], metric: Metric, best_step: int) -> Html:
    """Draw the training loss and the validation score with its CI; an accuracy has a plot of its own."""
    at = np.array([r.step for r in records if "loss" in r.means], np.float64)
    loss = np.array([r.means["loss"] for r in records if "loss" in r.means], np.float64)
    checks = [(r.step, r.validation) for r in records if r.validation is not None]
    grown = [r.step for r in records if r.growth is not None]
    across = Axis(0.0, float(max(r.step for r in records)))
    if metric.higher_is_better:
        upper = curves(across, None, checks, grown, best_step, f"validation {metric.name}, %")
        lower = curves(across, thin(at, loss), [], grown, best_step, "training loss")
        return join(keyed(upper, f"validation {metric.name}, %"), keyed(lower, "training loss"))
    return curves(across, thin(at, loss), checks, grown, best_step, f"training loss and validation {metric.name}")


def keyed(chart: Html, title: str) -> Html:
    """Render a plot with its title."""
    return tag("div", tag("p", title, class_="plot-title"), chart)


def curves(
    across: Axis,
    loss: tuple[np.ndarray, np.ndarray] | None,
    checks: Sequence[tuple[int, ValidationRecord]],
    grown: Sequence[int],
    best_step: int,
    label: str,
) -> Html:
    """Draw one plot of the training section."""
    steps = np.array([step for step, _ in checks], np.float64)
    value = np.array([check.value for _, check in checks], np.float64)
    ci = np.array([check.ci95 for _, check in checks], np.float64)
    every = np.concatenate([value - ci, value + ci, [] if loss is None else loss[1]])
    positive = value[value > 0] if loss is None else np.concatenate([value[value > 0], loss[1][loss[1] > 0]])
    log = loss is not None and positive.size > 1 and bool(positive.max() > 5 * positive.min())
    frame = Frame(across, axis(positive if log else every, log=log), 300)
    marks = [growth_line(frame, step) for step in grown]
    if loss is not None:
        marks.append(frame.line(*loss, "loss"))
    if len(checks):
        marks += [frame.band(steps, value - ci, value + ci, "band"), frame.line(steps, value, "valid")]
        marks += [frame.dots([s for s in steps if s == best_step], value[steps == best_step], 5, "chosen")]
    return plot(frame, *marks, label=f"{label} over {across.high:,.0f} meta-steps")


def thin(at: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average a curve over equal intervals, to at most `THINNED` points."""
    stretches = np.array_split(np.arange(len(at)), min(THINNED, max(1, len(at))))
    return np.array([at[s].mean() for s in stretches]), np.array([values[s].mean() for s in stretches])


def growth_line(frame: Frame, step: int) -> Html:
    """Draw a growth event in the training curve."""
    x = frame.across(step)
    return tag("line", tag("title", f"grew at step {step:,}"), x1=x, x2=x, y1=0, y2=frame.height - 22, class_="growth")


def standings_chart(standings: Sequence[Standing], metric: Metric) -> Html:
    """Draw the mean and CI of each learner on one scale, with the paired difference of the first to it."""
    scale = standings_scale(standings, metric)
    rest = sorted(standings[1:], key=lambda s: -s.value if metric.higher_is_better else s.value)
    rows = [standing_row(one, scale, metric, first=one is standings[0]) for one in (standings[0], *rest)]
    note = tag("p", "The scale is logarithmic.", class_="plot-title") if scale.log else None
    return join(tag("ul", *rows, class_="standings"), note)


def standings_scale(standings: Sequence[Standing], metric: Metric) -> Axis:
    """Return the scale: from 0 for errors, logarithmic if one is more than ten times another."""
    ends = [e for s in standings for e in (s.value - s.ci95, s.value + s.ci95)]
    finite = [s.value for s in standings if math.isfinite(s.value)]
    if metric.higher_is_better:
        return axis(ends, pad=0.03)
    if finite and 0 < 10 * min(finite) < max(finite):
        return axis([e for e in ends if e > min(finite) / 4], finite, pad=0.03, log=True)
    return axis(ends, [0.0], pad=0.03)


def standing_row(one: Standing, scale: Axis, metric: Metric, *, first: bool) -> Html:
    """Render name, interval, value and verdict of one learner."""
    verdict = None if first else tag("span", verdict_text(one, metric), class_=f"verdict {one.verdict(metric)}")
    note = tag("small", one.note) if one.note else None
    return tag(
        "li",
        tag("span", one.name, note, class_="who"),
        tag("span", with_ci(one.value, one.ci95), class_="value"),
        interval(one, scale),
        verdict,
        class_="first" if first else None,
    )


def interval(one: Standing, scale: Axis) -> Html:
    """Draw a dot with an error bar."""
    if not (math.isfinite(one.value) and math.isfinite(one.ci95)):
        return tag("svg", height=20, role="img", aria_label=f"{one.name}: not finite")
    places = (scale.at(v) for v in (one.value - one.ci95, one.value, one.value + one.ci95))
    low, here, high = (f"{short(100 * min(max(place, 0), 1))}%" for place in places)
    base = tag("line", x1=0, x2="100%", y1=10, y2=10, class_="grid")
    whiskers = tag("line", x1=low, x2=high, y1=10, y2=10, class_="whisker")
    dot = tag("circle", cx=here, cy=10, r=5.5, class_="dot")
    label = f"{one.name}: {with_ci(one.value, one.ci95)}"
    return tag("svg", base, whiskers, dot, height=20, role="img", aria_label=label)


def verdict_text(one: Standing, metric: Metric) -> str:
    """Describe the paired difference."""
    if one.difference is None:
        return ""
    gap = with_ci(one.difference, one.difference_ci95, signed=True)
    words = {"better": "this run is better", "worse": "this run is worse", "unclear": "no clear difference"}
    return f"{words[one.verdict(metric)]}, {gap}"


def by_family(standings: Sequence[Standing], seen: Look, families: Sequence[str]) -> Html | None:
    """Render the means of all learners by family; None if there is only one family."""
    names = list(standings[0].by_family)
    if len(names) < 2:
        return None
    counts = {families[i]: int((seen.family == i).sum()) for i in np.unique(seen.family)}
    head = ["", *(join(name_of_family(families.index(name), name)) for name in names)]
    rows = [[s.name, *(number(s.by_family.get(name, math.nan)) for name in names)] for s in standings]
    return table(head, [*rows, ["test tasks", *(f"{counts[name]:,}" for name in names)]], class_="numbers")


def name_of_family(index: int, name: str) -> Html:
    """Render the name of a family with its marker."""
    return tag("span", swatch(index), name, class_="family")


def swatch(index: int) -> Html:
    """Render the marker of a family."""
    return tag("svg", marker(index, 7, 7, 5), class_="swatch", viewBox="0 0 14 14", aria_hidden="true")


def marker(index: int, x: Number, y: Number, r: Number, *children: Html, extra: str = "") -> Html:
    """Draw the marker of a family: a circle, triangle, square, diamond or inverted triangle in its colour."""
    kind = f"f{index % COLORS} m{index}{extra}"
    corners = {
        1: [(0, -1.15), (1.1, 0.8), (-1.1, 0.8)],
        2: [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
        3: [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        4: [(0, 1.15), (1.1, -0.8), (-1.1, -0.8)],
    }.get(index % SHAPES)
    if corners is None:
        return tag("circle", *children, cx=short(x), cy=short(y), r=r, class_=kind)
    points = " ".join(f"{short(x + r * dx)},{short(y + r * dy)}" for dx, dy in corners)
    return tag("polygon", *children, points=points, class_=kind)


def node_name(level: int, cluster: int, num_levels: int) -> str:
    """Return the name of a node: C1, C2, ... at the first level, D1, ... at the second; the last is the root."""
    return "root" if level == num_levels - 1 else f"{chr(ord('C') + level)}{cluster + 1}"


def tree(seen: Look) -> Html:
    """Draw the tree of clusters; node size is the share of tasks, edge width the share that flows along the edge."""
    shares = [level.mean(0) for level in seen.shares]
    top, gap = 34, 104
    down = [top + gap * (len(shares) - 1 - level) for level in range(len(shares))]
    edges = [
        edge(k, to, float(flow[k, to]), flow.shape, (down[level], down[level + 1]))
        for level, flow in enumerate(seen.flows)
        for k, to in np.ndindex(flow.shape)
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


def heat_map(seen: Look, chosen: Sequence[int]) -> Html:
    """Render p^{0→k}, eq. (6), one row per task, as a table, which is accessible and can be copied."""
    share = seen.shares[0]
    head = ["task", *(node_name(0, k, len(seen.shares)) for k in range(share.shape[1]))]
    rows = [[name_of_family(seen.cases[i].family, seen.cases[i].name), *map(heat_cell, share[i])] for i in chosen]
    return table(head, rows, class_="heat")


def heat_cell(share: float) -> Html:
    """Render a shaded cell."""
    return tag("span", f"{share:.2f}", **shade(share))


def describe(seen: Look, index: int, families: Sequence[str]) -> str:
    """Describe a task in one line: name, family, score and strongest cluster."""
    case = seen.cases[index]
    parts = [case.name] if case.name.startswith(families[case.family]) else [case.name, families[case.family]]
    parts.append(f"{seen.metric.name} {number(seen.scores[index])}")
    if seen.assignments:
        share = seen.shares[0][index]
        parts.append(f"{node_name(0, int(share.argmax()), len(seen.shares))} {percent(float(share.max()))}")
    return " · ".join(parts)


def composition(seen: Look, share: np.ndarray, families: Sequence[str]) -> Html | None:
    """Draw the families of a cluster as a stacked bar; None if there is only one family."""
    there = np.unique(seen.family).tolist()
    if len(there) < 2 or share.sum() <= 0:
        return None
    parts = {f: float(share[seen.family == f].sum() / share.sum()) for f in there}
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


def histogram(seen: Look) -> Html | None:
    """Draw a histogram of the scores of test tasks; None if fewer than twenty are finite."""
    values = seen.scores[np.isfinite(seen.scores)]
    log = not seen.metric.higher_is_better and bool((values > 0).all())
    if len(values) < 20 or values.min() == values.max():
        return None
    across = axis(values, log=log)
    counts, _ = np.histogram([across.at(v) for v in values], bins=BINS, range=(0, 1))
    frame = Frame(across, Axis(0, float(counts.max())), 120, above=6)
    top = [frame.down(float(count)) for count in counts]
    place = {"width": f"{short(100 / BINS - 0.4)}%", "class": "bar-of"}
    bars = [
        tag("rect", x=f"{short(100 * i / BINS)}%", y=short(y), height=short(frame.down(0) - y), **place)
        for i, y in enumerate(top)
    ]
    label = f"{seen.metric.name} of {len(values):,} test tasks, from {number(values.min())} to {number(values.max())}"
    return plot(frame, *bars, label=label, ticks=(5, 0))


def legend(entries: Sequence[tuple[Html, str]], families: Sequence[int] | None = None) -> Html:
    """Render a legend; entries of families can be hovered over."""
    one_alone = {} if families is None else {"tabindex": 0}
    numbers = range(len(entries)) if families is None else families
    items = [
        tag("li", mark, text, class_=f"k{i}", **one_alone) for i, (mark, text) in zip(numbers, entries, strict=True)
    ]
    return tag("ul", *items, class_="legend")


def task_legend(kind: str, names: Sequence[str], *, truth: bool, spread: bool) -> Html | None:
    """Render the legend of the drawings of tasks; `names` are those of the compared runs."""
    if kind == "agreement":
        return legend([(dot_key(f"pair c{i}"), name) for i, name in enumerate(names)])
    if kind != "curve":
        return None
    fits = [(line_key(f"fit fit{i}"), name) for i, name in enumerate(names)]
    known = [(line_key("truth"), "truth")] if truth else []
    band = [(line_key("band wide"), "± 2 standard deviations")] if spread else []
    points = [(dot_key("support"), "support"), (dot_key("query"), "query")]
    return legend([*points, *known, *fits, *band])


def line_key(class_: str) -> Html:
    """Render the line of a legend entry."""
    return tag("svg", tag("line", x1=1, x2=21, y1=7, y2=7, class_=class_), class_="swatch wide", aria_hidden="true")


def dot_key(class_: str) -> Html:
    """Render the dot of a legend entry."""
    dot = tag("g", tag("circle", cx=7, cy=7, r=4.5), class_=class_)
    return tag("svg", dot, class_="swatch", aria_hidden="true")

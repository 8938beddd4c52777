"""Chart of the report that compares learners: the mean of each with its interval, and the paired difference."""

import math
from collections.abc import Sequence

import numpy as np

from metagrove.losses import Metric
from metagrove.show.report_data import TaskResults
from metagrove.show.report_html import Html, join, number, table, tag, with_ci
from metagrove.show.report_marks import name_of_family
from metagrove.show.report_plot import Axis, anchor, axis, short, tick_text
from metagrove.show.report_rivals import Standing


def standings_chart(standings: Sequence[Standing], metric: Metric) -> Html:
    """Draw the mean and CI of each learner on one scale, with its paired difference to the first."""
    scale = standings_scale(standings, metric)
    rest = sorted(standings[1:], key=lambda s: -s.value if metric.higher_is_better else s.value)
    rows = [standing_row(one, scale, metric, first=one is standings[0]) for one in (standings[0], *rest)]
    return join(tag("ul", *rows, scale_row(scale, metric), class_="standings"))


def scale_row(scale: Axis, metric: Metric) -> Html:
    """Render the scale below the intervals."""
    ticks = [
        tag("text", tick_text(t), x=f"{short(100 * scale.at(t))}%", y=12, class_=f"tick {anchor(scale.at(t))}")
        for t in scale.ticks(4)
    ]
    unit = "accuracy, %" if metric.higher_is_better else metric.name
    said = tag("span", f"{unit}, logarithmic scale" if scale.log else unit, class_="verdict")
    return tag("li", tag("svg", *ticks, height=16, aria_hidden="true"), said, class_="scale")


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
    positions = (scale.at(v) for v in (one.value - one.ci95, one.value, one.value + one.ci95))
    low, here, high = (f"{short(100 * min(max(position, 0), 1))}%" for position in positions)
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


def by_family(standings: Sequence[Standing], results: TaskResults, families: Sequence[str]) -> Html | None:
    """Render the means of all learners by family; None if there is only one family."""
    names = list(standings[0].by_family)
    if len(names) < 2:
        return None
    counts = {families[i]: int((results.family == i).sum()) for i in np.unique(results.family)}
    head = ["", *(join(name_of_family(families.index(name), name)) for name in names)]
    rows = [[s.name, *(number(s.by_family.get(name, math.nan)) for name in names)] for s in standings]
    return table(head, [*rows, ["test tasks", *(f"{counts[name]:,}" for name in names)]], class_="numbers")

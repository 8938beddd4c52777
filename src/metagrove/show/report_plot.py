"""Responsive SVG plots: horizontal positions are in per cent, vertical positions in pixels.

Labels of the y axis are placed on their grid lines, which needs no margin on narrow screens. Colours are in the CSS.
"""

import dataclasses
import datetime
import math
from collections.abc import Sequence

import numpy as np

from metagrove.show.report_html import Html, minus, number, tag

Number = int | float
Numbers = Sequence[Number] | np.ndarray
WIDE = 1000
"""Horizontal units of the paths of curves."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """A range of values, mapped to 0 to 1."""

    low: Number
    high: Number
    log: bool = False
    dates: bool = False
    """Whether values are days since 1970."""

    def at(self, value: Number) -> Number:
        """Map a value to 0 to 1."""
        low, high, here = (self._scaled(v) for v in (self.low, self.high, value))
        return (here - low) / (high - low)

    def _scaled(self, value: Number) -> Number:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, count: int) -> list[Number]:
        """Return about `count` round values."""
        if count == 0:
            return []
        if self.log:
            return log_ticks(self.low, self.high, count)
        rough = (self.high - self.low) / count
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: Number, high: Number, count: int) -> list[Number]:
    """Return powers of ten, or multiples of 1, 2 and 5 for a short range."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 1.5 else (1,)
    ticks = [m * 10.0**p for p in powers for m in steps if low <= m * 10.0**p <= high]
    return ticks[:: max(1, round(len(ticks) / (count + 1)))]


def axis(*values: Numbers, pad: float = 0.04, log: bool = False) -> Axis:
    """Make an axis that contains all finite values, with padding."""
    every = np.concatenate([np.ravel(np.asarray(v, np.float64)) for v in values])
    every = every[np.isfinite(every) & ((every > 0) | (not log))]
    if every.size == 0:
        return Axis(1.0, 10.0, log) if log else Axis(0.0, 1.0)
    low, high = float(every.min()), float(every.max())
    if log:
        room = max((high / low) ** pad, 1.05)
        return Axis(low / room, high * room, log=True)
    room = pad * (high - low) or 0.5 * abs(high) or 1.0
    return Axis(low - room, high + room)


@dataclasses.dataclass(frozen=True)
class Frame:
    """Coordinates of a plot of a given height in pixels."""

    x: Axis
    y: Axis
    height: int
    above: int = 18
    below: int = 22
    """Pixels above the highest value, and below the lowest."""

    def across(self, value: Number) -> str:
        """Return the horizontal position in per cent."""
        return f"{short(100 * self.x.at(value))}%"

    def down(self, value: Number) -> Number:
        """Return the vertical position in pixels from the top."""
        return self.above + (1 - self.y.at(value)) * (self.height - self.above - self.below)

    def line(self, xs: Numbers, ys: Numbers, class_: str) -> Html:
        """Draw a curve; values that are not finite leave a gap."""
        return self._stretched(path_of(self._points(xs, ys)), class_)

    def band(self, xs: np.ndarray, low: np.ndarray, high: np.ndarray, class_: str) -> Html:
        """Fill the area between two curves."""
        there, back = self._points(xs, high), self._points(xs[::-1], low[::-1])
        return self._stretched(path_of(there + back) + "z", class_)

    def dots(self, xs: Numbers, ys: Numbers, r: Number, class_: str) -> Html:
        """Draw points, in a group."""
        finite = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
        marks = [tag("circle", cx=self.across(x), cy=short(self.down(y)), r=r) for x, y in finite]
        return tag("g", *marks, class_=class_)

    def _points(self, xs: Numbers, ys: Numbers) -> list[tuple[Number, Number]]:
        far = 50 * self.height  # a fit may leave the plot by any distance
        return [
            (WIDE * self.x.at(float(x)), min(max(self.down(float(y)), -far), far) if math.isfinite(y) else math.nan)
            for x, y in zip(xs, ys, strict=True)
        ]

    def _stretched(self, d: str, class_: str) -> Html:
        path = tag("path", d=d, class_=class_)
        box = f"0 0 {WIDE} {self.height}"
        return tag("svg", path, viewBox=box, width="100%", height=self.height, preserveAspectRatio="none")

    def grid(self, x_ticks: Sequence[Number], y_ticks: Sequence[Number]) -> Html:
        """Draw horizontal grid lines with labels, the line of the x axis with ticks, and their labels."""
        across = [
            tag("line", x1=0, x2="100%", y1=short(self.down(t)), y2=short(self.down(t)), class_="grid") for t in y_ticks
        ]
        values = [tag("text", tick_text(t), x=0, y=short(self.down(t) - 4), class_="tick") for t in y_ticks]
        below = [
            tag(
                "text",
                tick_text(t, dates=self.x.dates),
                x=self.across(t),
                y=self.height - 5,
                class_=f"tick {anchor(self.x.at(t))}",
            )
            for t in x_ticks
        ]
        foot = self.height - self.below + 2
        marks = [
            tag("line", x1=self.across(t), x2=self.across(t), y1=foot, y2=foot + 4, class_="axis") for t in x_ticks
        ]
        line = [tag("line", x1=0, x2="100%", y1=foot, y2=foot, class_="axis")] if x_ticks else []
        return tag("g", *across, *line, *marks, *values, *below)


def plot(
    frame: Frame, *marks: Html | None, label: str, ticks: tuple[int, int] = (5, 4), axes: tuple[str, str] = ("", "")
) -> Html:
    """Render a plot; `label` is its text for screen readers, `axes` are the names of its axes with their units."""
    grid = frame.grid(frame.x.ticks(ticks[0]), frame.y.ticks(ticks[1]))
    drawn = tag("svg", grid, *marks, class_="plot", height=frame.height, role="img", aria_label=label)
    if not any(axes):
        return drawn
    return tag("div", tag("p", axes[1], class_="axis-y"), drawn, tag("p", axes[0], class_="axis-x"), class_="axes")


def path_of(points: Sequence[tuple[Number, Number]]) -> str:
    """Return an SVG path through the finite points."""
    parts, pen = [], "M"
    for x, y in points:
        if math.isfinite(y):
            parts.append(f"{pen}{short(x)} {short(y)}")
        pen = "L" if math.isfinite(y) else "M"
    return "".join(parts)


def short(value: Number) -> str:
    """Format a coordinate with one decimal."""
    return f"{value:.1f}".rstrip("0").rstrip(".") or "0"


def tick_text(value: Number, *, dates: bool = False) -> str:
    """Format the label of a tick."""
    if dates:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=round(value))).isoformat()
    for size, letter in ((1e9, "bn"), (1e6, "m"), (1e3, "k")):
        if size <= abs(value) < 1000 * size and abs(value) >= 1e4:
            return minus(f"{value / size:g}{letter}")
    return minus(f"{value:g}") if value == 0 or 1e-3 <= abs(value) < 1e6 else number(value, 1).removeprefix("1×")


def anchor(fraction: Number) -> str:
    """Return the alignment of a label, so that labels at the ends stay inside the plot."""
    return "first" if fraction < 0.06 else "last" if fraction > 0.94 else "middle"

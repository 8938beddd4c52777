"""Plots as SVG that fills whatever width it is given: places across are per cent, places down are pixels.

Labels of the y axis stand on their grid lines, so that no margin is lost on a narrow screen. Colours are the page's.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from metagrove.show.report_html import Html, minus, number, tag

Number = int | float
Numbers = Sequence[Number] | np.ndarray
WIDE = 1000
"""Units across in which curves are written."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """A range of values, from 0 to 1 on the page."""

    low: Number
    high: Number
    log: bool = False

    def at(self, value: Number) -> Number:
        """Where a value stands."""
        low, high, here = (self._scaled(v) for v in (self.low, self.high, value))
        return (here - low) / (high - low)

    def _scaled(self, value: Number) -> Number:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, count: int) -> list[Number]:
        """About so many round values."""
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
    """Powers of ten, or with few of them 1, 2 and 5 of each."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 1.5 else (1,)
    ticks = [m * 10.0**p for p in powers for m in steps if low <= m * 10.0**p <= high]
    return ticks[:: max(1, round(len(ticks) / (count + 1)))]


def axis(*values: Numbers, pad: float = 0.04, log: bool = False) -> Axis:
    """An axis that holds all finite values, with some room."""
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
    """Where values stand in a plot of so many pixels down."""

    x: Axis
    y: Axis
    height: int
    above: int = 18
    below: int = 22
    """Pixels above the highest value, and below the lowest."""

    def across(self, value: Number) -> str:
        """Per cent from the left."""
        return f"{short(100 * self.x.at(value))}%"

    def down(self, value: Number) -> Number:
        """Pixels from the top."""
        return self.above + (1 - self.y.at(value)) * (self.height - self.above - self.below)

    def line(self, xs: Numbers, ys: Numbers, class_: str) -> Html:
        """A curve; values that are not finite leave a gap."""
        return self._stretched(path_of(self._points(xs, ys)), class_)

    def band(self, xs: np.ndarray, low: np.ndarray, high: np.ndarray, class_: str) -> Html:
        """The area between two curves."""
        there, back = self._points(xs, high), self._points(xs[::-1], low[::-1])
        return self._stretched(path_of(there + back) + "z", class_)

    def dots(self, xs: Numbers, ys: Numbers, r: Number, class_: str) -> Html:
        """Round marks, in a group."""
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
        """Lines across with their values on them, and the x axis's values below."""
        across = [
            tag("line", x1=0, x2="100%", y1=short(self.down(t)), y2=short(self.down(t)), class_="grid") for t in y_ticks
        ]
        values = [tag("text", tick_text(t), x=0, y=short(self.down(t) - 4), class_="tick") for t in y_ticks]
        below = [
            tag("text", tick_text(t), x=self.across(t), y=self.height - 5, class_=f"tick {anchor(self.x.at(t))}")
            for t in x_ticks
        ]
        return tag("g", *across, *values, *below)


def plot(frame: Frame, *marks: Html | None, label: str, ticks: tuple[int, int] = (5, 4)) -> Html:
    """The whole plot; `label` is what a screen reader says of it."""
    grid = frame.grid(frame.x.ticks(ticks[0]), frame.y.ticks(ticks[1]))
    return tag("svg", grid, *marks, class_="plot", height=frame.height, role="img", aria_label=label)


def path_of(points: Sequence[tuple[Number, Number]]) -> str:
    """An SVG path through the points that are finite."""
    parts, pen = [], "M"
    for x, y in points:
        if math.isfinite(y):
            parts.append(f"{pen}{short(x)} {short(y)}")
        pen = "L" if math.isfinite(y) else "M"
    return "".join(parts)


def short(value: Number) -> str:
    """A coordinate with as few digits as the eye needs."""
    return f"{value:.1f}".rstrip("0").rstrip(".") or "0"


def tick_text(value: Number) -> str:
    """A round number in few letters."""
    for size, letter in ((1e9, "bn"), (1e6, "m"), (1e3, "k")):
        if size <= abs(value) < 1000 * size and abs(value) >= 1e4:
            return minus(f"{value / size:g}{letter}")
    return minus(f"{value:g}") if value == 0 or 1e-3 <= abs(value) < 1e6 else number(value, 1).removeprefix("1×")


def anchor(fraction: Number) -> str:
    """Labels at an end of the axis stay inside it."""
    return "first" if fraction < 0.06 else "last" if fraction > 0.94 else "middle"

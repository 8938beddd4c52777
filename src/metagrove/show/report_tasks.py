"""Drawings of single tasks: fitted curves, predicted against true values, confusion matrices, or images."""

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from metagrove.serve.run import Run
from metagrove.show.report_data import Fit
from metagrove.show.report_html import PERCENT, Html, join, number, percent, scrolling, shade, tag
from metagrove.show.report_plot import Axis, Frame, axis, plot
from metagrove.sources.source import Source
from metagrove.task import Examples

GRID = 120
"""Number of points of a curve."""
LARGEST = 64
"""Maximum size of an image in pixels; larger ones are downscaled."""
SHOWN_QUERIES = 2
"""Number of query images per class."""


@dataclasses.dataclass(frozen=True)
class Units:
    """Names of inputs and targets, and the scaling of the net's values to the user's units."""

    x_name: str = "x"
    x_scale: tuple[float, float] = (0.0, 1.0)
    y_names: tuple[str, ...] = ("y",)
    y_scale: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    labels: tuple[str, ...] = ()
    x_dates: bool = False
    """Whether the input is a date, in days since 1970."""

    def x(self, values: Any) -> np.ndarray:
        """Convert inputs to the user's units."""
        return np.asarray(values, np.float64) * self.x_scale[1] + self.x_scale[0]

    def y(self, values: Any, target: int = 0) -> np.ndarray:
        """Convert the values of one target to the user's units."""
        mean, std = self.y_scale[target]
        return np.asarray(values, np.float64)[:, target] * std + mean


def units_of(source: Source) -> Units:
    """Return the units of a table's schema; other sources are not scaled."""
    schema, y_dim = source.schema, source.spec.y_dim
    if schema is None:
        names = ("y",) if y_dim == 1 else tuple(f"y{i + 1}" for i in range(y_dim))
        return Units(y_names=names, y_scale=((0.0, 1.0),) * y_dim, labels=tuple(f"class {i + 1}" for i in range(y_dim)))
    first = schema.inputs[0]
    targets = schema.targets
    return Units(
        first.name,
        (first.mean, first.std),
        tuple(t.name for t in targets),
        tuple((t.mean, t.std) for t in targets),
        tuple(schema.labels),
        first.kind == "date",
    )


@dataclasses.dataclass(frozen=True)
class Sketcher:
    """Draws tasks of one run, depending on the type of its inputs and targets."""

    run: Run
    units: Units

    @property
    def kind(self) -> str:
        """Type of drawing: images, classes, curve, or agreement (predicted against true values)."""
        spec = self.run.config.source.spec
        if len(spec.x_shape) == 3:
            return "images"
        if self.run.metric == "accuracy":
            return "classes"
        return "curve" if spec.x_shape == (1,) and spec.y_dim == 1 else "agreement"

    def small(self, fit: Fit) -> Html:
        """Draw a typical task of a cluster."""
        if self.kind == "images":
            return image_row(support_images(fit), fit.case.name)
        return self._draw(fit, 96, bare=True)

    def large(self, fit: Fit) -> Html:
        """Draw a task with its fit."""
        return self._draw(fit, 180, bare=False)

    def _draw(self, fit: Fit, height: int, *, bare: bool) -> Html:
        if self.kind == "images":
            return query_images(fit)
        if self.kind == "classes":
            return confusion(fit, self.units.labels)
        return (self._curve if self.kind == "curve" else self._agreement)(fit, height, bare)

    def _curve(self, fit: Fit, height: int, bare: bool) -> Html:
        support, query = real_rows(fit.task.support), real_rows(fit.task.query)
        inputs = np.concatenate([support[0], query[0]])
        x = np.linspace(inputs.min(), inputs.max(), GRID, dtype=np.float32)[:, None]
        across, units = self.units.x(x[:, 0]), self.units
        truth = truth_of(self.run, fit.case.key, x)
        predicted = units.y(fit.adapted.predict(x))
        known = [units.y(support[1]), units.y(query[1]), *([] if truth is None else [units.y(truth)])]
        frame = framed(
            dataclasses.replace(axis(across), dates=units.x_dates),
            within(axis(*known, pad=0.1), predicted),
            height,
            bare,
        )
        marks = [] if truth is None else [frame.line(across, units.y(truth), "truth")]
        marks += [std_band(frame, fit.adapted, x, across, units)]
        marks += [frame.line(across, units.y(o.predict(x)), f"fit fit{i + 1}") for i, o in enumerate(fit.others)]
        marks += [frame.line(across, predicted, "fit fit0")]
        marks += [frame.dots(units.x(query[0][:, 0]), known[1], 3, "query")]
        marks += [frame.dots(units.x(support[0][:, 0]), known[0], 4.5, "support")]
        label = f"{fit.case.name}: {len(support[0])} support points and the fitted curve"
        axes = ("", "") if bare else (units.x_name, units.y_names[0])
        few = 2 if units.x_dates else 3
        return plot(frame, *marks, label=label, ticks=(0, 0) if bare else (few, 3), axes=axes)

    def _agreement(self, fit: Fit, height: int, bare: bool) -> Html:
        x, y = real_rows(fit.task.query)
        predicted = fit.adapted.predict(x)
        single = len(self.units.y_names) == 1
        columns = range(predicted.shape[1])
        true = [self.units.y(y, t) if single else y[:, t] for t in columns]
        said = [self.units.y(predicted, t) if single else predicted[:, t] for t in columns]
        both = axis(*true, pad=0.1)
        frame = framed(both, within(both, np.concatenate(said)), height, bare)
        ends = [both.low, both.high]
        marks = [frame.dots(t, s, 3.5, f"pair c{i}") for i, (t, s) in enumerate(zip(true, said, strict=True))]
        label = f"{fit.case.name}: predicted against true values of {len(y)} query rows"
        what = self.units.y_names[0] if single else "standardised values"
        axes = ("", "") if bare else (f"true {what}", f"predicted {what}")
        ticks = (0, 0) if bare else (3, 3)
        return plot(frame, frame.line(ends, ends, "truth"), *marks, label=label, ticks=ticks, axes=axes)


def confusion(fit: Fit, names: Sequence[str]) -> Html:
    """Render the confusion matrix of query rows, with true classes in rows."""
    x, y = real_rows(fit.task.query)
    right, said = y.argmax(1), fit.adapted.classify(x)
    present = sorted({*right.tolist(), *said.tolist()})
    counts = {(i, j): int(((right == i) & (said == j)).sum()) for i in present for j in present}
    head = tag("tr", tag("td"), *(tag("th", names[j], scope="col") for j in present))
    rows = [
        tag("tr", tag("th", names[i], scope="row"), *(confusion_cell(i, j, counts) for j in present)) for i in present
    ]
    label = f"{fit.case.name}: confusion matrix, true classes in rows"
    return scrolling(tag("table", head, *rows, class_="confusion", aria_label=label))


def query_images(fit: Fit) -> Html:
    """Render a support image of each class, and below it query images of the same class."""
    x, y = real_rows(fit.task.query)
    chances = np.exp(fit.adapted.predict(x))
    right, said = y.argmax(1), chances.argmax(1)
    rows = [image_row(support_images(fit), f"{fit.case.name}, a support image of")]
    for turn in range(SHOWN_QUERIES):
        chosen = [int(of[turn]) for c in np.unique(right) if len(of := np.flatnonzero(right == c)) > turn]
        rows.append(
            tag("div", *(query_image(x[i], int(right[i]), int(said[i]), chances[i]) for i in chosen), class_="row")
        )
    return tag("div", *rows, class_="images")


def framed(across: Axis, up: Axis, height: int, bare: bool) -> Frame:
    """Make the frame of a plot: without tick labels if bare, otherwise with room for them on the left."""
    if bare:
        return Frame(across, up, height, above=6, below=6)
    return Frame(dataclasses.replace(across, low=across.low - 0.12 * (across.high - across.low)), up, height)


def real_rows(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets without padded rows."""
    real = np.asarray(examples.mask)
    return np.asarray(examples.x)[real], np.asarray(examples.y)[real]


def truth_of(run: Run, key: PRNGKeyArray, x: np.ndarray) -> np.ndarray | None:
    """Evaluate the true function of a task, if the source has it."""
    values = _curve(run.config.source, key, jnp.asarray(x))
    return None if values is None else np.asarray(values)


@eqx.filter_jit
def _curve(source: Source, key: PRNGKeyArray, x: Array) -> Array | None:
    return source.curve(key, x)


def band_name(adapted: Any, x: np.ndarray) -> str:
    """Name the band around a fit: its intervals, or without calibration the learner's own deviations; empty if none."""
    if adapted.interval(x) is not None:
        return "90 % interval"
    return "" if adapted.std(x) is None else "± 2 standard deviations"


def std_band(frame: Frame, adapted: Any, x: np.ndarray, across: np.ndarray, units: Units) -> Html | None:
    """Draw the band around a fit that `band_name` names."""
    if (ends := adapted.interval(x)) is not None:
        return frame.band(across, units.y(ends[0]), units.y(ends[1]), "band")
    std = adapted.std(x)
    if std is None:
        return None
    value = adapted.predict(x)
    return frame.band(across, units.y(value - 2 * std), units.y(value + 2 * std), "band")


def within(known: Axis, predicted: np.ndarray) -> Axis:
    """Extend an axis to contain the predictions, by at most half of its length."""
    finite = predicted[np.isfinite(predicted)]
    if finite.size == 0:
        return known
    room = 0.5 * (known.high - known.low)
    low = max(min(known.low, float(finite.min())), known.low - room)
    return Axis(low, min(max(known.high, float(finite.max())), known.high + room))


def confusion_cell(right: int, said: int, counts: dict[tuple[int, int], int]) -> Html:
    """Render a cell of the confusion matrix."""
    count = counts[right, said]
    if right != said:
        return tag("td", count or "", class_="wrong")
    return tag("td", count or "", **shade(count / max(1, max(counts.values()))))


def support_images(fit: Fit) -> list[np.ndarray]:
    """Return a support image of each class, in the order of labels."""
    x, y = real_rows(fit.task.support)
    return list(x[np.unique(y.argmax(1), return_index=True)[1]])


def image_row(images: Sequence[np.ndarray], whose: str) -> Html:
    """Render images in a row, one of each class."""
    return tag("div", *(image(one, f"{whose} class {i + 1}") for i, one in enumerate(images)), class_="row")


def query_image(x: np.ndarray, right: int, said: int, chances: np.ndarray) -> Html:
    """Render a query image, framed by whether its class was predicted correctly."""
    outcome = "right" if right == said else "wrong"
    text = f"class {right + 1}, predicted class {said + 1} with probability {percent(float(chances[said]))}"
    mark = tag("span", "✓" if outcome == "right" else f"✗ {said + 1}", class_="mark", aria_hidden="true")
    return tag("span", image(x, text), mark, class_=outcome)


def image(x: np.ndarray, text: str) -> Html:
    """Render an image as an embedded PNG."""
    from PIL import Image

    pixels = (np.clip(np.nan_to_num(x), 0, 1) * 255 + 0.5).astype(np.uint8)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    if max(image.size) > LARGEST:
        image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    return tag("img", src=f"data:image/png;base64,{data}", alt=text, title=text, width=image.width, height=image.height)


def card(sketcher: Sketcher, fit: Fit, caption: Html, *, small: bool = False) -> Html:
    """Render a drawing of a task with its caption."""
    drawn = sketcher.small(fit) if small else sketcher.large(fit)
    return tag("figure", drawn, tag("figcaption", caption), class_="task small" if small else "task")


def score_text(fit: Fit, metric: str) -> Html:
    """Format the score of a task."""
    return join(f"{number(fit.score)}{PERCENT}" if metric == "accuracy" else f"{metric} {number(fit.score, 2)}")

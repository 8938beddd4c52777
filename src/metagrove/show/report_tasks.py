"""Single tasks, small: a curve through its points, predictions against truth, who was taken for whom, or images."""

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
from metagrove.task import Examples

GRID = 120
"""Places at which a curve is drawn."""
LARGEST = 64
"""Pixels of an image's side; larger ones are made smaller."""
SHOWN_QUERIES = 2
"""Query images of each class."""


@dataclasses.dataclass(frozen=True)
class Units:
    """What inputs and targets are called, and how a net's numbers become a person's."""

    x_name: str = "x"
    x_scale: tuple[float, float] = (0.0, 1.0)
    y_names: tuple[str, ...] = ("y",)
    y_scale: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    labels: tuple[str, ...] = ()

    def x(self, values: Any) -> np.ndarray:
        """Inputs of one column."""
        return np.asarray(values, np.float64) * self.x_scale[1] + self.x_scale[0]

    def y(self, values: Any, target: int = 0) -> np.ndarray:
        """Values of a target, given those of all."""
        mean, sd = self.y_scale[target]
        return np.asarray(values, np.float64)[:, target] * sd + mean


def units_of(source: Any) -> Units:
    """Those of a table's schema; of any other source the numbers as they are."""
    schema, y_dim = getattr(source, "schema", None), source.spec.y_dim
    if schema is None:
        names = ("y",) if y_dim == 1 else tuple(f"y{i + 1}" for i in range(y_dim))
        return Units(y_names=names, y_scale=((0.0, 1.0),) * y_dim, labels=tuple(f"class {i + 1}" for i in range(y_dim)))
    first = schema.inputs[0]
    targets = schema.targets
    return Units(
        first.name,
        (first.mean, first.sd),
        tuple(t.name for t in targets),
        tuple((t.mean, t.sd) for t in targets),
        tuple(schema.labels),
    )


@dataclasses.dataclass(frozen=True)
class Sketcher:
    """Draws tasks of one run, the way that its inputs and targets ask for."""

    run: Run
    units: Units

    @property
    def kind(self) -> str:
        """images, classes, curve, or agreement (of predictions with truth)."""
        spec = self.run.config.source.spec
        if len(spec.x_shape) == 3:
            return "images"
        if self.run.metric == "accuracy":
            return "classes"
        return "curve" if spec.x_shape == (1,) and spec.y_dim == 1 else "agreement"

    def small(self, fit: Fit) -> Html:
        """A sketch of a cluster's typical task."""
        if self.kind == "images":
            return image_row(support_images(fit), fit.case.name)
        return self._draw(fit, 96, bare=True)

    def large(self, fit: Fit) -> Html:
        """A task with its fit."""
        return self._draw(fit, 180, bare=False)

    def _draw(self, fit: Fit, height: int, *, bare: bool) -> Html:
        if self.kind == "images":
            return query_images(fit)
        if self.kind == "classes":
            return confusion(fit, self.units.labels)
        return (self._curve if self.kind == "curve" else self._agreement)(fit, height, bare)

    def _curve(self, fit: Fit, height: int, bare: bool) -> Html:
        support, query = real_rows(fit.task.support), real_rows(fit.task.query)
        seen = np.concatenate([support[0], query[0]])
        x = np.linspace(seen.min(), seen.max(), GRID, dtype=np.float32)[:, None]
        across, units = self.units.x(x[:, 0]), self.units
        truth = truth_of(self.run, fit, x)
        predicted = units.y(fit.adapted.predict(x))
        known = [units.y(support[1]), units.y(query[1]), *([] if truth is None else [units.y(truth)])]
        frame = framed(axis(across), within(axis(*known, pad=0.1), predicted), height, bare)
        marks = [] if truth is None else [frame.line(across, units.y(truth), "truth")]
        marks += [spread_band(frame, fit.adapted, x, across, units)]
        marks += [frame.line(across, units.y(o.predict(x)), f"fit fit{i + 1}") for i, o in enumerate(fit.others)]
        marks += [frame.line(across, predicted, "fit fit0")]
        marks += [frame.dots(units.x(query[0][:, 0]), known[1], 3, "query")]
        marks += [frame.dots(units.x(support[0][:, 0]), known[0], 4.5, "support")]
        label = f"{fit.case.name}: {len(support[0])} support points and the fitted curve"
        return plot(frame, *marks, label=label, ticks=(0, 0) if bare else (3, 3))

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
        return plot(frame, frame.line(ends, ends, "truth"), *marks, label=label, ticks=(0, 0) if bare else (3, 3))


def confusion(fit: Fit, names: Sequence[str]) -> Html:
    """How many query rows of each class were taken for each: true ones down, predicted ones across."""
    x, y = real_rows(fit.task.query)
    right, said = y.argmax(1), fit.adapted.classify(x)
    present = sorted({*right.tolist(), *said.tolist()})
    counts = {(i, j): int(((right == i) & (said == j)).sum()) for i in present for j in present}
    head = tag("tr", tag("td"), *(tag("th", names[j], scope="col") for j in present))
    rows = [
        tag("tr", tag("th", names[i], scope="row"), *(confusion_cell(i, j, counts) for j in present)) for i in present
    ]
    label = f"{fit.case.name}: true classes down, predicted ones across"
    return scrolling(tag("table", head, *rows, class_="confusion", aria_label=label))


def query_images(fit: Fit) -> Html:
    """A support image of each class, and below it query images of the same class."""
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
    """A task's plot: without an axis's values if bare, otherwise some of the left is left to those of y."""
    if bare:
        return Frame(across, up, height, above=6, below=6)
    return Frame(Axis(across.low - 0.12 * (across.high - across.low), across.high), up, height)


def real_rows(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets without the padding."""
    real = np.asarray(examples.mask)
    return np.asarray(examples.x)[real], np.asarray(examples.y)[real]


def truth_of(run: Run, fit: Fit, x: np.ndarray) -> np.ndarray | None:
    """The function behind a task, where the source knows it."""
    source = run.config.source
    return np.asarray(_curve(source, fit.case.key, jnp.asarray(x))) if hasattr(source, "curve") else None


@eqx.filter_jit
def _curve(source: Any, key: PRNGKeyArray, x: Array) -> Array:
    return source.curve(key, x)


def spread_band(frame: Frame, adapted: Any, x: np.ndarray, across: np.ndarray, units: Units) -> Html | None:
    """Two standard deviations about a fit, of a learner that knows them."""
    sd = adapted.std(x)
    if sd is None:
        return None
    value = adapted.predict(x)
    return frame.band(across, units.y(value - 2 * sd), units.y(value + 2 * sd), "band")


def within(known: Axis, predicted: np.ndarray) -> Axis:
    """An axis of known values, longer by as much as predictions leave it, though by no more than half of itself."""
    finite = predicted[np.isfinite(predicted)]
    if finite.size == 0:
        return known
    room = 0.5 * (known.high - known.low)
    low = max(min(known.low, float(finite.min())), known.low - room)
    return Axis(low, min(max(known.high, float(finite.max())), known.high + room))


def confusion_cell(right: int, said: int, counts: dict[tuple[int, int], int]) -> Html:
    """How many rows of one class were taken for another."""
    count = counts[right, said]
    if right != said:
        return tag("td", count or "", class_="wrong")
    return tag("td", count or "", **shade(count / max(1, max(counts.values()))))


def support_images(fit: Fit) -> list[np.ndarray]:
    """A support image of each class, in the order of labels."""
    x, y = real_rows(fit.task.support)
    return list(x[np.unique(y.argmax(1), return_index=True)[1]])


def image_row(images: Sequence[np.ndarray], whose: str) -> Html:
    """Images side by side, one of each class."""
    return tag("div", *(image(one, f"{whose} class {i + 1}") for i, one in enumerate(images)), class_="row")


def query_image(x: np.ndarray, right: int, said: int, chances: np.ndarray) -> Html:
    """A query image, framed by whether it was told."""
    told = "right" if right == said else "wrong"
    text = f"class {right + 1}, taken for class {said + 1} with {percent(float(chances[said]))}"
    mark = tag("span", "✓" if told == "right" else f"✗ {said + 1}", class_="mark", aria_hidden="true")
    return tag("span", image(x, text), mark, class_=told)


def image(x: np.ndarray, text: str) -> Html:
    """One image as a PNG inside the page."""
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
    """A task with its name and what is worth saying of it."""
    drawn = sketcher.small(fit) if small else sketcher.large(fit)
    return tag("figure", drawn, tag("figcaption", caption), class_="task small" if small else "task")


def score_text(fit: Fit, metric: str) -> Html:
    """A task's score."""
    return join(f"{number(fit.score)}{PERCENT}" if metric == "accuracy" else f"{metric} {number(fit.score, 2)}")

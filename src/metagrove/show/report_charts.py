"""Charts of the report about scores: training curve, histogram, reliability of probabilities."""

from collections.abc import Sequence

import numpy as np

from metagrove.evaluation.row_scores import ReliabilityBin
from metagrove.losses import Metric
from metagrove.show.report_data import TaskResults
from metagrove.show.report_html import Html, join, number, tag
from metagrove.show.report_plot import Axis, Frame, axis, plot, short
from metagrove.training.records import BlockRecord, ValidationRecord

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
        return join(upper, lower)
    return curves(across, thin(at, loss), checks, grown, best_step, f"training loss and validation {metric.name}")


def fit(records: Sequence[BlockRecord]) -> Html:
    """Draw the loss of the fit that comes before the first meta-step."""
    fitted = [record for record in records if record.fitted]
    at, loss = (np.array(values, np.float64) for values in zip(*[(r.step, r.loss) for r in fitted], strict=True))
    frame = Frame(Axis(float(at[0]), 0.0), axis(loss), 300)
    return plot(frame, frame.line(at, loss, "loss"), label=f"loss of the fit over {-at[0]:,.0f} steps")


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
    return plot(frame, *marks, label=f"{label} over {across.high:,.0f} meta-steps", axes=("meta-step", label))


def thin(at: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average a curve over equal intervals, to at most `THINNED` points."""
    stretches = np.array_split(np.arange(len(at)), min(THINNED, max(1, len(at))))
    return np.array([at[s].mean() for s in stretches]), np.array([values[s].mean() for s in stretches])


def growth_line(frame: Frame, step: int) -> Html:
    """Draw a growth event in the training curve."""
    x = frame.across(step)
    return tag("line", tag("title", f"grew at step {step:,}"), x1=x, x2=x, y1=0, y2=frame.height - 22, class_="growth")


def histogram(results: TaskResults) -> Html | None:
    """Draw a histogram of the scores of test tasks; None if fewer than twenty are finite."""
    values = results.scores[np.isfinite(results.scores)]
    log = not results.metric.higher_is_better and bool((values > 0).all())
    if len(values) < 20 or values.min() == values.max():
        return None
    across = axis(values, log=log)
    counts, _ = np.histogram([across.at(v) for v in values], bins=BINS, range=(0, 1))
    frame = Frame(across, Axis(0, float(counts.max())), 150)
    top = [frame.down(float(count)) for count in counts]
    place = {"width": f"{short(100 / BINS - 0.4)}%", "class": "bar-of"}
    bars = [
        tag("rect", x=f"{short(100 * i / BINS)}%", y=short(y), height=short(frame.down(0) - y), **place)
        for i, y in enumerate(top)
    ]
    label = (
        f"{results.metric.name} of {len(values):,} test tasks, from {number(values.min())} to {number(values.max())}"
    )
    return plot(frame, *bars, label=label, ticks=(5, 3), axes=(results.metric.name, "test tasks"))


def reliability(bins: Sequence[ReliabilityBin]) -> Html:
    """Draw the share of predictions that are right against their probability; on the line they are equal."""
    low = 100 * min(min(b.probability, b.accuracy) for b in bins) - 3
    both = Axis(max(0.0, low), 100.0)
    frame = Frame(both, both, 240)
    most = max(b.rows for b in bins)
    dots = [
        frame.dots([100 * b.probability], [100 * b.accuracy], 3 + 6 * (b.rows / most) ** 0.5, "pair c0") for b in bins
    ]
    ends = [both.low, both.high]
    label = f"share of right predictions against their probability, {len(bins)} bins"
    axes = "probability of the predicted class, %", "predictions that are right, %"
    return plot(frame, frame.line(ends, ends, "truth"), *dots, label=label, axes=axes)

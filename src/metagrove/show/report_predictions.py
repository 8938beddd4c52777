"""Section of the report about single predictions: errors in the columns' units, intervals, recall, reliability."""

from metagrove.evaluation.row_scores import ClassScores, RowScores, TargetScores
from metagrove.show.report_charts import reliability
from metagrove.show.report_context import ReportContext, section
from metagrove.show.report_html import Html, number, plural, table, tag, with_ci
from metagrove.show.report_marks import dot_key, legend, line_key


def predictions(context: ReportContext) -> Html | None:
    """Render scores of single predictions; None for a run without columns and calibration."""
    rows = context.rows
    if rows is None:
        return None
    words = (
        f"{plural(rows.num_rows, 'prediction')} for {plural(rows.num_tasks, 'test task')}, from "
        f"{plural(rows.shots, 'support row')} each{by_whom(rows)}; every task weighs the same.{calibrated(rows)}"
    )
    if rows.classes is not None:
        return section("predictions", "Predictions", words, recall(rows.classes), *confidence(rows.classes))
    return section("predictions", "Predictions", words, target_table(rows.targets or {}), coverage_words(rows))


def by_whom(rows: RowScores) -> str:
    """Name the learner that predicts, if it is not the run's own."""
    return "" if rows.served is None else f", by {rows.served}, which this run serves"


def calibrated(rows: RowScores) -> str:
    """Describe the data that intervals or probabilities were calibrated on."""
    if rows.calibrated_on is None:
        return ""
    what = "Probabilities" if rows.classes is not None else "Intervals"
    return f" {what} were calibrated on {plural(rows.calibrated_on, 'validation task')}."


def target_table(targets: dict[str, TargetScores]) -> Html:
    """Render error, R² and intervals of each target in its units."""
    head = ["target", "RMSE", "R²", "coverage", "width"]
    rows = [[name, number(one.rmse), f"{one.r2:.3f}", *interval_cells(one)] for name, one in targets.items()]
    return table(head, rows, class_="numbers plain")


def interval_cells(one: TargetScores) -> list[str]:
    """Format coverage and width."""
    if one.interval is None:
        return ["–", "–"]
    return [f"{with_ci(100 * one.interval.coverage, 100 * one.interval.coverage_ci95)} %", number(one.interval.width)]


def coverage_words(rows: RowScores) -> Html | None:
    """Explain the columns."""
    words = (
        "RMSE is in the units of the target; R² is 1 − mean squared error / variance over all test rows. Coverage is "
        "the part of true values inside the 90 % intervals, with its 95 % confidence interval over tasks; width is "
        "their mean width, in the units of the target."
    )
    if rows.calibrated_on is None:
        words += " This run has no intervals: metagrove calibrate adds them."
    return tag("p", words, class_="aside")


def recall(classes: ClassScores) -> Html:
    """Render the recall of each class, and accuracies."""
    rows = [[name, f"{value:.1f} %", f"{classes.rows[name]:,}"] for name, value in classes.recall.items()]
    rows.append(["balanced accuracy", f"{classes.balanced_accuracy:.1f} %", f"{sum(classes.rows.values()):,}"])
    rows.append(["accuracy", f"{classes.accuracy:.1f} %", ""])
    return table(["class", "recall", "rows"], rows, class_="numbers plain")


def confidence(classes: ClassScores) -> list[Html]:
    """Render the calibration of probabilities."""
    words = (
        f"Calibration error {classes.calibration_error:.3f}, log loss {number(classes.log_loss)}. Of predictions with "
        "a probability of 80 %, 80 of 100 should be right: then points lie on the line. Their size is the number of "
        "predictions."
    )
    keys = [(dot_key("pair c0"), "predictions, by probability"), (line_key("truth"), "perfect calibration")]
    figure = tag("figure", reliability(classes.reliability), legend(keys))
    return [tag("h3", "Reliability of probabilities"), figure, tag("p", words, class_="aside")]

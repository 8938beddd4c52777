"""Sections of the report, in the order of the page; a section with nothing to show returns None."""

from collections.abc import Callable
from typing import Any

import numpy as np

from metagrove.evaluation.agreement import node_name
from metagrove.files import as_json
from metagrove.show import report_charts as charts
from metagrove.show.report_about import about
from metagrove.show.report_clusters import assignments, clusters, task_map
from metagrove.show.report_context import ReportContext, section
from metagrove.show.report_data import fit
from metagrove.show.report_html import Html, join, number, percent, plural, table, tag, with_ci
from metagrove.show.report_marks import dot_key, legend, line_key, task_legend
from metagrove.show.report_predictions import predictions
from metagrove.show.report_standings import by_family, standings_chart
from metagrove.show.report_tasks import band_name, card, score_text, truth_of

SHOWN = 4
"""Number of best, middle and worst tasks shown."""


def result(context: ReportContext) -> Html | None:
    """Render the comparison with other learners, overall and by family; None if there is neither."""
    metric = context.results.metric
    if len(context.standings) == 1 and len(context.standings[0].by_family) < 2:
        return None
    words = (
        f"Mean {metric.name} with its 95 % confidence interval. Differences are paired by task: the other "
        "minus this run. They are more precise than a comparison of two intervals."
    )
    detail = by_family(context.standings, context.results, context.families)
    heading = None if detail is None else tag("h3", f"Mean {metric.name} by family")
    chart = standings_chart(context.standings, metric)
    return section("result", "Result", words, chart, measured_how(context), heading, detail)


def measured_how(context: ReportContext) -> Html | None:
    """Describe the data of the baselines, if it differs from that of the other figures."""
    found = context.baselines
    if found is None or (found.num_draws * found.num_tasks, found.seed) == (context.num_tasks, context.seed):
        return None
    draws = f"Baselines were measured on {plural(found.num_draws, 'draw')} of each task, seed {found.seed}."
    return tag("p", draws, class_="aside")


def training(context: ReportContext) -> Html | None:
    """Render the training curve; None for a run without metrics.jsonl."""
    if not any("loss" in record.means for record in context.records):
        if not any(record.fitted for record in context.records):
            return None
        words = "The clusters were fitted before the first meta-step; the curve is -log p(task) in nats, a mean."
        return section("training", "Training", words, tag("figure", charts.fit(context.records)))
    metric, best = context.results.metric, context.run.about
    check = best["validation"]
    words = (
        f"The selected checkpoint is that of meta-step {best['step']:,}, the best on validation tasks: "
        f"{with_ci(check['value'], check['ci95'])} after {plural(check['steps'], 'inner step')}."
    )
    keys = [
        (line_key("loss"), "training loss"),
        (line_key("valid"), f"validation {metric.name} ± 95 % CI"),
    ]
    keys += [(dot_key("chosen"), "selected checkpoint")]
    keys += [(line_key("growth"), "growth")] if any(r.growth for r in context.records) else []
    chart = charts.training(context.records, metric, best["step"])
    return section("training", "Training", words, tag("figure", chart, legend(keys)))


def tasks(context: ReportContext) -> Html:
    """Render the best, middle and worst tasks with their fits."""
    order = context.results.best_first()
    shown = min(SHOWN, len(order) // 3 or 1)
    middle = (len(order) - shown) // 2
    groups = {
        "Best": order[:shown],
        "In the middle": order[middle : middle + shown],
        "Worst": order[::-1][:shown],
    }
    content = [
        tag("h3", title)
        + tag("div", *(task_card(context, int(i)) for i in chosen), class_=f"tasks {context.sketcher.kind}")
        for title, chosen in groups.items()
    ]
    spread = charts.histogram(context.results)
    every = (
        None
        if spread is None
        else tag(
            "figure", tag("figcaption", f"How the {context.results.metric.name} is distributed over test tasks"), spread
        )
    )
    return section("tasks", "Test tasks", task_words(context), every, drawn_how(context), *map(Html, content))


def drawn_how(context: ReportContext) -> Html | None:
    """Render the legend of the drawings of tasks."""
    run, kind = context.run, context.sketcher.kind
    targets = context.sketcher.units.y_names
    names = targets if kind == "agreement" else [one.name for one in context.standings[: 1 + len(context.others)]]
    band = band_name(fit(run, context.results, 0).adapted, np.zeros((1, 1), np.float32)) if kind == "curve" else ""
    known = truth_of(run, context.results.cases[0].key, np.zeros((1, 1), np.float32)) is not None
    return task_legend(kind, names, truth=known, band=band)


def task_words(context: ReportContext) -> str:
    """Explain the drawings of tasks."""
    how = {
        "curve": "Filled points are the support rows that the learner was given, rings the true values of query rows, "
        "which it was not; the curve is its prediction.",
        "agreement": "Predicted against true values of query rows; on the grey line they are equal.",
        "classes": "Confusion matrix of query rows: true classes in rows, predicted classes in columns.",
        "images": "First row: a support image of each class. Below, query images of the same class; a cross "
        "marks an error and the predicted class.",
    }
    tasks = plural(len(context.results.scores), "test task")
    return f"The best, middle and worst of {tasks}. {how[context.sketcher.kind]}"


def task_card(context: ReportContext, index: int) -> Html:
    """Render a task with its fit, its score and its strongest cluster."""
    one = fit(context.run, context.results, index, context.others)
    results = context.results
    where = None
    if results.assignments:
        share = results.shares[0][index]
        where = f" · {node_name(0, int(share.argmax()), len(results.shares))} {percent(float(share.max()))}"
    said = tag("div", score_text(one, results.metric.name), where, class_="score")
    return card(context.sketcher, one, join(context.name_of(one.case), said))


def growth(context: ReportContext) -> Html | None:
    """Render the growth events; None if there are none."""
    events = [(r.step, r.growth) for r in context.records if r.growth is not None]
    if not events:
        return None
    rows = [
        [f"{step:,}", " · ".join(map(str, event.clusters)), said(as_json(event.cause)), said(event.changed)]
        for step, event in events
    ]
    return section(
        "growth",
        "Growth",
        "Clusters added during training, and the cause.",
        table(["meta-step", "clusters after", "cause", "predictions changed"], rows, class_="events"),
    )


def said(value: Any) -> str:
    """Format JSON data as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {said(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(said, value))
    return number(value) if isinstance(value, float) else str(value)


SECTIONS: tuple[Callable[[ReportContext], Html | None], ...] = (
    result,
    predictions,
    training,
    clusters,
    assignments,
    task_map,
    tasks,
    growth,
    about,
)
"""Functions that render the sections, in the order of the page."""

"""Sections of the report, in the order of the page."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from metagrove.evaluation.baselines import Baselines
from metagrove.files import as_json
from metagrove.serve.index import TaskIndex
from metagrove.serve.run import Run
from metagrove.show import report_charts as charts
from metagrove.show.figures import label_of
from metagrove.show.report_about import about, facts
from metagrove.show.report_data import Look, fit, spread_out, typical
from metagrove.show.report_html import Html, join, number, percent, plural, table, tag, with_ci
from metagrove.show.report_map import only_style, points_of
from metagrove.show.report_map import task_map as draw_map
from metagrove.show.report_rivals import Standing
from metagrove.show.report_tasks import Sketcher, card, score_text, truth_of
from metagrove.training.records import BlockRecord

SKETCHES = 3
"""Number of typical tasks shown per cluster."""
ROWS = 32
"""Maximum number of tasks in the heat map."""
SHOWN = 4
"""Number of best, middle and worst tasks shown."""


@dataclasses.dataclass(frozen=True)
class ReportContext:
    """Data of a report."""

    run: Run
    others: tuple[Run, ...]
    seen: Look
    standings: tuple[Standing, ...]
    baselines: Baselines | None
    atlas: TaskIndex | None
    records: tuple[BlockRecord, ...]
    sketcher: Sketcher
    num_tasks: int
    seed: int

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the families."""
        return self.run.config.source.family_names

    @property
    def learner(self) -> str:
        """Name of the learner."""
        return label_of(self.run)


def section(name: str, title: str, words: Html | str, *content: Html | None) -> Html:
    """Render a section: a heading with an introduction, and its content."""
    intro = tag("div", tag("h2", title, id=f"{name}-title"), tag("p", words), class_="intro")
    return tag("section", intro, tag("div", *content, class_="content"), id=name, aria_labelledby=f"{name}-title")


def missing(text: str) -> Html:
    """Render a note in place of a figure that the run cannot have."""
    return tag("p", text, class_="missing")


def header(told: ReportContext) -> Html:
    """Render the name of the run and its main result."""
    top = tag("div", tag("span", "metagrove", class_="brand"), THEME_BUTTON, class_="bar")
    title = tag("h1", told.run.folder.name)
    return tag("header", top, title, facts(told), headline(told))


THEME_BUTTON = tag("button", "dark", id="theme", type="button", hidden=True, aria_label="switch between light and dark")


def headline(told: ReportContext) -> Html:
    """Render the score, and how it compares with the others."""
    own, metric = told.standings[0], told.seen.metric
    unit = "% accuracy" if metric.name == "accuracy" else metric.name
    better = "higher" if metric.higher_is_better else "lower"
    value, _, ci = with_ci(own.value, own.ci95).partition(" ± ")
    big = tag(
        "p",
        tag("span", value, class_="big"),
        tag("span", f" ± {ci} " if ci else " ", class_="ci"),
        tag("span", unit, class_="unit"),
    )
    tasks = plural(len(told.seen.scores), "test task")
    note = tag(
        "p",
        f"Mean over {tasks} not used in training, ± 95 % confidence interval; {better} is better.{scale(told)}",
        class_="note",
    )
    return tag("div", big, tag("p", summary(told), class_="summary"), note, class_="headline", id="headline")


def scale(told: ReportContext) -> str:
    """Explain the scale of errors, if targets are standardised."""
    schema = told.run.config.source.schema
    if schema is None or schema.classifies:
        return ""
    units = ", ".join(f"{target.name}: {number(target.sd)}" for target in schema.targets)
    return f" Errors refer to standardised targets: 1 is one standard deviation over training tasks ({units})."


def summary(told: ReportContext) -> Html:
    """Summarise the comparison in one sentence."""
    metric, rivals = told.seen.metric, told.standings[1:]
    if not rivals:
        add = tag("code", "--compare-with RUN")
        return join("No other run to compare with; ", add, " adds one.")
    verdicts = {word: [r.short for r in rivals if r.verdict(metric) == word] for word in ("better", "worse", "unclear")}
    parts = [f"beats {listed(verdicts['better'])}"] if verdicts["better"] else []
    parts += [f"loses to {listed(verdicts['worse'])}"] if verdicts["worse"] else []
    parts += [f"does not differ significantly from {listed(verdicts['unclear'])}"] if verdicts["unclear"] else []
    return join(f"{told.standings[0].short} {listed(parts)} on the same tasks.")


def listed(names: list[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def result(told: ReportContext) -> Html:
    """Render the comparison with other learners, overall and by family."""
    metric = told.seen.metric
    words = (
        f"Mean {metric.name} with its 95 % confidence interval. Differences are paired by task: this run minus the "
        "other. They are more precise than a comparison of two intervals."
    )
    detail = charts.by_family(told.standings, told.seen, told.families)
    heading = None if detail is None else tag("h3", f"Mean {metric.name} by family")
    chart = charts.standings_chart(told.standings, metric)
    return section("result", "Result", words, chart, advice(told), heading, detail)


def advice(told: ReportContext) -> Html | None:
    """Render the recommendation that the baselines of the run give."""
    found = told.baselines
    if found is None:
        return None
    same = (found.num_draws * found.num_tasks, found.seed) == (told.num_tasks, told.seed)
    draws = f" Baselines were measured on {plural(found.num_draws, 'draw')} of each task, seed {found.seed}."
    return tag("p", found.advice, None if same else draws, class_="aside")


def training(told: ReportContext) -> Html:
    """Render the training curve."""
    if not any("loss" in record.means for record in told.records):
        return section(
            "training", "Training", "Loss and validation score.", missing("This run has no metrics.jsonl to draw.")
        )
    metric, best = told.seen.metric, told.run.about
    check = best["validation"]
    words = (
        f"The selected checkpoint is that of meta-step {best['step']:,}, the best on validation tasks: "
        f"{with_ci(check['value'], check['ci95'])} after {plural(check['steps'], 'inner step')}."
    )
    keys = [
        (charts.line_key("loss"), "training loss"),
        (charts.line_key("valid"), f"validation {metric.name} ± 95 % CI"),
    ]
    keys += [(charts.dot_key("chosen"), "selected checkpoint")]
    keys += [(charts.line_key("growth"), "growth")] if any(r.growth for r in told.records) else []
    chart = charts.training(told.records, metric, best["step"])
    return section("training", "Training", words, tag("figure", chart, charts.legend(keys)))


def no_clusters(told: ReportContext) -> Html:
    """Render a note in place of figures of clusters."""
    return missing(f"{told.learner} has no clusters, so there is nothing to show here.")


def clusters(told: ReportContext) -> Html:
    """Render the tree of clusters, and a card for each node."""
    if not told.seen.assignments:
        return section("clusters", "Clusters", "The learned hierarchy of tasks.", no_clusters(told))
    shares = told.seen.shares
    words = (
        "The size of a node is its share of test tasks, the width of an edge the share that flows along it. "
        "Typical tasks of a cluster are those closest to the mean embedding of its members."
    )
    cards = [
        tag("h3", "First level" if level == 0 else f"Level {level + 1}")
        + tag("div", *(cluster_card(told, level, k) for k in range(shares[level].shape[1])), class_="clusters")
        for level in range(len(shares) - 1)
    ]
    return section("clusters", "Clusters", words, tag("figure", charts.tree(told.seen)), *map(Html, cards))


def cluster_card(told: ReportContext, level: int, cluster: int) -> Html:
    """Render a node: its share, its families and its most typical tasks."""
    seen = told.seen
    share = seen.shares[level][:, cluster]
    name = charts.node_name(level, cluster, len(seen.shares))
    title = tag("h4", tag("span", name), tag("span", f"{percent(float(share.mean()))} of tasks", class_="share"))
    chosen = typical(seen, level, cluster, SKETCHES)
    sketches = [sketch(told, i) for i in chosen]
    body = tag("div", *sketches, class_="sketches") if sketches else missing("No task has its largest share here.")
    return tag("article", title, charts.composition(seen, share, told.families), body, class_="cluster")


def sketch(told: ReportContext, index: int) -> Html:
    """Render a small drawing of a typical task."""
    one = fit(told.run, told.seen, index)
    return card(told.sketcher, one, charts.name_of_family(one.case.family, one.case.name), small=True)


def assignments(told: ReportContext) -> Html:
    """Render the heat map of assignments."""
    title = "Assignments"
    if not told.seen.assignments:
        return section("assignments", title, "Soft assignment to clusters.", no_clusters(told))
    chosen = spread_out(told.seen, ROWS)
    words = (
        "Soft assignment of tasks to first-level clusters; a row sums to 1. "
        "Shown are the first test tasks of each family, sorted by their strongest cluster."
    )
    return section("assignments", title, words, charts.heat_map(told.seen, chosen), agreement(told))


def agreement(told: ReportContext) -> Html | None:
    """Describe the agreement of clusters and families."""
    found = told.seen.agreement
    if found is None:
        return None
    words = (
        f"Over all {len(told.seen.scores):,} tasks, clusters and families agree to {found.nmi:.2f} (normalised "
        "mutual information: 1 for identical partitions, 0 for independent ones). The mean share of a task's strongest "
        f"cluster is {percent(found.largest_share)}."
    )
    return tag("p", words, class_="aside")


def task_map(told: ReportContext) -> Html:
    """Render t-SNE of task embeddings."""
    seen = told.seen
    if seen.embeddings is None:
        words = missing(f"{told.learner} does not embed tasks, so there is no map.")
        return section("map", "Map of tasks", "Similarity of tasks.", words)
    points = points_of(seen, told.atlas, told.families)
    there = sorted({point.family for point in points})
    words = (
        f"t-SNE of the embeddings of {plural(len(points), 'task')}: similar tasks are close to each other; distances "
        "between groups have no meaning. Hover over a task for its name, over a family to highlight it."
    )
    hollow = " Hollow marks are training and validation tasks." if any(point.known for point in points) else ""
    keys = charts.legend([(charts.swatch(f), told.families[f]) for f in there], there)
    return section("map", "Map of tasks", words + hollow, only_style(there), tag("figure", draw_map(points), keys))


def tasks(told: ReportContext) -> Html:
    """Render the best, middle and worst tasks with their fits."""
    order = told.seen.best_first()
    shown = min(SHOWN, len(order) // 3 or 1)
    middle = (len(order) - shown) // 2
    groups = {
        "Best": order[:shown],
        "In the middle": order[middle : middle + shown],
        "Worst": order[::-1][:shown],
    }
    content = [
        tag("h3", title) + tag("div", *(task_card(told, int(i)) for i in chosen), class_=f"tasks {told.sketcher.kind}")
        for title, chosen in groups.items()
    ]
    spread = charts.histogram(told.seen)
    every = (
        None
        if spread is None
        else tag("figure", tag("figcaption", f"{told.seen.metric.name} of every test task"), spread)
    )
    return section("tasks", "Test tasks", task_words(told), every, drawn_how(told), *map(Html, content))


def drawn_how(told: ReportContext) -> Html | None:
    """Render the legend of the drawings of tasks."""
    run, kind = told.run, told.sketcher.kind
    targets = told.sketcher.units.y_names
    names = targets if kind == "agreement" else [one.name for one in told.standings[: 1 + len(told.others)]]
    spread = kind == "curve" and fit(run, told.seen, 0).adapted.std(np.zeros((1, 1))) is not None
    known = truth_of(run, told.seen.cases[0].key, np.zeros((1, 1), np.float32)) is not None
    return charts.task_legend(kind, names, truth=known, spread=spread)


def task_words(told: ReportContext) -> str:
    """Explain the drawings of tasks."""
    how = {
        "curve": "Filled points are the support set, rings the query set.",
        "agreement": "Predicted against true values of query rows; they are equal on the line.",
        "classes": "Confusion matrix of query rows: true classes in rows, predicted classes in columns.",
        "images": "First row: a support image of each class. Below, query images of the same class; a cross "
        "marks an error and the predicted class.",
    }
    tasks = plural(len(told.seen.scores), "test task")
    return f"The best, middle and worst of {tasks}. {how[told.sketcher.kind]}"


def task_card(told: ReportContext, index: int) -> Html:
    """Render a task with its fit, its score and its strongest cluster."""
    one = fit(told.run, told.seen, index, told.others)
    seen = told.seen
    where = None
    if seen.assignments:
        share = seen.shares[0][index]
        where = f" · {charts.node_name(0, int(share.argmax()), len(seen.shares))} {percent(float(share.max()))}"
    said = tag("div", score_text(one, seen.metric.name), where, class_="score")
    return card(told.sketcher, one, join(charts.name_of_family(one.case.family, one.case.name), said))


def growth(told: ReportContext) -> Html:
    """Render the growth events."""
    events = [(r.step, r.growth) for r in told.records if r.growth is not None]
    if not events:
        grown = (
            "The hierarchy did not grow in this run."
            if told.seen.assignments
            else f"{told.learner} has no hierarchy to grow."
        )
        return section("growth", "Growth", "Clusters added during training.", missing(grown))
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


SECTIONS: tuple[Callable[[ReportContext], Html], ...] = (
    result,
    training,
    clusters,
    assignments,
    task_map,
    tasks,
    growth,
    about,
)
"""Functions that render the sections, in the order of the page."""

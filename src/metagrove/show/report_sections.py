"""The report's sections, in the order of the page."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

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
from metagrove.show.report_tasks import Sketcher, card, score_text

SKETCHES = 3
"""Typical tasks of a cluster."""
ROWS = 32
"""Most tasks in the heat map."""
SHOWN = 4
"""Tasks shown of the best, and as many of the worst."""


@dataclasses.dataclass(frozen=True)
class ReportContext:
    """All that a report tells."""

    run: Run
    others: tuple[Run, ...]
    seen: Look
    standings: tuple[Standing, ...]
    baselines: dict[str, Any] | None
    atlas: TaskIndex | None
    records: tuple[dict[str, Any], ...]
    sketcher: Sketcher
    num_tasks: int
    seed: int

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the kinds of task."""
        return self.run.config.source.family_names

    @property
    def learner(self) -> str:
        """The method's name."""
        return label_of(self.run)


def section(name: str, title: str, words: Html | str, *content: Html | None) -> Html:
    """A heading with a few words, and beside or below them what they are about."""
    intro = tag("div", tag("h2", title, id=f"{name}-title"), tag("p", words), class_="intro")
    return tag("section", intro, tag("div", *content, class_="content"), id=name, aria_labelledby=f"{name}-title")


def missing(text: str) -> Html:
    """What stands in the place of a figure that this run cannot have."""
    return tag("p", text, class_="missing")


def header(told: ReportContext) -> Html:
    """The run's name, and the result at one glance."""
    top = tag("div", tag("span", "metagrove", class_="brand"), THEME_BUTTON, class_="bar")
    title = tag("h1", told.run.folder.name)
    return tag("header", top, title, facts(told), headline(told))


THEME_BUTTON = tag("button", "dark", id="theme", type="button", hidden=True, aria_label="switch between light and dark")


def headline(told: ReportContext) -> Html:
    """The score, large, and what it means beside the others."""
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
        f"Mean over {tasks} that it never trained on, ± 95 % confidence interval; {better} is better.{scale(told)}",
        class_="note",
    )
    return tag("div", big, tag("p", summary(told), class_="summary"), note, class_="headline", id="headline")


def scale(told: ReportContext) -> str:
    """What an error of 1 is, where targets were standardised."""
    schema = getattr(told.run.config.source, "schema", None)
    if schema is None or schema.classifies:
        return ""
    units = ", ".join(f"{target.name}: {number(target.sd)}" for target in schema.targets)
    return f" Errors are of standardised targets: 1 is a standard deviation over training tasks ({units})."


def summary(told: ReportContext) -> Html:
    """The verdict in a sentence."""
    metric, rivals = told.seen.metric, told.standings[1:]
    if not rivals:
        add = tag("code", "--beside RUN")
        return join("No other learner stands beside it; ", add, " sets one there and tells what the number is worth.")
    verdicts = {word: [r.short for r in rivals if r.verdict(metric) == word] for word in ("better", "worse", "unclear")}
    parts = [f"beats {listed(verdicts['better'])}"] if verdicts["better"] else []
    parts += [f"loses to {listed(verdicts['worse'])}"] if verdicts["worse"] else []
    parts += [f"cannot be told from {listed(verdicts['unclear'])}"] if verdicts["unclear"] else []
    return join(f"{told.standings[0].short} {listed(parts)} on the same tasks.")


def listed(names: list[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def result(told: ReportContext) -> Html:
    """Standings beside rivals, and by family."""
    metric = told.seen.metric
    words = (
        f"Mean {metric.name} with its 95 % interval. Differences are this run minus the other, taken task by task: "
        "sharper than two intervals apart."
    )
    detail = charts.by_family(told.standings, told.seen, told.families)
    heading = None if detail is None else tag("h3", f"Mean {metric.name} by family")
    chart = charts.standings_chart(told.standings, metric)
    return section("result", "Result", words, chart, advice(told), heading, detail)


def advice(told: ReportContext) -> Html | None:
    """What the yardsticks trained beside the run say of it."""
    found = told.baselines
    if found is None:
        return None
    same = (found["num_draws"] * found["num_tasks"], found["seed"]) == (told.num_tasks, told.seed)
    draws = f" Yardsticks were measured on {plural(found['num_draws'], 'draw')} of each task, seed {found['seed']}."
    return tag("p", found["advice"], None if same else draws, class_="aside")


def training(told: ReportContext) -> Html:
    """The training curve."""
    if not any("loss" in record for record in told.records):
        return section("training", "Training", "How it learned.", missing("This run has no metrics.jsonl to draw."))
    metric, best = told.seen.metric, told.run.about
    check = best["validation"]
    words = (
        f"The checkpoint in use is that of meta-step {best['step']:,}, the best on validation tasks: "
        f"{with_ci(check['value'], check['ci95'])} after {plural(check['steps'], 'inner step')}."
    )
    keys = [
        (charts.line_key("loss"), "training loss"),
        (charts.line_key("valid"), f"validation {metric.name} ± 95 % CI"),
    ]
    keys += [(charts.dot_key("chosen"), "checkpoint in use")]
    keys += [(charts.line_key("growth"), "the tree grew")] if any("growth" in r for r in told.records) else []
    chart = charts.training(told.records, metric, best["step"])
    return section("training", "Training", words, tag("figure", chart, charts.legend(keys)))


def no_clusters(told: ReportContext) -> Html:
    """Said in place of figures of clusters."""
    return missing(f"{told.learner} has no clusters: every task starts from what all have in common.")


def clusters(told: ReportContext) -> Html:
    """The tree, and a card for each node."""
    if not told.seen.assignments:
        return section("clusters", "Clusters", "Where tasks part ways.", no_clusters(told))
    shares = told.seen.shares
    words = (
        "From the root down: a node is as large as its share of test tasks, an edge as wide as what flows along it. "
        "A cluster's typical tasks are the ones nearest to the mean of those it holds most of."
    )
    cards = [
        tag("h3", "First level" if level == 0 else f"Level {level + 1}")
        + tag("div", *(cluster_card(told, level, k) for k in range(shares[level].shape[1])), class_="clusters")
        for level in range(len(shares) - 1)
    ]
    return section("clusters", "Clusters", words, tag("figure", charts.tree(told.seen)), *map(Html, cards))


def cluster_card(told: ReportContext, level: int, cluster: int) -> Html:
    """A node: its share, which families it holds, and its most typical tasks."""
    seen = told.seen
    share = seen.shares[level][:, cluster]
    name = charts.node_name(level, cluster, len(seen.shares))
    title = tag("h4", tag("span", name), tag("span", f"{percent(float(share.mean()))} of tasks", class_="share"))
    chosen = typical(seen, level, cluster, SKETCHES)
    sketches = [sketch(told, i) for i in chosen]
    body = tag("div", *sketches, class_="sketches") if sketches else missing("No task is in it more than in others.")
    return tag("article", title, charts.composition(seen, share, told.families), body, class_="cluster")


def sketch(told: ReportContext, index: int) -> Html:
    """A typical task, small."""
    one = fit(told.run, told.seen, index)
    return card(told.sketcher, one, charts.name_of_family(one.case.family, one.case.name), small=True)


def assignments(told: ReportContext) -> Html:
    """The heat map."""
    title = "Who belongs where"
    if not told.seen.assignments:
        return section("assignments", title, "Soft assignment to clusters.", no_clusters(told))
    chosen = spread_out(told.seen, ROWS)
    words = (
        "How far each task belongs to each first-level cluster; a row sums to 1. "
        "The first test tasks of each family, alike ones together."
    )
    return section("assignments", title, words, charts.heat_map(told.seen, chosen), agreement(told))


def agreement(told: ReportContext) -> Html | None:
    """How far clusters and families agree, in words."""
    found = told.seen.agreement
    if found is None:
        return None
    words = (
        f"Over all {len(told.seen.scores):,} tasks, clusters and families agree to {found['nmi']:.2f} (normalised "
        "mutual information: 1 is the same parting, 0 nothing in common). On average a task's strongest cluster "
        f"holds {percent(found['largest_share'])} of it."
    )
    return tag("p", words, class_="aside")


def task_map(told: ReportContext) -> Html:
    """t-SNE of embeddings."""
    seen = told.seen
    if seen.embeddings is None:
        words = missing(f"{told.learner} does not embed tasks, so there is no map to draw.")
        return section("map", "Map of tasks", "Which tasks it takes to be alike.", words)
    points = points_of(seen, told.atlas, told.families)
    there = sorted({point.family for point in points})
    words = (
        f"t-SNE of the embeddings of {plural(len(points), 'task')}: those that it takes to be alike lie near each "
        "other; distances between groups mean little. Point at a task for its name, at a family to see it alone."
    )
    hollow = " Hollow ones are training and validation tasks." if any(point.known for point in points) else ""
    keys = charts.legend([(charts.swatch(f), told.families[f]) for f in there], there)
    return section("map", "Map of tasks", words + hollow, only_style(there), tag("figure", draw_map(points), keys))


def tasks(told: ReportContext) -> Html:
    """Best, middling and worst tasks with their fits."""
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
    """The legend of the tasks' drawings."""
    run, kind = told.run, told.sketcher.kind
    targets = told.sketcher.units.y_names
    names = targets if kind == "agreement" else [one.name for one in told.standings[: 1 + len(told.others)]]
    spread = kind == "curve" and fit(run, told.seen, 0).adapted.std(np.zeros((1, 1))) is not None
    return charts.task_legend(kind, names, truth=hasattr(run.config.source, "curve"), spread=spread)


def task_words(told: ReportContext) -> str:
    """How a task's drawing is to be read."""
    how = {
        "curve": "Filled points are all that it was given; rings are what it was judged on.",
        "agreement": "Query rows: predicted values up, true ones across; on the line they are equal.",
        "classes": "Query rows: true classes down, predicted ones across; off the diagonal are mistakes.",
        "images": "First row: a support image of each class. Below, query images of the same class; a cross "
        "tells which class it was taken for.",
    }
    tasks = plural(len(told.seen.scores), "test task")
    return f"Out of {tasks}, the best, some in the middle and the worst. {how[told.sketcher.kind]}"


def task_card(told: ReportContext, index: int) -> Html:
    """A task with its fit, its score and its strongest cluster."""
    one = fit(told.run, told.seen, index, told.others)
    seen = told.seen
    where = None
    if seen.assignments:
        share = seen.shares[0][index]
        where = f" · {charts.node_name(0, int(share.argmax()), len(seen.shares))} {percent(float(share.max()))}"
    said = tag("div", score_text(one, seen.metric.name), where, class_="score")
    return card(told.sketcher, one, join(charts.name_of_family(one.case.family, one.case.name), said))


def growth(told: ReportContext) -> Html:
    """When the tree grew, and why."""
    events = [(r["step"], r["growth"]) for r in told.records if "growth" in r]
    if not events:
        grown = (
            "The tree did not grow in this run." if told.seen.assignments else f"{told.learner} has no tree to grow."
        )
        return section("growth", "Growth", "When the tree was given a cluster more.", missing(grown))
    rows = [
        [
            f"{step:,}",
            " · ".join(map(str, event.get("clusters", []))),
            said(event.get("cause")),
            said(event.get("changed")),
        ]
        for step, event in events
    ]
    return section(
        "growth",
        "Growth",
        "When the tree was given a cluster more, and what asked for it.",
        table(["meta-step", "clusters then", "cause", "changed"], rows, class_="events"),
    )


def said(value: Any) -> str:
    """Plain data in words."""
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
"""In the order of the page."""

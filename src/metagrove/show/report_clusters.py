"""Sections of the report about clusters: the tree with a card for each node, the assignments, the map of tasks."""

from metagrove.evaluation.agreement import node_name
from metagrove.show import report_tree as trees
from metagrove.show.report_context import ReportContext, section
from metagrove.show.report_data import fit, spread_out, typical
from metagrove.show.report_hierarchy import hierarchy_proof, prior_sketch
from metagrove.show.report_html import Html, percent, plural, tag
from metagrove.show.report_map import only_style, points_of
from metagrove.show.report_map import task_map as draw_map
from metagrove.show.report_marks import color_key, legend, shape_key, swatch
from metagrove.show.report_tasks import card

SKETCHES = 3
"""Number of typical tasks shown per cluster."""
ROWS = 32
"""Maximum number of tasks in the heat map."""


def clusters(context: ReportContext) -> Html | None:
    """Render the tree of clusters, and a card for each node; None for a learner without clusters."""
    if not context.results.assignments:
        return None
    shares = context.results.shares
    words = (
        "The size of a node is its share of test tasks, the width of an edge the share that flows along it. "
        "Typical tasks of a cluster are those closest to the mean embedding of its members; each is shown once."
        + sketch_axes(context)
    )
    cards, shown = [], set()
    for level in range(len(shares) - 1):
        each = []
        for k in range(shares[level].shape[1]):
            chosen = typical(context.results, level, k, SKETCHES, without=shown)
            shown |= set(chosen)
            each.append(cluster_card(context, level, k, chosen))
        title = tag("h3", "First level" if level == 0 else f"Level {level + 1}")
        cards.append(title + tag("div", *each, class_="clusters"))
    proof = hierarchy_proof(context.hierarchy, context.results.metric.name)
    return section("clusters", "Clusters", words, proof, tag("figure", trees.tree(context.results)), *map(Html, cards))


def sketch_axes(context: ReportContext) -> str:
    """Name the axes of the small drawings of tasks."""
    units = context.sketcher.units
    match context.sketcher.kind:
        case "curve":
            return f" In their drawings {units.x_name} runs to the right and {units.y_names[0]} upwards."
        case "agreement":
            return " In their drawings true values run to the right and predicted values upwards."
        case _:
            return ""


def cluster_card(context: ReportContext, level: int, cluster: int, chosen: list[int]) -> Html:
    """Render a node: its share, how its tasks differ, its families and its most typical tasks."""
    results = context.results
    share = results.shares[level][:, cluster]
    name = node_name(level, cluster, len(results.shares))
    title = tag("h4", tag("span", name), tag("span", f"{percent(float(share.mean()))} of tasks", class_="share"))
    sketches = [sketch(context, i) for i in chosen]
    body = tag("div", *sketches, class_="sketches") if sketches else empty("No test task has its largest share here.")
    words = cluster_words(context, level, cluster)
    told_apart = tag("p", words, class_="apart") if words else None
    prior = (
        None if context.functions is None else prior_sketch(context.sketcher, context.functions[level], cluster, name)
    )
    families = trees.composition(results, share, context.families)
    return tag("article", title, told_apart, families, prior, body, class_="cluster")


def cluster_words(context: ReportContext, level: int, cluster: int) -> str:
    """Describe what distinguishes the tasks of a cluster, in the columns of the tables; empty if it is not known."""
    described = () if context.index is None else context.index.clusters
    fits = level < len(described) and len(described[level]) == context.results.shares[level].shape[1]
    held = fits and described[level][cluster] != "0 tasks"
    return described[level][cluster] if held else ""


def empty(text: str) -> Html:
    """Render a note in place of drawings."""
    return tag("p", text, class_="missing")


def sketch(context: ReportContext, index: int) -> Html:
    """Render a small drawing of a typical task."""
    one = fit(context.run, context.results, index)
    return card(context.sketcher, one, context.name_of(one.case), small=True)


def assignments(context: ReportContext) -> Html | None:
    """Render the heat map of assignments; None for a learner without clusters."""
    title = "Assignments"
    if not context.results.assignments:
        return None
    chosen = spread_out(context.results, ROWS)
    words = (
        "Soft assignment of tasks to first-level clusters; a row sums to 1. "
        "Shown are the first test tasks of each family, sorted by their strongest cluster."
    )
    return section("assignments", title, words, trees.heat_map(context.results, chosen), agreement(context))


def agreement(context: ReportContext) -> Html | None:
    """Describe the agreement of clusters and families."""
    found = context.results.agreement
    if found is None:
        return None
    words = (
        f"Over all {len(context.results.scores):,} tasks, clusters and families agree to {found.nmi:.2f} (normalised "
        "mutual information: 1 for identical partitions, 0 for independent ones). The mean share of a task's strongest "
        f"cluster is {percent(found.largest_share)}."
    )
    return tag("p", words, class_="aside")


def task_map(context: ReportContext) -> Html | None:
    """Render t-SNE of task embeddings, coloured by cluster; None for a learner that does not embed tasks."""
    results = context.results
    if results.embeddings is None:
        return None
    points = points_of(results, context.index, context.families)
    families = sorted({point.family for point in points})
    colors = sorted({point.color for point in points})
    by_cluster = bool(results.assignments)
    what = "colour is the strongest cluster" if by_cluster else "colour is the family"
    words = (
        f"t-SNE of the embeddings of {plural(len(points), 'task')}: similar tasks are close to each other; both axes "
        f"and distances between groups have no meaning; {what}. Hover over a task for its name, over the legend to "
        "highlight."
    )
    hollow = " Hollow marks are training and validation tasks." if any(point.known for point in points) else ""
    names = [color_name(context, i) for i in colors] if by_cluster else [context.families[i] for i in colors]
    marks = [color_key(i) if by_cluster else swatch(i) for i in colors]
    keys = [legend(list(zip(marks, names, strict=True)), colors)]
    if by_cluster and len(families) > 1:
        keys.append(legend([(shape_key(f), context.families[f]) for f in families]))
    return section("map", "Map of tasks", words + hollow, only_style(colors), tag("figure", draw_map(points), *keys))


def color_name(context: ReportContext, cluster: int) -> str:
    """The name of a first-level cluster, and how its tasks differ."""
    name, words = node_name(0, cluster, len(context.results.shares)), cluster_words(context, 0, cluster)
    return f"{name}: {words}" if words else name

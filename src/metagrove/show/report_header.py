"""Top of the report: name, advice and main result."""

from metagrove.show.report_about import facts
from metagrove.show.report_context import ReportContext
from metagrove.show.report_html import Html, join, number, percent, plural, tag, with_ci


def header(context: ReportContext) -> Html:
    """Render the name of the run and its main result."""
    top = tag("div", tag("span", "metagrove", class_="brand"), THEME_BUTTON, class_="bar")
    title = tag("h1", context.run.folder.name)
    return tag("header", top, title, advice(context), facts(context), headline(context))


def advice(context: ReportContext) -> Html | None:
    """Render the recommended method, as the second line of the page, and the served one."""
    if context.baselines is None:
        return None
    serving = context.baselines.serving
    served = tag("p", serving[:1].upper() + serving[1:], class_="note") if serving else None
    return join(tag("p", context.baselines.advice, class_="advice"), served)


THEME_BUTTON = tag("button", "dark", id="theme", type="button", hidden=True, aria_label="switch between light and dark")


def headline(context: ReportContext) -> Html:
    """Render the score, and how it compares with the others."""
    own, metric = context.standings[0], context.results.metric
    unit = "% accuracy" if metric.name == "accuracy" else metric.name
    better = "higher" if metric.higher_is_better else "lower"
    value, _, ci = with_ci(own.value, own.ci95).partition(" ± ")
    big = tag(
        "p",
        tag("span", value, class_="big"),
        tag("span", f" ± {ci} " if ci else " ", class_="ci"),
        tag("span", unit, class_="unit"),
    )
    tasks = plural(len(context.results.scores), "test task")
    note = tag(
        "p",
        f"Mean over {tasks} not used in training, ± 95 % confidence interval; {better} is better.{scale(context)}",
        class_="note",
    )
    alone = len(context.standings) == 1
    parts = big, in_units(context), tag("p", summary(context), class_="note" if alone else "summary"), note
    return tag("div", *parts, class_="headline", id="headline")


def in_units(context: ReportContext) -> Html | None:
    """Render errors in the units of the targets and the coverage of intervals, or the balanced accuracy."""
    if context.rows is None:
        return None
    said = [
        f"{name}: RMSE {number(one.rmse)} in its units, R² {one.r2:.2f}"
        + ("" if one.interval is None else f", 90 % intervals cover {percent(one.interval.coverage)} of new rows")
        for name, one in (context.rows.targets or {}).items()
    ]
    if context.rows.classes is not None:
        said.append(f"balanced accuracy {context.rows.classes.balanced_accuracy:.1f} %")
    whose = "" if context.rows.served is None else f"As served, by {context.rows.served}: "
    return tag("p", whose, "; ".join(said), class_="units")


def scale(context: ReportContext) -> str:
    """Explain the scale of errors, if targets are standardised."""
    schema = context.run.config.source.schema
    if schema is None or schema.classifies:
        return ""
    units = ", ".join(f"{target.name}: {number(target.std)}" for target in schema.targets)
    return f" Errors refer to standardised targets: 1 is one standard deviation over training tasks ({units})."


def summary(context: ReportContext) -> Html:
    """Summarise the comparison in one sentence."""
    metric, rivals = context.results.metric, context.standings[1:]
    if not rivals:
        add = tag("code", "--compare-with RUN")
        return join("No other run to compare with; ", add, " adds one.")
    verdicts = {word: [r.short for r in rivals if r.verdict(metric) == word] for word in ("better", "worse", "unclear")}
    parts = [f"beats {listed(verdicts['better'])}"] if verdicts["better"] else []
    parts += [f"loses to {listed(verdicts['worse'])}"] if verdicts["worse"] else []
    parts += [f"does not differ significantly from {listed(verdicts['unclear'])}"] if verdicts["unclear"] else []
    return join(f"{context.standings[0].short} {listed(parts)} on the same tasks.")


def listed(names: list[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

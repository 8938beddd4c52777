"""Last section of the report: settings and provenance, everything needed to reproduce the run."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from metagrove.config.encoding import to_json
from metagrove.files import Json
from metagrove.learner import num_parameters
from metagrove.show.figures import label_of
from metagrove.show.report_html import Html, number, plural, tag
from metagrove.training import folders


def facts(context: Any) -> Html:
    """Describe the run in one line."""
    run = context.run
    families = [context.families[i] for i in sorted(set(context.results.family.tolist()))]
    parts = [label_of(run), *([", ".join(families)] if 1 < len(families) <= 6 else [])]
    parts += [f"{num_parameters(run.meta):,} parameters", plural(run.config.training.steps, "meta-step")]
    if schema := run.config.source.schema:
        parts.insert(1, f"{listed(schema.targets)} from {listed(schema.inputs)}")
    if seconds := run.about.get("seconds"):
        parts.append(f"{duration(seconds)} to the selected checkpoint")
    return tag("p", " · ".join(parts), class_="facts")


def listed(columns: Sequence[Any]) -> str:
    """List the names of a few columns, or their number."""
    return ", ".join(c.name for c in columns) if len(columns) <= 4 else f"{len(columns)} columns"


def duration(seconds: float) -> str:
    """Format a duration."""
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{number(seconds / size, 2)} {name}"
    return f"{number(seconds, 2)} s"


def about(context: Any) -> Html:
    """Render settings and provenance, collapsed."""
    run = context.run
    provenance = folders.read_run(run.folder / "run.json").provenance
    config = to_json(run.config)
    made = {
        "trained by": command(provenance.command or "a call from Python"),
        "this report": command(report_command(context)),
        "weights": tag("code", f"{run.about.get('weights')}, SHA-256 {run.about.get('sha256')}"),
        "hardware": provenance.hardware,
        "versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
    }
    parts = [fold(part, settings(config[part])) for part in ("source", "learner", "training")]
    intro = tag(
        "div",
        tag("h2", "Provenance", id="about-title"),
        tag("p", "Everything needed to reproduce this run."),
        class_="intro",
    )
    content = tag("div", listing(made), *parts, class_="content")
    return tag("section", intro, content, id="about", aria_labelledby="about-title")


def report_command(context: Any) -> str:
    """Return the command of this report, without local paths."""
    beside = ["--compare-with", *(other.folder.name for other in context.others)] if context.others else []
    how = ["--num-tasks", str(context.num_tasks), "--seed", str(context.seed)]
    return shlex.join(["metagrove", "report", context.run.folder.name, *beside, *how])


def command(text: str) -> Html:
    """Render a command that wraps between words only."""
    words = [part for word in text.split(" ") for part in (tag("span", word), " ")]
    return tag("code", *words[:-1], class_="command")


def settings(part: Json) -> dict[str, str]:
    """Flatten the settings of one part of the config, including nested ones."""
    found = {}
    for key, value in part.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": one for inner, one in settings(value).items()}
        elif isinstance(value, list | tuple) and any(isinstance(one, dict) for one in value):
            found |= {f"{key}.{one['name']}": column(one) for one in value}
        else:
            found[key] = (", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)) or "none"
    return found


def column(one: Json) -> str:
    """Describe a column of a table."""
    more = ", with an indicator of missing values" if one.get("indicator") else ""
    if one["kind"] == "category":
        return f"one of {', '.join(one['categories'])}{more}"
    what = "numeric" if one["kind"] == "number" else "date, in days since 1970"
    return f"{what}, mean {number(one['mean'])}, standard deviation {number(one['std'])}{more}"


def listing(pairs: Mapping[str, Html | str]) -> Html:
    """Render names and values as a definition list."""
    return tag("dl", *(part for key, value in pairs.items() for part in (tag("dt", key), tag("dd", value))))


def fold(title: str, pairs: Mapping[str, Html | str]) -> Html:
    """Render settings in a collapsible element."""
    return tag("details", tag("summary", f"{title} settings"), listing(pairs))

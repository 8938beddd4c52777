"""The end of the report: settings and provenance, all that it takes to make the same numbers again."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from metagrove import files
from metagrove.config.config import to_json
from metagrove.files import Json
from metagrove.learner import num_parameters
from metagrove.show.figures import label_of
from metagrove.show.report_html import Html, number, plural, tag


def facts(told: Any) -> Html:
    """What the run is, in a line."""
    run = told.run
    families = [told.families[i] for i in sorted(set(told.seen.family.tolist()))]
    parts = [label_of(run), *([", ".join(families)] if 1 < len(families) <= 6 else [])]
    parts += [f"{num_parameters(run.meta):,} parameters", plural(run.config.training.steps, "meta-step")]
    if schema := run.config.source.schema:
        parts.insert(1, f"{listed(schema.targets)} from {listed(schema.inputs)}")
    if seconds := run.about.get("seconds"):
        parts.append(f"{duration(seconds)} to the checkpoint in use")
    return tag("p", " · ".join(parts), class_="facts")


def listed(columns: Sequence[Any]) -> str:
    """Names of a few columns, or how many there are."""
    return ", ".join(c.name for c in columns) if len(columns) <= 4 else f"{len(columns)} columns"


def duration(seconds: float) -> str:
    """Time as people say it."""
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{number(seconds / size, 2)} {name}"
    return f"{number(seconds, 2)} s"


def about(told: Any) -> Html:
    """Settings and provenance, folded up."""
    run = told.run
    provenance = files.read_json(run.folder / "run.json")["provenance"]
    config = to_json(run.config)
    made = {
        "trained by": command(provenance.get("command") or "a call from Python"),
        "this report": command(report_command(told)),
        "weights": tag("code", f"{run.about.get('weights')}, SHA-256 {run.about.get('sha256')}"),
        "hardware": provenance.get("hardware", "not recorded"),
        "versions": ", ".join(f"{name} {version}" for name, version in provenance.get("versions", {}).items()),
    }
    parts = [fold(part, settings(config[part])) for part in ("source", "learner", "training")]
    intro = tag(
        "div",
        tag("h2", "Provenance", id="about-title"),
        tag("p", "What it takes to make the same numbers again."),
        class_="intro",
    )
    content = tag("div", listing(made), *parts, class_="content")
    return tag("section", intro, content, id="about", aria_labelledby="about-title")


def report_command(told: Any) -> str:
    """How this page was made, without the paths of the machine it was made on."""
    beside = ["--beside", *(other.folder.name for other in told.others)] if told.others else []
    how = ["--tasks", str(told.num_tasks), "--seed", str(told.seed)]
    return shlex.join(["metagrove", "report", told.run.folder.name, *beside, *how])


def command(text: str) -> Html:
    """A command, broken between its words alone."""
    words = [part for word in text.split(" ") for part in (tag("span", word), " ")]
    return tag("code", *words[:-1], class_="command")


def settings(part: Json) -> dict[str, str]:
    """Settings of one part, those of its net and of a table's columns among them."""
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
    """A table's column in words."""
    if one["kind"] == "number":
        return f"numbers, mean {number(one['mean'])}, standard deviation {number(one['sd'])}"
    return f"one of {', '.join(one['categories'])}"


def listing(pairs: Mapping[str, Html | str]) -> Html:
    """Names and values."""
    return tag("dl", *(part for key, value in pairs.items() for part in (tag("dt", key), tag("dd", value))))


def fold(title: str, pairs: Mapping[str, Html | str]) -> Html:
    """Settings that are opened when asked for."""
    return tag("details", tag("summary", f"{title} settings"), listing(pairs))

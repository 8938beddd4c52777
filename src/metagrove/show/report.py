"""HTML report of a run: one self-contained file. The same run gives the same bytes."""

import base64
import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

from metagrove.errors import InputError
from metagrove.evaluation.baselines import read_baselines
from metagrove.evaluation.hierarchy import measure_hierarchy
from metagrove.evaluation.row_scores import score_rows
from metagrove.files import save_error, write_atomically
from metagrove.serve.index import read_index
from metagrove.serve.run import Run
from metagrove.show.figures import FIT_STYLES
from metagrove.show.report_context import ReportContext
from metagrove.show.report_data import collect_results
from metagrove.show.report_header import header
from metagrove.show.report_hierarchy import node_functions
from metagrove.show.report_html import Html, tag
from metagrove.show.report_rivals import measured_before, refuse_unlike, standings
from metagrove.show.report_sections import SECTIONS
from metagrove.show.report_tasks import Sketcher, units_of
from metagrove.training import folders

TASKS = 1000
"""Default number of test tasks."""
NOTHING_ELSE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
"""Content security policy: the page loads nothing and runs no script but its own."""


def write_report(
    run: Run, others: Sequence[Run], out: str | Path, *, num_tasks: int | None = None, seed: int | None = None
) -> Path:
    """Evaluate a run on test tasks and write its report.

    Args:
        run: The run.
        others: Runs on the same source to compare with, at most three.
        out: Path of the HTML file.
        num_tasks: Number of test tasks; by default 1,000, or those that the baselines were measured on.
        seed: Random seed of the test tasks; by default 0, or that of the baselines.

    Returns:
        The path of the HTML file.

    Raises:
        InputError: If a run cannot be compared with the first one.
        RunError: If the file cannot be written.
    """
    run, out = run.alone(), Path(out)
    if out.is_dir():
        raise InputError(f"--out must be a file, {out} is a folder: try {out / 'report.html'}")
    if len(others) >= len(FIT_STYLES):
        raise InputError(f"at most {len(FIT_STYLES) - 1} runs can be compared with one, got {len(others)}")
    refuse_unlike(run, others)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise save_error(out.parent, error) from error
    write_atomically(out, page(collect_context(run, others, num_tasks=num_tasks, seed=seed)).encode())
    return out


def collect_context(run: Run, others: Sequence[Run], *, num_tasks: int | None, seed: int | None) -> ReportContext:
    """Collect the data of the report."""
    baselines = read_baselines(run.folder)
    usual = (TASKS, 0) if baselines is None else (baselines.num_draws * baselines.num_tasks, baselines.seed)
    which = {"num_tasks": usual[0] if num_tasks is None else num_tasks, "seed": usual[1] if seed is None else seed}
    results = collect_results(run, **which)
    beside = standings(run, results, others, **which)
    sketcher = Sketcher(run, units_of(run.config.source))
    return ReportContext(
        run=run,
        others=tuple(others),
        results=results,
        standings=(*beside, *([] if baselines is None else measured_before(baselines))),
        baselines=baselines,
        index=read_index(run.folder),
        records=tuple(folders.read_metrics(run.folder)),
        sketcher=sketcher,
        hierarchy=measure_hierarchy(run, **which),
        functions=node_functions(sketcher, results) if results.assignments else None,
        rows=score_rows(dataclasses.replace(run, serves=True)),
        **which,
    )


def page(context: ReportContext) -> str:
    """Render the page."""
    style, script = asset("report.css"), asset("report.js")
    allowed = NOTHING_ELSE.format(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=allowed),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"metagrove {importlib.metadata.version('metagrove')}"),
        tag("title", f"{context.run.folder.name}: report"),
        tag("style", Html(style)),
    )
    sections = [section(context) for section in SECTIONS]
    body = tag("body", header(context), tag("main", *sections), tag("script", Html(script)))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def asset(name: str) -> str:
    """Read a style sheet or script of the page."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")

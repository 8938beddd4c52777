"""Markdown tables from results/*.json, written between `<!-- table:NAME -->` and `<!-- end -->` in the documents.

python -m metagrove.paper.tables README.md docs/*.md
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from metagrove.files import Json, from_json
from metagrove.paper import image_tables, own_tables, stream_tables
from metagrove.paper.names import display_name
from metagrove.paper.results import ExperimentResult, RowResult

Cells = list[list[str]]
"""A table: its heading and its rows."""

RESULTS = Path("results")


def toy(result: ExperimentResult) -> Cells:
    """Error of each row of the experiment with HSML and MAML on functions."""
    heading = [
        "",
        "paper, 4,000 tasks",
        "here, 4,000 tasks ± CI",
        "here, 40,000 tasks ± CI",
        "mean of seeds ± std",
        "after 5 / 10 steps",
        "cluster NMI",
    ]
    rows = []
    for row in result.rows:
        many, few = row.chosen.evaluation, row.chosen.evaluation_4000
        std = f" ± {row.sd_over_seeds:.3f} ({len(row.seeds)})" if row.sd_over_seeds is not None else " (1)"
        rows.append(
            [
                row.label,
                row.paper or "",
                f"{few.value:.3f} ± {few.value_ci95:.3f}",
                f"{many.value:.3f} ± {many.value_ci95:.3f}",
                f"{row.mean_over_seeds:.3f}{std}",
                f"{many.by_step[5]:.3f} / {many.by_step[10]:.3f}",
                f"{many.clustering.nmi:.2f}" if many.clustering else "",
            ]
        )
    return [heading, *rows]


def by_family(result: ExperimentResult) -> Cells:
    """Error of each row by family of functions."""
    best = {row.label: row.chosen.evaluation for row in result.rows}
    families = next(iter(best.values())).by_family
    return [["", *families]] + [
        [label, *(f"{one.by_family[family].by_step[one.steps]:.3f}" for family in families)]
        for label, one in best.items()
    ]


def speed(result: Json) -> Cells:
    """Meta-steps per second, compile time and memory."""
    heading = ["", "meta-steps/s", "compile, s", "peak memory, MB"]
    return [heading] + [
        [r["what"], f"{r['steps_per_second']:.1f}", f"{r['compile_seconds']:.1f}", f"{r['peak_memory_mb']:.0f}"]
        for r in result["rows"]
    ]


def scale(result: Json) -> Cells:
    """Speed for larger meta-batches."""
    heading = ["", "tasks per meta-step", "meta-steps/s", "tasks/s", "peak memory, MB"]
    return [heading] + [
        [
            r["what"],
            f"{r['tasks']:,}",
            f"{r['steps_per_second']:.1f}",
            f"{r['steps_per_second'] * r['tasks']:,.0f}",
            f"{r['peak_memory_mb']:.0f}",
        ]
        for r in result["scale"]
    ]


def clusters(result: Json) -> Cells:
    """Validation error of short trainings that differ only in their clusters."""
    heading = ["clusters", "meta-steps", "validation error ± CI", "seeds"]
    return [heading] + [
        [r["clusters"], f"{r['meta_steps']:,}", f"{r['validation']['value']:.3f} ± {r['validation']['ci95']:.3f}", "1"]
        for r in result["rows"]
    ]


def image_statistics(result: Json) -> Cells:
    """Accuracy of runs on images, normalised by the query set (transductive) and by the support set."""
    ways = ("transductive", "support statistics")
    heading = ["run", "test tasks", *ways, "support statistics minus transductive"]
    rows = []
    for r in result["rows"]:
        values = (f"{r[way]['value']:.2f} ± {r[way]['value_ci95']:.2f}" for way in ways)
        paired = r["support statistics minus transductive"]
        difference = f"{paired['difference']:+.2f} ± {paired['ci95']:.2f}"
        rows.append([r["run"], f"{r['num_tasks']:,}", *values, difference])
    return [heading, *rows]


SHOTS = ("5-shot", "10-shot")


def table1(result: ExperimentResult) -> Cells:
    """Error of every method at 5 and 10 points with the paper's, and paired difference to HSML; lowest in bold."""
    heading = ["method"]
    for shots in SHOTS:
        heading += [f"{shots}, paper", f"{shots}, here ± CI", "minus HSML ± CI"]
    methods = by_method(result)
    lowest = [
        min(cells[shots].chosen.evaluation.value for cells in methods.values() if shots in cells) for shots in SHOTS
    ]
    rows = []
    for method, cells in methods.items():
        row = [method]
        for shots, low in zip(SHOTS, lowest, strict=True):
            row += table1_cells(cells[shots], low) if shots in cells else ["", "not trained yet", ""]
        rows.append(row)
    return [heading, *rows]


def table1_short(result: ExperimentResult) -> Cells:
    """Error at 5 points of the methods of the paper's table 1, of HSML-A, and of the neural process, for the README."""
    heading, *rows = table1(result)
    chosen = ("MAML", "Meta-SGD", "MT-Net", "MUMOMAML", "Neural process", "HSML", "HSML (ours)")
    return [heading[:4], *(row[:4] for row in rows if row[0] in chosen)]


def by_method(result: ExperimentResult) -> dict[str, dict[str, RowResult]]:
    """{method: {shots: row}}, the rows of HSML last."""
    methods: dict[str, dict[str, RowResult]] = {}
    for row in result.rows:
        method, shots = row.label.rsplit(", ", 1)
        methods.setdefault(method, {})[shots] = row
    return dict(sorted(methods.items(), key=lambda item: item[0].startswith("HSML")))


def table1_cells(row: RowResult, lowest: float) -> list[str]:
    """Format the paper's value, the value measured here, and the difference to HSML."""
    one, paired = row.chosen.evaluation, row.chosen.paired_difference
    value = f"{one.value:.3f} ± {one.value_ci95:.3f}"
    difference = "" if paired.ci95 == 0 else f"{paired.difference:+.3f} ± {paired.ci95:.3f}"
    return [row.paper or "", f"**{value}**" if one.value == lowest else value, difference]


def table1_by_family(result: ExperimentResult) -> Cells:
    """Error of every method by family, and its paired difference to HSML."""
    families = list(result.rows[0].chosen.evaluation.by_family)
    rows = []
    for method, cells in by_method(result).items():
        for shots, of_shots in cells.items():
            row, one = [f"{method}, {shots}"], of_shots.chosen
            for family in families:
                paired = one.paired_difference.by_family[family]
                difference = f" ({paired.difference:+.3f} ± {paired.ci95:.3f})" if paired.ci95 else ""
                row.append(f"{one.evaluation.by_family[family].by_step[one.evaluation.steps]:.3f}{difference}")
            rows.append(row)
    return [["", *families], *rows]


def table1_search(result: ExperimentResult) -> Cells:
    """Candidates of the search for each method, with the selected one in bold."""
    rows, seen = [], set()
    for row in result.rows:
        method = row.label.rsplit(", ", 1)[0]
        if row.search is None or method in seen:
            continue
        seen.add(method)
        if base := ", ".join(f"{name} {value}" for name, value in row.search.base.items()):
            method += f" ({base})"
        for index, one in enumerate(row.search.candidates):
            settings = ", ".join(f"{name} {value}" for name, value in one.settings.items()) or "default"
            scored = one.validation
            value = f"{scored.value:.3f} ± {scored.ci95:.3f}" if scored else "diverged"
            settings = f"**{settings}**" if index == row.search.chosen else settings
            rows.append(["" if index else method, settings, value])
    return [["method", "candidates (selected in bold)", "validation error ± CI"], *rows]


def table1_cost(result: ExperimentResult) -> Cells:
    """Training cost of each method."""
    heading = ["", "parameters", "inner steps: training / test", "meta-steps/s", "training, min", "peak memory, MB"]
    rows = []
    for row in result.rows:
        one = row.chosen
        steps = one.config["learner"].get("inner_steps", 0)
        rows.append(
            [
                row.label,
                f"{one.parameters:,}",
                f"{steps} / {one.evaluation.steps}",
                "" if one.steps_per_second is None else f"{one.steps_per_second:.0f}",
                f"{one.training_seconds / 60:.1f}",
                "" if one.peak_memory_mb is None else f"{one.peak_memory_mb:.0f}",
            ]
        )
    return [heading, *rows]


EXPERIMENT_TABLES: dict[str, tuple[str, Callable[[ExperimentResult], Cells]]] = {
    "toy": ("toy", toy),
    "toy-by-family": ("toy", by_family),
    "table1": ("table1", table1),
    "table1-short": ("table1", table1_short),
    "table1-by-family": ("table1", table1_by_family),
    "table1-search": ("table1", table1_search),
    "table1-cost": ("table1", table1_cost),
    "table2": ("table2-small-32", image_tables.accuracies),
    "table2-chosen": ("table2-small-32", image_tables.chosen),
    "table2-cost": ("table2-small-32", image_tables.costs),
    "table2-curves": ("table2-small-32", image_tables.curves),
    "each-alone": ("each-alone-small-32", image_tables.alone),
    "mini-imagenet": ("mini-imagenet-small-32", image_tables.accuracies),
    "continual-toy": ("continual-toy", stream_tables.errors),
    "continual-toy-growth": ("continual-toy", stream_tables.events),
    "continual-toy-transfer": ("continual-toy", stream_tables.transfers),
    "continual-images": ("continual-images-small-32", image_tables.accuracies),
    "continual-images-growth": ("continual-images-small-32", stream_tables.events),
    "continual-images-transfer": ("continual-images-small-32", stream_tables.transfers),
}
"""Tables of experiments run by `metagrove reproduce`: name of the result, and function that makes the table."""
BENCHMARK_TABLES: dict[str, tuple[str, Callable[[Json], Cells]]] = {
    "toy-clusters": ("toy-clusters", clusters),
    "full-protocol": ("full-protocol", image_tables.full_protocol),
    "gate-input": ("gate-input", image_tables.gate_input),
    "image-speed": ("benchmark-images", image_tables.speed),
    "image-speed-goals": ("benchmark-images", image_tables.speed_goals),
    "image-statistics": ("image-statistics", image_statistics),
    "image-trials": ("image-trials", image_tables.trials),
    "image-alarms": ("image-alarms", stream_tables.false_alarms),
    "growth-cost": ("benchmark-growth", stream_tables.cost),
    "false-alarms": ("false-alarms", stream_tables.false_alarms),
    "gapminder": ("gapminder", own_tables.gapminder),
    "gapminder-differences": ("gapminder", own_tables.gapminder_differences),
    "gapminder-search": ("gapminder", own_tables.gapminder_search),
    "own-speed": ("benchmark-own", own_tables.speed),
    "toy-speed": ("benchmark-toy", speed),
    "toy-scale": ("benchmark-toy", scale),
}
"""Tables of results written by the scripts in benchmarks/."""


def markdown(cells: Cells) -> str:
    """Format a table with display names, its first column left-aligned and the others right-aligned."""
    lines = [" | ".join(map(display_name, row)) for row in cells]
    lines.insert(1, " | ".join(["---", *["---:"] * (len(cells[0]) - 1)]))
    return "\n".join(f"| {line} |" for line in lines)


def cells_of(name: str, results: Path) -> Cells:
    """Make a table from its result."""
    if name in EXPERIMENT_TABLES:
        file, make = EXPERIMENT_TABLES[name]
        return make(from_json(ExperimentResult, read_result(results / f"{file}.json")))
    file, make_of_json = BENCHMARK_TABLES[name]
    return make_of_json(read_result(results / f"{file}.json"))


def read_result(path: Path) -> Json:
    """Read a result of any version, without checking its format and checksum."""
    return json.loads(path.read_text(encoding="utf-8"))


def fill_in(text: str, results: Path = RESULTS) -> str:
    """Regenerate every table of a document from the results."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table:{match[1]} -->\n{markdown(cells_of(match[1], results))}\n<!-- end -->"

    return re.sub(r"<!-- table:([\w-]+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(fill_in(path.read_text(encoding="utf-8")), encoding="utf-8")

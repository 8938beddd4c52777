"""Markdown tables from results/*.json, written between `<!-- table:NAME -->` and `<!-- end -->` in the documents.

python -m metagrove.paper.tables README.md docs/*.md
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from metagrove.files import Json, from_json
from metagrove.paper import (
    claims,
    hierarchy_tables,
    image_tables,
    method_tables,
    mini_imagenet_table,
    own_tables,
    scaling_tables,
    stream_tables,
    study_tables,
    table1,
)
from metagrove.paper.cells import error, with_ci
from metagrove.paper.names import display_name
from metagrove.paper.results import ExperimentResult, read_experiment, read_result
from metagrove.paper.study_tables import Study
from metagrove.paper.theory import tables as theory_tables
from metagrove.paper.theory.records import TheoryResult

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
        mean, std = row.mean_over_seeds, row.sd_over_seeds
        rows.append(
            [
                row.label,
                row.paper or "",
                with_ci(few.value, few.value_ci95),
                with_ci(many.value, many.value_ci95),
                f"{error(mean) if std is None else with_ci(mean, std)} ({len(row.seeds)})",
                f"{error(many.by_step[5])} / {error(many.by_step[10])}" if len(many.by_step) > 10 else "no inner steps",
                f"{many.clustering.nmi:.2f}" if many.clustering else "",
            ]
        )
    return [heading, *rows]


def by_family(result: ExperimentResult) -> Cells:
    """Error of each row by family of functions."""
    best = {row.label: row.chosen.evaluation for row in result.rows}
    families = next(iter(best.values())).by_family
    return [["", *families]] + [
        [label, *(error(one.by_family[family].by_step[one.steps]) for family in families)]
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


def faults(result: Json) -> Cells:
    """Faults of the fault-injection suite by kind, and how many of them lost data."""
    rows = [[r["what"], f"{r['faults']:,}", f"{r['lost']:,}"] for r in result["rows"]]
    total = [f"{sum(r[key] for r in result['rows']):,}" for key in ("faults", "lost")]
    seconds, memory = result["seconds"], result["peak_memory_mb"]
    last = f"total, in {seconds / 60:.0f} minutes with at most {memory:,.0f} MB per process"
    return [["fault", "tried", "lost"], *rows, [last, *total]]


def image_statistics(result: Json) -> Cells:
    """Accuracy of runs on images, normalised by the query set (transductive) and by the support set."""
    ways = ("transductive", "support statistics")
    heading = ["run", "test tasks", *ways, "support statistics minus transductive"]
    return [heading] + [
        [
            r["run"],
            f"{r['num_tasks']:,}",
            *(f"{r[way]['value']:.2f} ± {r[way]['value_ci95']:.2f}" for way in ways),
            "{difference:+.2f} ± {ci95:.2f}".format_map(r["support statistics minus transductive"]),
        ]
        for r in result["rows"]
    ]


EXPERIMENT_TABLES: dict[str, tuple[str, Callable[[ExperimentResult], Cells]]] = {
    "toy": ("toy", toy),
    "toy-by-family": ("toy", by_family),
    "hierarchy": ("toy", hierarchy_tables.errors),
    "hierarchy-measures": ("toy", hierarchy_tables.measures),
    "hierarchy-goals": ("toy", hierarchy_tables.goals),
    "table1": ("table1", table1.errors),
    "table1-short": ("table1", table1.short),
    "table1-by-family": ("table1", table1.by_family),
    "table1-search": ("table1", table1.search),
    "table1-cost": ("table1", table1.cost),
    "table2": ("table2-small-32", image_tables.accuracies),
    "table2-chosen": ("table2-small-32", image_tables.chosen),
    "table2-cost": ("table2-small-32", image_tables.costs),
    "table2-curves": ("table2-small-32", image_tables.curves),
    "each-alone": ("each-alone-small-32", image_tables.alone),
    "mini-imagenet-small": ("mini-imagenet-small-32", image_tables.accuracies),
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
    "faults": ("faults", faults),
    "grouped-errors": ("grouped-tables", own_tables.grouped_errors),
    "grouped-ratios": ("grouped-tables", own_tables.grouped_ratios),
    "grouped-ratios-short": ("grouped-tables", own_tables.grouped_ratios_short),
    "grouped-sets": ("grouped-tables", own_tables.grouped_sets),
    "gapminder": ("gapminder", own_tables.gapminder),
    "gapminder-differences": ("gapminder", own_tables.gapminder_differences),
    "gapminder-search": ("gapminder", own_tables.gapminder_search),
    "method-costs": ("benchmark-methods", method_tables.costs),
    "method-cost-goals": ("benchmark-methods", method_tables.cost_goals),
    "calibration": ("calibration", method_tables.calibration),
    "coverage": ("coverage", method_tables.coverage),
    "evidence-cost": ("benchmark-evidence", method_tables.evidence_cost),
    "own-speed": ("benchmark-own", own_tables.speed),
    "toy-speed": ("benchmark-toy", speed),
    "toy-scale": ("benchmark-toy", scale),
}
"""Tables of results written by the scripts in benchmarks/."""
BENCHMARKS = {
    "benchmark-methods": "benchmarks/methods.py",
    "faults": "tests/safety/faults.py --kills 1000",
}
"""Scripts whose result may be missing: they need an idle machine or an hour."""

STUDY_TABLES: dict[str, tuple[Study, Callable[[Study], Cells]]] = {
    "ablations": (Study("ablations"), study_tables.errors),
    "ablations-images": (Study("ablations-images", size=32), study_tables.accuracies),
    "cluster-numbers": (Study("cluster-numbers"), study_tables.clusters),
    "cluster-numbers-images": (Study("cluster-numbers-images", size=32), study_tables.clusters),
    "aggregators": (Study("aggregators"), study_tables.errors),
    "aggregators-images": (Study("aggregators-images", size=32), study_tables.accuracies),
    "leave-one-out": (Study("leave-one-out", size=32), study_tables.leave_one_out),
    "image-options": (Study("image-options", budget="trials", size=32), study_tables.options),
    "image-combination": (Study("image-combination", budget="small", size=32), study_tables.options),
    "each-alone-studies": (Study("each-alone", size=32), study_tables.accuracies),
    "table1-seeds": (Study("table1", budget="paper"), study_tables.table1_seeds),
    "table2-studies": (Study("table2", size=32), study_tables.accuracies),
    "continual-toy-return": (Study("continual-toy-return"), study_tables.streams),
    "continual-detectors": (Study("continual-detectors", budget="small"), study_tables.detectors),
    "continual-images-studies": (Study("continual-images", size=32), study_tables.accuracies),
    "longer": (Study("table2", size=32), study_tables.longer),
    "mini-imagenet": (Study("mini-imagenet", size=32), mini_imagenet_table.methods),
    "mini-imagenet-trials": (Study("mini-imagenet", size=32), mini_imagenet_table.trials),
}
"""Tables of experiments that show every row, including those that are not trained yet."""
THEORY_TABLES: dict[str, Callable[[TheoryResult], Cells]] = {
    "theory-risks": theory_tables.risks,
    "theory-bounds": theory_tables.bounds,
    "theory-curvature": theory_tables.curvature,
    "theory-gates": theory_tables.gates,
    "theory-convex": theory_tables.convex,
    "theory-softplus": theory_tables.softplus,
}
"""Tables of results/theory.json."""
SCALING_TABLES: dict[str, Callable[[Path], Cells]] = {
    "scaling-targets": scaling_tables.targets,
    "scaling-devices": scaling_tables.devices,
    "scaling-operations": scaling_tables.operations,
    "scaling-recomputing": scaling_tables.recomputing,
}
"""Tables of docs/scaling.md, including rows that are not measured yet."""
CLAIM_TABLES = {f"claims-{part}": part for part in claims.PARTS}
"""Tables of the paper's claims, by part of the paper."""


def markdown(cells: Cells) -> str:
    """Format a table with display names, its first column left-aligned and the others right-aligned."""
    lines = [" | ".join(map(display_name, row)) for row in cells]
    lines.insert(1, " | ".join(["---", *["---:"] * (len(cells[0]) - 1)]))
    return "\n".join(f"| {line} |" for line in lines)


def cells_of(name: str, results: Path) -> Cells:
    """Make a table from its result."""
    if name in EXPERIMENT_TABLES:
        file, make = EXPERIMENT_TABLES[name]
        return make(read_experiment(results / f"{file}.json"))
    if name in STUDY_TABLES:
        study, make_of_study = STUDY_TABLES[name]
        return make_of_study(study.read(results))
    if name in THEORY_TABLES:
        return THEORY_TABLES[name](from_json(TheoryResult, read_result(results / "theory.json")))
    if name in SCALING_TABLES:
        return SCALING_TABLES[name](results)
    if name in CLAIM_TABLES:
        return claims.table(CLAIM_TABLES[name], results)
    file, make_of_json = BENCHMARK_TABLES[name]
    if not (results / f"{file}.json").exists() and file in BENCHMARKS:
        return [["not measured yet"], [f"`python {BENCHMARKS[file]} --out results/{file}.json`"]]
    return make_of_json(read_result(results / f"{file}.json"))


def fill_in(text: str, results: Path = RESULTS) -> str:
    """Regenerate every table of a document from the results."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table:{match[1]} -->\n{markdown(cells_of(match[1], results))}\n<!-- end -->"

    return re.sub(r"<!-- table:([\w-]+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(fill_in(path.read_text(encoding="utf-8")), encoding="utf-8")

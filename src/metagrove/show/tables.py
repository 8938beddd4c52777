"""Markdown tables from results/*.json, written between `<!-- table:NAME -->` and `<!-- end -->` in the documents.

python -m metagrove.show.tables README.md docs/experiments.md
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path("results")


def chosen_seed(row: dict[str, Any]) -> dict[str, Any]:
    """The seed that did best on the validation tasks."""
    return min(row["seeds"], key=lambda one: one["checkpoint"]["validation"]["value"])


def toy(result: dict[str, Any]) -> list[list[str]]:
    """Error of each row of the toy experiment."""
    heading = [
        "",
        "paper, 4,000 tasks",
        "ours, 4,000 tasks ± CI",
        "ours, 40,000 tasks ± CI",
        "mean of seeds ± sd",
        "after 5 / 10 steps",
        "cluster NMI",
    ]
    rows = []
    for row in result["rows"]:
        best = chosen_seed(row)
        many, few = best["evaluation"], best["evaluation_4000"]
        spread = f" ± {row['sd_over_seeds']:.3f} ({len(row['seeds'])})" if row["sd_over_seeds"] is not None else " (1)"
        rows.append(
            [
                row["label"],
                row["paper"] or "",
                f"{few['value']:.3f} ± {few['value_ci95']:.3f}",
                f"{many['value']:.3f} ± {many['value_ci95']:.3f}",
                f"{row['mean_over_seeds']:.3f}{spread}",
                f"{many['by_step'][5]:.3f} / {many['by_step'][10]:.3f}",
                f"{many['clustering']['nmi']:.2f}" if many["clustering"] else "",
            ]
        )
    return [heading, *rows]


def by_family(result: dict[str, Any]) -> list[list[str]]:
    """The same by family of functions."""
    best = {row["label"]: chosen_seed(row)["evaluation"] for row in result["rows"]}
    families = next(iter(best.values()))["by_family"]
    return [["", *families]] + [
        [label, *(f"{one['by_family'][family]['by_step'][one['steps']]:.3f}" for family in families)]
        for label, one in best.items()
    ]


def speed(result: dict[str, Any]) -> list[list[str]]:
    """Meta-steps a second and what they cost."""
    heading = ["", "meta-steps/s", "compile, s", "peak memory, MB"]
    return [heading] + [
        [r["what"], f"{r['steps_per_second']:.1f}", f"{r['compile_seconds']:.1f}", f"{r['peak_memory_mb']:.0f}"]
        for r in result["rows"]
    ]


def scale(result: dict[str, Any]) -> list[list[str]]:
    """The same for more tasks a meta-step."""
    heading = ["", "tasks a meta-step", "meta-steps/s", "tasks/s", "peak memory, MB"]
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


def clusters(result: dict[str, Any]) -> list[list[str]]:
    """Validation error of short trainings that differ in their clusters alone."""
    heading = ["clusters", "meta-steps", "validation error ± CI", "seeds"]
    return [heading] + [
        [r["clusters"], f"{r['meta_steps']:,}", f"{r['validation']['value']:.3f} ± {r['validation']['ci95']:.3f}", "1"]
        for r in result["rows"]
    ]


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], list[list[str]]]]] = {
    "toy": ("toy", toy),
    "toy-by-family": ("toy", by_family),
    "toy-clusters": ("toy-clusters", clusters),
    "toy-speed": ("benchmark-toy", speed),
    "toy-scale": ("benchmark-toy", scale),
}


def markdown(cells: list[list[str]]) -> str:
    """A table, its first column left and the others right."""
    lines = [" | ".join(row) for row in cells]
    lines.insert(1, " | ".join(["---", *["---:"] * (len(cells[0]) - 1)]))
    return "\n".join(f"| {line} |" for line in lines)


def fill_in(text: str, results: Path = RESULTS) -> str:
    """The document with every table made anew from its results."""

    def table(match: re.Match[str]) -> str:
        file, make = TABLES[match[1]]
        made = markdown(make(json.loads((results / f"{file}.json").read_text(encoding="utf-8"))))
        return f"<!-- table:{match[1]} -->\n{made}\n<!-- end -->"

    return re.sub(r"<!-- table:([\w-]+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(fill_in(path.read_text(encoding="utf-8")), encoding="utf-8")

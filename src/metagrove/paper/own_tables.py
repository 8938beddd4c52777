"""Tables about a user's own data: real sets of many small groups, the Gapminder study, and speed."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from metagrove.evaluation.candidates import label_of
from metagrove.files import Json

ORDER = (
    "hsml",
    "maml",
    "mixed-model",
    "mixture",
    "shared-gaussian-process",
    "support-trees",
    "GPBoost",
    "MixedLM",
    "gaussian-process",
    "ridge",
    "pooled-trees",
    "pooled-linear",
    "support-mean",
)
"""Methods in the order of the tables about real sets."""


def grouped_errors(result: Json) -> list[list[str]]:
    """Relative error of every method on every real set, the lowest of each in bold."""
    sets = result["sets"]
    lowest = {name: min(one["served"], *one["relative"].values()) for name, one in sets.items()}

    def cell(name: str, value: float | None) -> str:
        return "" if value is None else bold(f"{value:.3f}", f"{value:.3f}" == f"{lowest[name]:.3f}")

    rows = [["served", *(cell(name, one["served"]) for name, one in sets.items())]]
    for method in ORDER:
        cells = [cell(name, one["relative"].get(method)) for name, one in sets.items()]
        rows += [[label_of(method), *cells]] if any(cells) else []
    return [["", *sets], *rows]


def grouped_ratios(result: Json) -> list[list[str]]:
    """Mean and worst over sets of each method's error over that of the best method of the set, the best mean first."""
    found = {"served": [one["served"] / best_of(one) for one in result["sets"].values()]}
    for method in ORDER:
        ratios = [one["relative"].get(method, np.nan) / best_of(one) for one in result["sets"].values()]
        found |= {label_of(method): [ratio for ratio in ratios if np.isfinite(ratio)]}
    measured = {name: ratios for name, ratios in found.items() if ratios}
    rows = [[name, f"{np.mean(r):.3f}", f"{max(r):.3f}", str(len(r))] for name, r in measured.items()]
    return [["", "mean", "worst", "sets"], *sorted(rows, key=lambda row: float(row[1]))]


def grouped_ratios_short(result: Json) -> list[list[str]]:
    """`grouped_ratios` of the served method and of the best-known ones, for README."""
    shown = {"served", *map(label_of, ("mixed-model", "hsml", "maml", "support-trees", "ridge"))}
    heading, *rows = grouped_ratios(result)
    return [heading, *(row for row in rows if row[0] in shown)]


def best_of(one: Json) -> float:
    """The lowest relative error of a set."""
    return one["relative"][one["best"]]


def grouped_sets(result: Json) -> list[list[str]]:
    """The served method of each real set, its ratio to the best, the recommended method, and calibration."""
    heading = ["", "splits", "served", "best, and served / best", "served (splits)", "recommended (splits)"]
    rows = []
    for name, one in result["sets"].items():
        best = f"{with_article(one['best'])}, {one['served_over_best']:.3f}"
        counts = [counted(split.get(key, "") for split in one["splits"]) for key in ("served", "recommended")]
        rows.append([f"{name}: {one['about']}", str(len(one["splits"])), f"{one['served']:.3f}", best, *counts])
        rows[-1].append(certainty(one["certainty"]))
    return [[*heading, "90 % intervals cover"], *rows]


def counted(names: Iterable[str]) -> str:
    """How often each method occurs, the most frequent first."""
    return ", ".join(f"{count} × {with_article(name)}" for name, count in Counter(filter(None, names)).most_common())


def with_article(name: str) -> str:
    """A method in a cell; a blend is one of several."""
    return "a blend" if name == "blend" else label_of(name)


def certainty(found: Json) -> str:
    """Coverage of intervals, or calibration error of probabilities."""
    if "coverage" in found:
        return f"{100 * found['coverage']:.1f} %"
    return f"(calibration error {found['calibration_error']:.3f})"


def gapminder(result: Json) -> list[list[str]]:
    """Error of every method overall and by indicator, and its paired difference to HSML; lowest in bold."""
    rows = result["rows"]
    families = list(rows[0]["by_family"])
    lowest = {name: min(value_of(row, name) for row in rows) for name in (None, *families)}
    heading = ["", "all ± CI", f"minus {rows[0]['label']} ± CI", *families, "selected on validation tasks"]
    return [heading] + [
        [
            row["label"],
            bold(f"{row['value']:.4f} ± {row['value_ci95']:.4f}", row["value"] == lowest[None]),
            difference(row),
            *(bold(f"{value_of(row, name):.4f}", value_of(row, name) == lowest[name]) for name in families),
            row["variant"],
        ]
        for row in rows
    ]


def value_of(row: Json, family: str | None) -> float:
    """Return the mean of a row over all tasks, or over those of a family."""
    return row["value"] if family is None else row["by_family"][family]["value"]


def bold(text: str, chosen: bool) -> str:
    """Format the text in bold if it is the best of its column."""
    return f"**{text}**" if chosen else text


def difference(row: Json) -> str:
    """Format the paired difference of a row to the first one."""
    paired = row.get("minus_run")
    return f"{paired['difference']:+.4f} ± {paired['ci95']:.4f}" if paired else ""


def gapminder_differences(result: Json) -> list[list[str]]:
    """Paired differences to HSML by indicator."""
    rows = result["rows"][1:]
    families = list(rows[0]["by_family"])
    cells = [[row["minus_run"]["by_family"][name] for name in families] for row in rows]
    return [["", *families]] + [
        [row["label"], *(f"{one['difference']:+.4f} ± {one['ci95']:.4f}" for one in line)]
        for row, line in zip(rows, cells, strict=True)
    ]


def gapminder_search(result: Json) -> list[list[str]]:
    """Candidates of the search for each learner, and its seeds."""
    rows = []
    for name, one in result["learners"].items():
        for i, tried in enumerate(one["search"]):
            settings = ", ".join(f"{key} {value:g}" for key, value in tried["settings"].items())
            selected = tried["settings"] == one["chosen"]
            settings = f"**{settings}**" if selected else settings
            value = tried["validation"]
            scored = f"{value['value']:.4f} ± {value['ci95']:.4f}" if value else "diverged"
            seeds = ", ".join(f"{seed['test']:.4f}" for seed in one["seeds"]) if selected else ""
            rows.append(["" if i else name.upper(), settings, scored, seeds])
    heading = ["", "candidates (selected in bold)", "validation error ± CI", "test error of each seed of the selected"]
    return [heading, *rows]


def speed(result: Json) -> list[list[str]]:
    """Speed of adapting and predicting, with goals."""
    rows = []
    for part, one in result.items():
        kind, _, name = part.partition(":")
        if kind == "latency":
            rows.append([f"{name}: adapt and predict one task", "< 50 ms", f"{one['median_ms']:.1f} ms"])
            compiled = str(one["compilations_for_other_row_counts"])
            rows.append([f"{name}: compilations for 6, 7 and 8 rows after 5", "0", compiled])
        if kind == "many":
            rate = f"{one['tasks_per_second_in_one_call']:,.0f} tasks/s"
            rows.append(
                [f"{name}: {one['tasks']:,} tasks in one call, speedup", "≥ 20", f"{one['ratio']:.1f} ({rate})"]
            )
    for name, one in result["cold"].items():
        rows.append([f"{name}: adapt and predict, cold start", "< 6 s", f"{one['adapt_and_predict_seconds']:.1f} s"])
        rows.append([f"{name}: predict, cold start", "< 6 s", f"{one['predict_seconds']:.1f} s"])
    for one in result["memory"]:
        size = f"predict {one['megabytes']:.0f} MB ({one['rows']:,} rows), peak memory"
        rows.append([size, "constant", f"{one['peak_memory_mb']:.0f} MB"])
    return [["", "goal", "measured"], *rows]

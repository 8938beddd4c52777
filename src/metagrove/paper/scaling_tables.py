"""Tables of docs/scaling.md, from results of the scripts in benchmarks/, including rows that are not measured yet."""

from pathlib import Path

from metagrove.paper.results import read_result

Cells = list[list[str]]
TARGETS = ("benchmark-toy-targets", "benchmark-image-targets", "benchmark-bulk-targets")
NOT_MEASURED = "not measured yet"


def targets(results: Path) -> Cells:
    """The targets, the measurements, and whether the targets are met."""
    rows = []
    for name in TARGETS:
        path = results / f"{name}.json"
        if not path.exists():
            rows.append([f"results/{name}.json", NOT_MEASURED, "", ""])
            continue
        for one in read_result(path)["goals"]:
            value = f"{one['value']:,.0f}" if one["value"] >= 1000 else f"{one['value']:.2f}"
            rows.append([one["what"], one["goal"], value, "yes" if one["met"] else "no"])
    return [["", "target", "measured", "met"], *rows]


def devices(results: Path) -> Cells:
    """Seconds of a meta-step on 1, 2 and 4 devices, measured and predicted by the cost model."""
    heading = ["", "tasks", "devices", "measured, ms", "predicted, ms"]
    path = results / "benchmark-scaling.json"
    if not path.exists():
        return [heading, [f"results/{path.name}", NOT_MEASURED, "", "", ""]]
    return [heading] + [
        [
            row["case"],
            str(row["tasks"]),
            str(row["devices"]),
            f"{1000 * row['seconds_per_step']:.2f}",
            f"{1000 * row['predicted_seconds']:.2f}",
        ]
        for row in read_result(path)["rows"]
    ]


def operations(results: Path) -> Cells:
    """Floating-point operations of a meta-step, and the fraction of a core's peak that one device reaches."""
    heading = ["", "meta-parameters", "operations of a meta-step, 10⁶", "ms on one device", "fraction of a core's peak"]
    path = results / "benchmark-scaling.json"
    if not path.exists():
        return [heading, [f"results/{path.name}", NOT_MEASURED, "", "", ""]]
    result, first = read_result(path), {}
    for row in result["rows"]:
        first.setdefault(row["case"], row)
    peak = result["peak_operations_per_second"]
    return [heading] + [
        [
            case,
            f"{row['meta_parameters']:,}",
            f"{row['operations'] / 1e6:,.0f}",
            f"{1000 * row['seconds_per_step']:.2f}",
            f"{100 * row['operations'] / row['seconds_per_step'] / peak:.0f} %",
        ]
        for case, row in first.items()
    ]


def recomputing(results: Path) -> Cells:
    """Time and memory of MAML on images, with inner steps stored and recomputed in the backward pass."""
    heading = ["", "px", "seconds a meta-step", "peak memory, cached programs, MB"]
    path = results / "benchmark-image-targets.json"
    if not path.exists():
        return [heading, [f"results/{path.name}", NOT_MEASURED, "", ""]]
    rows = [row for row in read_result(path)["rows"] if row["what"].startswith("maml")]
    return [heading] + [
        [row["what"], str(row["size"]), f"{row['seconds_per_step']:.3f}", f"{row['again_memory_mb']:.0f}"]
        for row in rows
    ]

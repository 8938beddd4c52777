"""Tables of docs/scaling.md, from what the scripts in benchmarks/ measured; what is not measured yet is said."""

from pathlib import Path

from metagrove.paper.results import read_result

Cells = list[list[str]]
TARGETS = ("benchmark-toy-targets", "benchmark-image-targets", "benchmark-bulk-targets")
NOT_MEASURED = "not measured yet"


def targets(results: Path) -> Cells:
    """The targets, what was measured, and whether they are met."""
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
    """Seconds of a meta-step on 1, 2 and 4 devices, and what the cost model predicts."""
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
    """Operations of a meta-step, and the part of a core's peak at which they are done on one device."""
    heading = ["", "meta-parameters", "operations of a meta-step, 10⁶", "ms on one device", "part of a core's peak"]
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
    """Time and memory of MAML on images, with inner steps kept and computed again in the backward pass."""
    heading = ["", "px", "seconds a meta-step", "peak memory, later starts, MB"]
    path = results / "benchmark-image-targets.json"
    if not path.exists():
        return [heading, [f"results/{path.name}", NOT_MEASURED, "", ""]]
    rows = [row for row in read_result(path)["rows"] if row["what"].startswith("maml")]
    return [heading] + [
        [row["what"], str(row["size"]), f"{row['seconds_per_step']:.3f}", f"{row['again_memory_mb']:.0f}"]
        for row in rows
    ]

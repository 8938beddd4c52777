"""Tables of image experiments."""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from metagrove.files import Json
from metagrove.paper.results import ExperimentResult, RowResult
from metagrove.training.scores import FamilySummary, paired_difference


def accuracies(result: ExperimentResult) -> list[list[str]]:
    """Accuracy of every method by dataset and on average, the paper's average, and the paired difference."""
    evaluations = [row.chosen.evaluation for row in result.rows]
    datasets = list(evaluations[0].by_family)
    datasets = datasets if len(datasets) > 1 else []  # of one dataset, it is the average
    heading = ["method", *datasets, "average", "paper's average", f"minus {result.rows[0].label}"]
    highest = max(evaluation.value for evaluation in evaluations)
    rows = []
    for row, evaluation in zip(result.rows, evaluations, strict=True):
        families = evaluation.by_family
        average = f"{evaluation.value:.2f} ± {average_ci95(families):.2f}"
        paired = row.chosen.paired_difference
        rows.append(
            [
                row.label,
                *(f"{families[one].value:.2f} ± {families[one].value_ci95:.2f}" for one in datasets),
                f"**{average}**" if evaluation.value == highest else average,
                row.paper or "",
                "" if paired.to == row.label else f"{paired.difference:+.2f} ± {paired.ci95:.2f}",
            ]
        )
    return [heading, *rows]


def chosen(result: ExperimentResult) -> list[list[str]]:
    """The setting of each method selected on validation tasks, and its paired difference to that of the first."""
    best: dict[str, RowResult] = {}
    tried: Counter[str] = Counter()
    for row in result.rows:
        if row.preset != result.rows[0].preset:
            continue
        method = row.label.split(",")[0].split(" (")[0]  # "HSML (ours), 1-shot" is a variant of HSML
        best[method] = max(best.get(method, row), row, key=validated)
        tried[method] += 1
    first = next(iter(best))
    rows = []
    for method, row in best.items():
        evaluation = row.chosen.evaluation
        paired = paired_difference(all_scores(row), all_scores(best[first]))
        rows.append(
            [
                row.label.split(",")[0],
                f"{row.label} (of {tried[method]})",
                f"{validated(row):.1f}",
                f"{evaluation.value:.2f} ± {average_ci95(evaluation.by_family):.2f}",
                "" if method == first else f"{paired.difference:+.2f} ± {paired.ci95:.2f}",
            ]
        )
    return [["method", "selected setting", "validation", "test", f"minus {best[first].label.split(',')[0]}"], *rows]


def validated(row: RowResult) -> float:
    """Return the accuracy of a row on validation tasks."""
    return row.chosen.checkpoint["validation"]["value"]


def all_scores(row: RowResult) -> np.ndarray:
    """Return the scores of all test tasks, dataset by dataset."""
    return np.array(" ".join((row.chosen.scores or {}).values()).split(), float)


def alone(result: ExperimentResult) -> list[list[str]]:
    """One row of accuracies, each of a run trained on one dataset only."""
    families = {name: one for row in result.rows for name, one in row.chosen.evaluation.by_family.items()}
    average = sum(one.value for one in families.values()) / len(families)
    cells = [f"{one.value:.2f} ± {one.value_ci95:.2f}" for one in families.values()]
    return [["", *families, "average"], ["MAML, each alone", *cells, f"{average:.2f} ± {average_ci95(families):.2f}"]]


def average_ci95(families: Mapping[str, FamilySummary]) -> float:
    """Compute the confidence interval of the mean over datasets, whose tasks are independent."""
    return math.sqrt(sum(one.value_ci95**2 for one in families.values())) / len(families)


def costs(result: ExperimentResult) -> list[list[str]]:
    """Training cost and selected checkpoint of each method, and agreement of its clusters with the datasets."""
    heading = ["", "parameters", "best meta-step", "inner steps at test", "meta-steps/s", "training, min", "memory, MB"]
    rows = []
    for row in result.rows:
        one = row.chosen
        agreement = one.evaluation.clustering
        rows.append(
            [
                row.label,
                f"{one.parameters:,}",
                f"{one.checkpoint['step']:,}",
                str(one.evaluation.steps),
                f"{one.steps_per_second:.1f}",
                f"{one.training_seconds / 60:.0f}",
                f"{one.peak_memory_mb:.0f}",
                f"{agreement.nmi:.2f}" if agreement else "",
            ]
        )
    return [[*heading, "cluster NMI"], *rows]


def curves(result: ExperimentResult) -> list[list[str]]:
    """Validation accuracy during training, and loss and accuracy of the last training tasks."""
    steps = sorted({int(step) for row in result.rows for step, _ in row.chosen.curve})
    rows = []
    for row in result.rows:
        values = {step: f"{value:.1f}" for step, value in row.chosen.curve}
        final = row.chosen.final_training
        accuracy = f"{final['accuracy']:.1f}" if "accuracy" in final else ""
        rows.append([row.label, *(values.get(step, "") for step in steps), f"{final['loss']:.3f}", accuracy])
    return [["meta-step", *(f"{step:,}" for step in steps), "training loss at the end", "accuracy"], *rows]


def trials(result: Json) -> list[list[str]]:
    """Short trainings: early training loss, and validation accuracy."""
    steps = (500, 1000, 2000, 4000, 6000)
    heading = ["", "loss, steps 301-400", *(f"accuracy, {step:,}" for step in steps), "cluster NMI", "remark"]
    rows = []
    for row in result["rows"]:
        at = {one["step"]: one for one in row["validation"]}
        cells = [f"{at[step]['value']:.1f} ± {at[step]['ci95']:.1f}" if step in at else "" for step in steps]
        agreement = row["validation"][-1].get("nmi") if row["validation"] else None
        nmi = "" if agreement is None else f"{agreement:.2f}"
        rows.append([row["what"], f"{row['loss_301_to_400']:.3f}", *cells, nmi, row["remark"]])
    return [heading, *rows]


def speed(result: Json) -> list[list[str]]:
    """Time and memory of a meta-step, without and with a compilation cache; rows that failed are left out."""
    columns = {
        "s per meta-step": ("seconds_per_step", ".3f"),
        "compile, s": ("compile_seconds", ".0f"),
        "peak memory, MB": ("peak_memory_mb", ".0f"),
        "cached: compile, s": ("again_compile_seconds", ".0f"),
        "memory, MB": ("again_memory_mb", ".0f"),
    }
    rows = [row for row in result["rows"] if "error" not in row]
    columns = {heading: column for heading, column in columns.items() if column[0] in rows[0]}
    return [["", "px", *columns]] + [
        [row["what"], str(row["size"]), *(format(row[field], form) for field, form in columns.values())] for row in rows
    ]


def speed_goals(result: Json) -> list[list[str]]:
    """Speed goals and measurements."""
    return [["", "goal", "measured"]] + [[one["what"], one["goal"], f"{one['value']:.2f}"] for one in result["goals"]]


def full_protocol(result: Json) -> list[list[str]]:
    """First meta-steps of the paper's protocol."""
    losses = [f"loss to {step}" for step, _ in result["rows"][0]["losses"]]
    return [["", *losses, "validation accuracy", "memory, MB"]] + [
        [
            row["what"],
            *(f"{loss:.3f}" for _, loss in row["losses"]),
            f"{row['validation']['value']:.1f} ± {row['validation']['ci95']:.1f}",
            f"{row['peak_memory_mb']:.0f}",
        ]
        for row in result["rows"]
    ]


def gate_input(result: Json) -> list[list[str]]:
    """Accuracy with other inputs of the gate in place of g."""
    families = list(result["rows"][0]["by_family"])
    rows = []
    for row in result["rows"]:
        paired = row["minus_as_trained"]
        difference = f"{paired['difference']:+.2f} ± {paired['ci95']:.2f}" if paired["ci95"] else ""
        means = [f"{row['by_family'][name]:.1f}" for name in families]
        rows.append([row["gate_input"], *means, f"{row['value']:.1f} ± {row['ci95']:.1f}", difference])
    return [["", *families, "average", "minus as trained"], *rows]

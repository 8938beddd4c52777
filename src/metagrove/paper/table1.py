"""Tables of the experiment table1: every method on functions."""

from metagrove.paper.cells import error, with_ci
from metagrove.paper.results import DifferenceTo, ExperimentResult, RowResult

Cells = list[list[str]]

SHOTS = ("5-shot", "10-shot")


def errors(result: ExperimentResult) -> Cells:
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
            row += cells_of(cells[shots], low) if shots in cells else ["", "not trained yet", ""]
        rows.append(row)
    return [heading, *rows]


def short(result: ExperimentResult) -> Cells:
    """Error at 5 points of the methods of the paper's table 1, of HSML-A, and of the neural process, for the README."""
    heading, *rows = errors(result)
    chosen = ("MAML", "Meta-SGD", "MT-Net", "MUMOMAML", "Neural process", "HSML", "HSML (ours)", "HSML-E", "Grove")
    return [heading[:4], *(row[:4] for row in rows if row[0] in chosen)]


def by_method(result: ExperimentResult) -> dict[str, dict[str, RowResult]]:
    """{method: {shots: row}}, the rows of HSML last."""
    methods: dict[str, dict[str, RowResult]] = {}
    for row in result.rows:
        method, shots = row.label.rsplit(", ", 1)
        methods.setdefault(method, {})[shots] = row
    return dict(sorted(methods.items(), key=lambda item: item[0].startswith("HSML")))


def cells_of(row: RowResult, lowest: float) -> list[str]:
    """Format the paper's value, the value measured here, and the difference to HSML."""
    one, paired = row.chosen.evaluation, row.chosen.paired_difference
    value = with_ci(one.value, one.value_ci95)
    to_hsml = is_to_hsml(paired) and paired.ci95 > 0
    difference = f"{paired.difference:+.3f} ± {paired.ci95:.3f}" if to_hsml else ""
    return [row.paper or "", f"**{value}**" if one.value == lowest else value, difference]


def is_to_hsml(paired: DifferenceTo) -> bool:
    """Whether a paired difference is to HSML; a row that was evaluated without HSML's runs has another reference."""
    return paired.to in {f"HSML, {shots}" for shots in SHOTS}


def by_family(result: ExperimentResult) -> Cells:
    """Error of every method by family, and its paired difference to HSML."""
    families = list(result.rows[0].chosen.evaluation.by_family)
    rows = []
    for method, cells in by_method(result).items():
        for shots, of_shots in cells.items():
            row, one = [f"{method}, {shots}"], of_shots.chosen
            for family in families:
                paired = one.paired_difference.by_family[family]
                to_hsml = is_to_hsml(one.paired_difference) and paired.ci95 > 0
                difference = f" ({paired.difference:+.3f} ± {paired.ci95:.3f})" if to_hsml else ""
                value = one.evaluation.by_family[family].by_step[one.evaluation.steps]
                row.append(f"{error(value)}{difference}")
            rows.append(row)
    return [["", *families], *rows]


def search(result: ExperimentResult) -> Cells:
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


def cost(result: ExperimentResult) -> Cells:
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

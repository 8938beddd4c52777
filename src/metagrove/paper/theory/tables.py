"""Tables of the theory study."""

from metagrove.paper.theory.records import TaskRow, TheoryResult

Cells = list[list[str]]
MIDDLE = 30.0


def number(value: float | None) -> str:
    """Three significant digits; a dash where there is no value."""
    return "–" if value is None else f"{value:.3g}"


def percent(share: float) -> str:
    """A share of tasks or parameters."""
    return f"{100 * share:.0f} %"


def middle(result: TheoryResult) -> list[TaskRow]:
    """The rows at κ = 30, by method and number of points."""
    return [row for row in result.rows if row.kappa == MIDDLE]


def risks(result: TheoryResult) -> Cells:
    """Risk inequality and generalisation gap."""
    heading = ["", "n", "R̂(θ₀ₜ) ≤ R̂(θ₀), own", "median ratio", "R̂(θ₀ₜ) ≤ R̂(θ₀), MAML's", "median ratio"]
    heading += ["gap, median", "gap, mean", "error after the run's steps", "after steps c/u", "without steps"]
    return [heading] + [
        [
            row.method,
            str(row.shots),
            percent(row.holds_own),
            number(row.ratio_own),
            percent(row.holds_reference),
            number(row.ratio_reference),
            number(row.gap),
            number(row.mean_gap),
            number(row.error_constant),
            number(row.error_decayed),
            number(row.error_start),
        ]
        for row in middle(result)
    ]


def bounds(result: TheoryResult) -> Cells:
    """Terms of the bounds, and their rank correlation with the gap over tasks."""
    heading = ["", "n", "theorem 1's term", "the same at MAML's θ₀", "rank correlation with the gap", "convex form"]
    heading += ["theorem 2: condition fails", "its term", "rank correlation with the gap"]
    return [heading] + [
        [
            row.method,
            str(row.shots),
            number(row.theorem1),
            number(row.theorem1_reference),
            number(row.rank_theorem1),
            number(row.convex_form),
            percent(row.condition_fails),
            number(row.theorem2),
            number(row.rank_theorem2),
        ]
        for row in middle(result)
    ]


def curvature(result: TheoryResult) -> Cells:
    """Curvature by κ at 5 points."""
    smallest = min(row.shots for row in result.rows)
    heading = ["", "κ", "mean ‖∇²L‖", "γ̂", "abs(γ − γ̂)", "η̂", "ρ̂", "c"]
    rows = sorted((row for row in result.rows if row.shots == smallest), key=lambda row: (row.method, row.kappa))
    return [heading] + [
        [row.method, f"{row.kappa:.0f}"]
        + [number(v) for v in (row.hessian_norm, row.gamma, row.gamma_error, row.smoothness)]
        + [number(row.hessian_lipschitz), number(row.step_constant)]
        for row in rows
    ]


def gates(result: TheoryResult) -> Cells:
    """Reach of a sigmoid gate, and linear form of each gate."""
    smallest = min(row.shots for row in result.rows)
    reached = {row.method: row for row in middle(result) if row.shots == smallest}
    found = {row.method: row for row in result.gates}
    heading = ["", "parameters that a gradient step takes out of a sigmoid's reach", "unchanged by the step", "gate"]
    heading += ["relative error of Σ B̂ₖθ₀, median", "90 % quantile", "variance of the gate from the hierarchy"]
    lines = []
    for method, row in reached.items():
        gate = found.get(method)
        form = ["none", "", "", ""]
        if gate is not None:
            share = f"{100 * gate.hierarchy_share:.3g} %"
            form = [gate.form, number(gate.error), number(gate.error_q90), share]
        lines.append([method, percent(row.out_of_reach), percent(row.unchanged), *form])
    return [heading, *lines]


def convex(result: TheoryResult) -> Cells:
    """Theorem 1 as stated: a polynomial base net and a single pass."""
    heading = ["", "n", "R̂(θ₀ₜ) ≤ R̂(θ₀), MAML's", "median ratio", "gap, median", "gap, mean", "theorem 1's term"]
    heading += ["rank correlation with the gap", "convex form", "rank correlation", "gap within the convex form"]
    return [heading] + [
        [
            row.method,
            str(row.shots),
            percent(row.holds_reference),
            number(row.ratio_reference),
            number(row.gap),
            number(row.mean_gap),
            number(row.theorem1),
            number(row.rank_theorem1),
            number(row.convex_form),
            number(row.rank_convex),
            percent(row.within),
        ]
        for row in result.convex
    ]


def softplus(result: TheoryResult) -> Cells:
    """Accuracy and curvature of Conv-4 by κ."""
    heading = ["activation", "meta-steps", "validation accuracy ± CI over tasks", "median ‖∇²L‖ at θ₀ₜ, ten tasks"]
    rows = {row.kappa: row for row in result.softplus}
    lines = []
    for kappa in (1.0, 3.0, 10.0, 30.0, 0.0):
        name, row = f"softplus, κ = {kappa:g}" if kappa else "ReLU", rows.get(kappa)
        if row is None:
            lines.append([name, "", "not trained yet: `metagrove reproduce softplus`, then `theory`", ""])
            continue
        accuracy = f"{row.validation:.1f} ± {row.ci95:.1f}"
        lines.append([name, str(row.meta_steps), accuracy, number(row.hessian_norm)])
    return [heading, *lines]

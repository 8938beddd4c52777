"""Summaries of the measured quantities over tasks: one row of results/theory.json for each run and setting."""

import math
from typing import Any

import numpy as np
from scipy import stats

from metagrove.paper.theory import bounds
from metagrove.paper.theory.records import ConvexRow, TaskRow
from metagrove.serve.run import Run

SCALE = 1000.0
"""M, by which losses are divided. No target exceeds 30.5, so the loss of predicting 0 is smaller."""
ROUNDING = 1e-4
"""Relative rounding error of a risk in single precision."""


def summarize(name: str, n: int, kappa: float, run: Run, quantities: Any) -> TaskRow:
    """Medians over tasks, in losses scaled by 1/M."""
    risk, gap = quantities.risk / SCALE, (quantities.fresh_adapted_risk - quantities.adapted_risk) / SCALE
    gamma = bounds.gamma_hat(quantities.hessian_norm / SCALE, risk)
    fresh_gamma = bounds.gamma_hat(quantities.fresh_hessian_norm / SCALE, quantities.fresh_risk / SCALE)
    c = np.asarray(bounds.step_constant(quantities.smoothness / SCALE, n), np.float64)
    first, second = bounds.theorem1_term(risk, n), bounds.theorem2_term(risk, gamma, c, n)
    return TaskRow(
        method=name,
        shots=n,
        kappa=kappa,
        num_tasks=len(risk),
        inner_steps=run.inner_steps,
        **risk_figures(quantities),
        **curvature_figures(quantities),
        gap=median(gap),
        mean_gap=float(gap.mean()),
        theorem1=median(first),
        theorem1_reference=median(bounds.theorem1_term(quantities.risk_reference / SCALE, n)),
        convex_form=median(convex_form(run, n, quantities)),
        gamma=median(gamma),
        gamma_error=None if np.isnan(fresh_gamma).all() else median(np.abs(fresh_gamma - gamma)),
        step_constant=median(c),
        theorem2=None if np.isnan(second).all() else float(np.nanmedian(second)),
        condition_fails=float(np.isnan(second).mean()),
        rank_theorem1=rank(first, gap),
        rank_theorem2=rank(second, gap),
        terms=[float(f"{value:.5g}") for value in first],
        gaps=[float(f"{value:.5g}") for value in gap],
    )


def risk_figures(quantities: Any) -> dict[str, float]:
    """Risks of the initialisations, and errors on fresh points before and after the inner steps."""
    return {
        "holds_own": share_not_above(quantities.risk, quantities.risk_shared),
        "holds_reference": share_not_above(quantities.risk, quantities.risk_reference),
        "ratio_own": median(quantities.risk / quantities.risk_shared),
        "ratio_reference": median(quantities.risk / quantities.risk_reference),
        "risk": median(quantities.risk / SCALE),
        "error_constant": median(quantities.fresh_adapted_risk),
        "error_decayed": median(quantities.fresh_decayed_risk),
        "error_start": median(quantities.fresh_risk),
        "above_scale": float((quantities.largest_loss > SCALE).mean()),
    }


def curvature_figures(quantities: Any) -> dict[str, float]:
    """The constants of smoothness, and the share of a gradient step that no sigmoid gate reaches."""
    return {
        "hessian_norm": median(quantities.hessian_norm / SCALE),
        "smoothness": median(quantities.smoothness / SCALE),
        "hessian_lipschitz": median(quantities.hessian_lipschitz / SCALE),
        "out_of_reach": float((quantities.reach.above + quantities.reach.below).mean()),
        "unchanged": float(quantities.reach.unchanged.mean()),
    }


def convex_form(run: Run, n: int, quantities: Any) -> np.ndarray:
    """The bound's form for convex losses, at the run's own inner learning rate."""
    learner: Any = run.config.learner
    rate = np.full_like(quantities.risk, learner.inner_lr * SCALE * math.sqrt(n))
    nothing = np.zeros_like(quantities.risk)
    return bounds.convex_term(rate, quantities.fresh_risk / SCALE, nothing, quantities.gradient_std / SCALE, n)


def convex_row(name: str, n: int, steps: int, quantities: Any) -> ConvexRow:
    """Medians over tasks, in losses scaled by 1/M; the step c on the scaled loss is M times that on the loss."""
    risk, gap = quantities.risk / SCALE, quantities.gap / SCALE
    first = bounds.theorem1_term(risk, n)
    rates = (
        quantities.step * SCALE,
        quantities.fresh_risk / SCALE,
        quantities.least_risk / SCALE,
        quantities.gradient_std / SCALE,
    )
    form = bounds.convex_term(*rates, n)
    return ConvexRow(
        method=name,
        shots=n,
        meta_steps=steps,
        num_tasks=len(risk),
        holds_reference=share_not_above(quantities.risk, quantities.risk_reference),
        ratio_reference=median(quantities.risk / quantities.risk_reference),
        gap=median(gap),
        mean_gap=float(gap.mean()),
        theorem1=median(first),
        convex_form=median(form),
        rank_theorem1=rank(first, gap),
        rank_convex=rank(form, gap),
        within=float((gap <= form).mean()),
    )


def share_not_above(first: np.ndarray, second: np.ndarray) -> float:
    """The share of tasks whose first risk is not above the second, up to rounding."""
    return float((first <= second * (1 + ROUNDING)).mean())


def median(values: np.ndarray) -> float:
    """The median over tasks."""
    return float(np.median(values))


def rank(term: np.ndarray, gap: np.ndarray) -> float | None:
    """Spearman's rank correlation of a term with the gap, over the tasks for which there is a term."""
    finite = np.isfinite(term)
    correlation: Any = stats.spearmanr(term[finite], gap[finite]) if finite.sum() > 2 else None
    return None if correlation is None else float(correlation.statistic)

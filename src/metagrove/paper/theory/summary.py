"""Summaries of the measured quantities over tasks: one row of results/theory.json for each run and setting."""

import math
from typing import Any

import numpy as np
from scipy import stats

from metagrove.paper.theory import bounds
from metagrove.paper.theory.records import ConvexRow, TaskRow
from metagrove.serve.run import Run

SCALE = 1000.0
"""M: losses are divided by it. No target exceeds 30.5, so that the loss of predicting 0 is below it."""
ROUNDING = 1e-4
"""Relative difference of two risks that single precision may give."""


def summarize(name: str, n: int, kappa: float, run: Run, found: Any) -> TaskRow:
    """Medians over tasks, in losses scaled by 1/M."""
    risk, gap = found.risk / SCALE, (found.fresh_adapted_risk - found.adapted_risk) / SCALE
    gamma = bounds.gamma_hat(found.hessian_norm / SCALE, risk)
    fresh_gamma = bounds.gamma_hat(found.fresh_hessian_norm / SCALE, found.fresh_risk / SCALE)
    c = np.asarray(bounds.step_constant(found.smoothness / SCALE, n), np.float64)
    first, second = bounds.theorem1_term(risk, n), bounds.theorem2_term(risk, gamma, c, n)
    return TaskRow(
        method=name,
        shots=n,
        kappa=kappa,
        num_tasks=len(risk),
        inner_steps=run.inner_steps,
        **risk_figures(found),
        **curvature_figures(found),
        gap=median(gap),
        mean_gap=float(gap.mean()),
        theorem1=median(first),
        theorem1_reference=median(bounds.theorem1_term(found.risk_reference / SCALE, n)),
        convex_form=median(convex_form(run, n, found)),
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


def risk_figures(found: Any) -> dict[str, float]:
    """Risks of the initialisations, and errors on fresh points before and after the inner steps."""
    return {
        "holds_own": share_not_above(found.risk, found.risk_shared),
        "holds_reference": share_not_above(found.risk, found.risk_reference),
        "ratio_own": median(found.risk / found.risk_shared),
        "ratio_reference": median(found.risk / found.risk_reference),
        "risk": median(found.risk / SCALE),
        "error_constant": median(found.fresh_adapted_risk),
        "error_decayed": median(found.fresh_decayed_risk),
        "error_start": median(found.fresh_risk),
        "above_scale": float((found.largest_loss > SCALE).mean()),
    }


def curvature_figures(found: Any) -> dict[str, float]:
    """The constants of smoothness, and the share of a gradient step that no sigmoid gate reaches."""
    return {
        "hessian_norm": median(found.hessian_norm / SCALE),
        "smoothness": median(found.smoothness / SCALE),
        "hessian_lipschitz": median(found.hessian_lipschitz / SCALE),
        "out_of_reach": float((found.reach.above + found.reach.below).mean()),
        "unchanged": float(found.reach.unchanged.mean()),
    }


def convex_form(run: Run, n: int, found: Any) -> np.ndarray:
    """The bound's form for convex losses, at the run's own inner learning rate."""
    learner: Any = run.config.learner
    rate = np.full_like(found.risk, learner.inner_lr * SCALE * math.sqrt(n))
    nothing = np.zeros_like(found.risk)
    return bounds.convex_term(rate, found.fresh_risk / SCALE, nothing, found.gradient_std / SCALE, n)


def convex_row(name: str, n: int, steps: int, found: Any) -> ConvexRow:
    """Medians over tasks, in losses scaled by 1/M; the step c on the scaled loss is M times that on the loss."""
    risk, gap = found.risk / SCALE, found.gap / SCALE
    first = bounds.theorem1_term(risk, n)
    rates = found.step * SCALE, found.fresh_risk / SCALE, found.least_risk / SCALE, found.gradient_std / SCALE
    form = bounds.convex_term(*rates, n)
    return ConvexRow(
        method=name,
        shots=n,
        meta_steps=steps,
        num_tasks=len(risk),
        holds_reference=share_not_above(found.risk, found.risk_reference),
        ratio_reference=median(found.risk / found.risk_reference),
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
    known = np.isfinite(term)
    found: Any = stats.spearmanr(term[known], gap[known]) if known.sum() > 2 else None
    return None if found is None else float(found.statistic)

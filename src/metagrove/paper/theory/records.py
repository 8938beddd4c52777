"""Results of the theory study, as stored in results/theory.json. Losses are scaled by 1/M unless they are errors."""

import dataclasses

from metagrove.files import Json


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRow:
    """A run at one number of support points and one κ: medians over tasks, unless named otherwise."""

    method: str
    shots: int
    kappa: float
    num_tasks: int
    inner_steps: int
    holds_own: float
    """Share of tasks with R̂(θ₀ₜ) ≤ R̂(θ₀), θ₀ the run's own."""
    holds_reference: float
    """The same with MAML's θ₀."""
    ratio_own: float
    ratio_reference: float
    risk: float
    """R̂(θ₀ₜ)."""
    gap: float
    """R(θ_T) − R̂(θ_T)."""
    mean_gap: float
    theorem1: float
    theorem1_reference: float
    """Theorem 1's term at MAML's θ₀."""
    convex_form: float
    hessian_norm: float
    gamma: float
    gamma_error: float | None
    """|γ − γ̂|, if measured."""
    smoothness: float
    """η̂."""
    hessian_lipschitz: float
    """ρ̂."""
    step_constant: float
    """c."""
    theorem2: float | None
    """Over the tasks that meet its condition."""
    condition_fails: float
    """Share of tasks with γ̂ < n^(−1/4)."""
    error_constant: float
    """Error on fresh points after the run's own steps."""
    error_decayed: float
    """After the same number of steps of size c/u."""
    error_start: float
    """Without any step."""
    above_scale: float
    """Share of tasks with a point whose loss exceeds M."""
    out_of_reach: float
    """Share of the parameters of θ₀ − α∇L(θ₀) that no sigmoid gate reaches."""
    unchanged: float
    """Share that the step does not change."""
    rank_theorem1: float | None
    """Rank correlation with the gap, over tasks."""
    rank_theorem2: float | None
    terms: list[float]
    """Theorem 1's term of each task."""
    gaps: list[float]
    """The gap of each task."""


@dataclasses.dataclass(frozen=True)
class GateRow:
    """The linear form of a gate."""

    method: str
    form: str
    num_tasks: int
    error: float
    """Median of ‖Σ B̂_k θ₀ − θ₀ₜ‖ / ‖θ₀ₜ‖."""
    error_q90: float
    hierarchy_share: float
    """Var(W_h h) / Var(W_g g + W_h h)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvexRow:
    """Theorem 1 as stated, for a polynomial base net and a single pass."""

    method: str
    shots: int
    meta_steps: int
    num_tasks: int
    holds_reference: float
    ratio_reference: float
    gap: float
    mean_gap: float
    theorem1: float
    convex_form: float
    rank_theorem1: float | None
    rank_convex: float | None
    within: float
    """Share of tasks whose gap is at most the convex form (whose constant is not known)."""


@dataclasses.dataclass(frozen=True)
class SoftplusRow:
    """A run on images with softplus(κx)/κ in place of ReLU."""

    run: str
    kappa: float
    """0 for ReLU."""
    meta_steps: int
    validation: float
    """Accuracy in percent on validation tasks."""
    ci95: float
    hessian_norm: float
    """Median over ten tasks of the Hessian norm of the support loss at θ₀ₜ."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TheoryResult:
    """Result of the theory study."""

    provenance: Json
    scale: float
    """M."""
    fresh_points: int
    rows: list[TaskRow]
    gates: list[GateRow]
    convex: list[ConvexRow]
    softplus: list[SoftplusRow]

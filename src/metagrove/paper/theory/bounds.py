"""The terms of theorems 1 and 2, as functions of measured quantities. R̂ is the risk on the support set, n its size."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]


def theorem1_term(risk: Values, n: int) -> Values:
    """√(R̂(θ₀ₜ) + n^(−1/2)), theorem 1."""
    return np.sqrt(risk + n**-0.5)


def convex_term(c: Values, risk: Values, least_risk: Values, gradient_std: Values, n: int) -> Values:
    """√(c (R(θ₀) − R*)) U^(1/4)/n + c σ U^(1/2)/n with U = n steps, the convex bound in the proof of theorem 1."""
    return np.sqrt(c * np.maximum(risk - least_risk, 0)) * n**0.25 / n + c * gradient_std * n**0.5 / n


def step_constant(smoothness: Any, steps: int) -> Any:
    """c = min{1/η, 1/(4 (2η ln U)²)}, the largest that theorem 2 admits; for U = 1 the logarithm is 0 and c is 1/η."""
    second = jnp.inf if steps == 1 else 1 / (4 * (2 * smoothness * math.log(steps)) ** 2)
    return jnp.minimum(1 / smoothness, second)


def gamma_hat(mean_hessian_norm: Values, risk: Values) -> Values:
    """γ̂ = (1/n) Σⱼ ‖∇²L(θ₀ₜ, (xⱼ, yⱼ))‖₂ + √R̂(θ₀ₜ)."""
    return mean_hessian_norm + np.sqrt(risk)


def theorem2_term(risk: Values, gamma: Values, c: Values, n: int) -> Values:
    """(1 + 1/(cγ̂⁻)) · R̂^(cγ̂⁺/(1+cγ̂⁺)) · n^(−1/(1+cγ̂⁺)), γ̂^± = γ̂ ± n^(−1/4); NaN where γ̂⁻ is not positive."""
    low, high = gamma - n**-0.25, c * (gamma + n**-0.25)
    factor = 1 + 1 / np.where(low > 0, c * low, np.nan)
    return factor * risk ** (high / (1 + high)) * n ** (-1 / (1 + high))

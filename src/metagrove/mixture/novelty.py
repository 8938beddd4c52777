"""Tasks of no known cluster: a broad prior, "none of these", beside those of the mixture.

none of these      W ~ N(0, diag(a)²), a the amplitudes of φ, for targets of mean 0 and standard deviation 1
log Bayes factor   b = log p(y | none of these) - log Σ_k π_k p(y | k)
posterior          p(none of these | y) = 1 / (1 + (1 - π₀) / π₀ e^-b)

π₀ is the prior mass of "none of these", as the concentration of a Dirichlet process is. Where tasks come from the known
clusters, a part π₀ of them or fewer is taken for none of these, however large their errors are.
"""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from metagrove.mixture.prior import Mixture
from metagrove.task import Examples

__all__ = ["NONE", "NONE_LOG_ODDS", "NONE_MASS", "log_bayes_factor", "none_of_these"]

NONE = "none of these"
"""Name of the measure."""
NONE_MASS = 0.01
"""π₀."""
NONE_LOG_ODDS = math.log((1 - NONE_MASS) / NONE_MASS)
"""The log Bayes factor above which "none of these" is the likelier."""


def none_of_these(mixture: Mixture) -> Mixture:
    """The broad prior, as a mixture of one cluster: independent weights of every feature and output."""
    amplitudes = jnp.asarray(mixture.basis.amplitudes(), float)
    _, features, outputs, _ = mixture.factor.shape
    each = jnp.eye(features * outputs).reshape(features, outputs, -1) * amplitudes[:, None, None]
    return dataclasses.replace(mixture, mean=jnp.zeros((1, features, outputs)), factor=each[None], logits=jnp.zeros(1))


def log_bayes_factor(mixture: Mixture, rows: Examples) -> Float[Array, ""]:
    """b of one task's rows; 0 without any."""
    return none_of_these(mixture).log_marginal(rows) - mixture.log_marginal(rows)

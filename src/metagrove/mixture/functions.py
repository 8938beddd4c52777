"""The priors of a mixture as functions: mean, standard deviation, and some draws, in the units of y."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from metagrove.learner import ClusterFunctions
from metagrove.mixture.prior import Mixture

__all__ = ["prior_functions"]


def prior_functions(mixture: Mixture, x: np.ndarray, *, num_draws: int, key: PRNGKeyArray) -> ClusterFunctions:
    """The functions of each cluster's prior at these inputs: φᵀ m, ‖φᵀ L‖, and φᵀ(m + L ε) for some ε ~ N(0, I).

    Args:
        mixture: The mixture.
        x: Inputs, shape (n, d).
        num_draws: Number of ε, which are the same for all clusters.
        key: Random key.

    Returns:
        The functions, without noise.
    """
    features = mixture.basis(jnp.asarray(x, float))
    mean = jnp.einsum("nf,kfo->kno", features, mixture.mean)
    design = jnp.einsum("nf,kfor->knor", features, mixture.factor)
    draws = jnp.einsum("knor,dr->kdno", design, jax.random.normal(key, (num_draws, design.shape[-1])))
    shift, scale = np.asarray(mixture.y_shift), np.asarray(mixture.y_scale)
    return ClusterFunctions(
        x=np.asarray(x),
        mean=np.asarray(mean) * scale + shift,
        std=np.asarray(jnp.sqrt(jnp.square(design).sum(-1))) * scale,
        draws=np.asarray(mean[:, None] + draws) * scale + shift,
    )

"""One more cluster for tasks of none of the known ones: its prior is fitted by expectation-maximisation.

E   w_i = m + Σ Φᵀ (Φ Σ Φᵀ + s² I)⁻¹ (y_i - Φ m),   C_i = Σ - Σ Φᵀ (Φ Σ Φᵀ + s² I)⁻¹ Φ Σ
M   m = mean w_i,   Σ = mean(C_i + (w_i - m)(w_i - m)ᵀ)

from the broad prior of `mixture.novelty`, over the rows of the tasks that are of none of these clusters. L is then Σ's
root, cut to the rank of the others. Of the other clusters only the masses change.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.mixture.fit import draw_rows
from metagrove.mixture.novelty import NONE_LOG_ODDS, log_bayes_factor
from metagrove.mixture.prior import Mixture, standardized
from metagrove.mixture.tree import log_masses
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples

__all__ = ["grow_mixture", "simulate"]

GROWTH_TASKS = 2000
"""Number of tasks among which those of none of the clusters are selected."""
LEAST_NOVEL = 20
"""Minimum number of the most novel tasks that a cluster is fitted to."""
EM_STEPS = 100


def grow_mixture(mixture: Mixture, tasks: TaskDraw, *, key: PRNGKeyArray) -> Mixture:
    """The mixture with one more cluster, for the tasks that are of none of the others.

    Args:
        mixture: The mixture.
        tasks: Draws tasks of the current mixture.
        key: Random key.
    """
    rows = draw_rows(tasks, key, GROWTH_TASKS)
    novelty = np.asarray(jax.jit(jax.vmap(log_bayes_factor, in_axes=(None, 0)))(mixture, rows))
    num_novel = max(int((novelty > NONE_LOG_ODDS).sum()), LEAST_NOVEL)
    mean, factor = fit_prior(mixture, jax.tree.map(lambda leaf: leaf[np.argsort(-novelty)[:num_novel]], rows))
    share = num_novel / GROWTH_TASKS
    logits = np.append(log_masses(mixture) + np.log1p(-share), np.log(share))
    return dataclasses.replace(
        mixture,
        mean=jnp.concatenate([mixture.mean, jnp.asarray(mean, float)[None]]),
        factor=jnp.concatenate([mixture.factor, jnp.asarray(factor, float)[None]]),
        logits=jnp.asarray(logits, float),
    )


def fit_prior(mixture: Mixture, rows: Examples) -> tuple[np.ndarray, np.ndarray]:
    """m (f, o) and L (f, o, r) of one Gaussian prior for these tasks, by the module's recursion in double precision."""
    _, features, outputs, rank = mixture.factor.shape
    design, targets, noise = linear_models(mixture, rows)
    amplitudes = np.repeat(np.asarray(mixture.basis.amplitudes(), np.float64), outputs)
    mean, covariance = np.zeros(features * outputs), np.diag(np.square(amplitudes))
    for _ in range(EM_STEPS):
        projected = design @ covariance
        gain = np.linalg.solve(projected @ design.transpose(0, 2, 1) + noise, projected).transpose(0, 2, 1)
        weights = mean + np.einsum("tfn,tn->tf", gain, targets - design @ mean)
        within = covariance - (gain @ projected).mean(0)
        mean = weights.mean(0)
        covariance = within + (weights - mean).T @ (weights - mean) / len(weights)
        covariance = (covariance + covariance.T) / 2
    left, size, _ = np.linalg.svd(covariance)
    factor = (left * np.sqrt(size))[:, :rank]
    return mean.reshape(features, outputs), factor.reshape(features, outputs, rank)


def linear_models(mixture: Mixture, rows: Examples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each task as y = Φ vec(W) + e: Φ (t, n·o, f·o), y (t, n·o) and Cov e; padded rows have no effect."""
    phi = np.asarray(jax.vmap(mixture.basis)(rows.x), np.float64) * np.asarray(rows.mask)[..., None]
    y = np.asarray(jax.vmap(lambda one: standardized(mixture, one))(rows.y), np.float64)
    y = y * np.asarray(rows.mask)[..., None]
    tasks, num_rows, features = phi.shape
    outputs = y.shape[2]
    design = np.einsum("tnf,op->tnofp", phi, np.eye(outputs)).reshape(tasks, num_rows * outputs, features * outputs)
    noise = np.diag(np.tile(np.exp(2 * np.asarray(mixture.log_noise, np.float64)), num_rows))
    return design, y.reshape(tasks, -1), noise


def simulate(mixture: Mixture, rows: Examples, *, key: PRNGKeyArray) -> Examples:
    """Tasks with the inputs of these (a batch of rows) whose targets are drawn from the mixture itself.

    They replace tasks of families that are absent when a dendrogram is built.
    """

    def one(rows: Examples, key: PRNGKeyArray) -> Float[Array, "n o"]:
        cluster_key, weight_key, noise_key = jax.random.split(key, 3)
        k = jax.random.categorical(cluster_key, mixture.logits)
        weights = mixture.mean[k] + mixture.factor[k] @ jax.random.normal(weight_key, mixture.factor.shape[-1:])
        noise = jnp.exp(mixture.log_noise)[None] * jax.random.normal(noise_key, rows.y.shape)
        return (mixture.basis(rows.x) @ weights + noise) * mixture.y_scale[None] + mixture.y_shift[None]

    targets = jax.jit(jax.vmap(one))(rows, jax.random.split(key, rows.y.shape[0]))
    return dataclasses.replace(rows, y=targets)

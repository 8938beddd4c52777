"""Fitting the mixture: its marginal likelihood on training tasks is maximised from several starts at once.

maximise  mean over tasks of  log Σ_k π_k N(y; Φ m_k, Φ L_k L_kᵀ Φᵀ + s² I),   y of support and query together

The noise has a lower bound that falls geometrically, so that clusters separate by coarse shape first and then by
detail; s itself is learned above the bound. Starts are mixtures stacked along a first axis that share their tasks;
`tree.choose_start` selects one. A task's family is never used.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.mixture.prior import Mixture
from metagrove.nets.basis import Basis, BasisSettings
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, join

MEAN_STD, FACTOR_STD = 0.1, 0.33
"""Standard deviation of the first m_k and L_k, in units of the targets' standard deviation and of φ's amplitudes."""


@eqx.filter_jit
def draw_rows(tasks: TaskDraw, key: PRNGKeyArray, num_tasks: int) -> Examples:
    """Support and query rows of `num_tasks` tasks, as a batch."""

    def one(key: PRNGKeyArray) -> Examples:
        task = tasks.sample(key)
        return join(task.support, task.query)

    return jax.vmap(one)(jax.random.split(key, num_tasks))


@eqx.filter_jit
def draw_mixture(basis: Basis, y_dim: int, num_clusters: int, rank: int, *, key: PRNGKeyArray) -> Mixture:
    """A random mixture for targets of mean 0 and standard deviation 1.

    m ~ .1 a N(0, 1),   L ~ .33 a N(0, 1),   with φ's amplitudes a
    """
    mean_key, factor_key = jax.random.split(key)
    amplitudes = jnp.asarray(basis.amplitudes(), float)[None, :, None]
    shape = (num_clusters, basis.num_features, y_dim)
    rank = min(rank, basis.num_features * y_dim)
    return Mixture(
        basis=basis,
        mean=MEAN_STD * amplitudes * jax.random.normal(mean_key, shape),
        factor=FACTOR_STD * amplitudes[..., None] * jax.random.normal(factor_key, (*shape, rank)),
        logits=jnp.zeros(num_clusters),
        log_noise=jnp.zeros(y_dim),
        y_shift=jnp.zeros(y_dim),
        y_scale=jnp.ones(y_dim),
    )


def scale_to(mixture: Mixture, settings: BasisSettings, rows: Examples, *, key: PRNGKeyArray) -> Mixture:
    """The mixture with features and targets scaled to these rows (of a batch of tasks).

    Constant targets are scaled by their absolute value.

    Raises:
        InputError: If there is no row, or a value is not finite.
    """
    mask = np.asarray(rows.mask)
    x, y = np.asarray(rows.x)[mask], np.asarray(rows.y, np.float64)[mask]
    basis = settings(x.reshape(len(x), -1), key=key)
    if not np.isfinite(y).all():
        raise InputError("evidence clusters need finite targets: check the training tasks")
    scale, size = y.std(0), np.abs(y).max(0)
    scale = np.where(scale > 1e-6 * size, scale, np.maximum(size, 1))
    fields = (basis, jnp.asarray(y.mean(0), float), jnp.asarray(scale, float))
    return eqx.tree_at(lambda m: (m.basis, m.y_shift, m.y_scale), mixture, fields)


@eqx.filter_jit
def draw_starts(mixture: Mixture, num_starts: int, *, key: PRNGKeyArray) -> Mixture:
    """Random mixtures of the shape and scales of this one, stacked along a first axis."""
    num_clusters, _, y_dim, rank = mixture.factor.shape

    def one(key: PRNGKeyArray) -> Mixture:
        basis_key, key = jax.random.split(key)
        drawn = draw_mixture(mixture.basis.redraw(basis_key), y_dim, num_clusters, rank, key=key)
        return eqx.tree_at(lambda m: (m.y_shift, m.y_scale), drawn, (mixture.y_shift, mixture.y_scale))

    each = [one(k) for k in jax.random.split(key, num_starts)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


def noise_bound(first: float, last: float, annealed: float, progress: Float[Array, ""] | float) -> Float[Array, ""]:
    """log of the lower bound on s: from `first` to `last` geometrically in the first part of the fit, then constant."""
    start, end = jnp.log(first), jnp.log(last)
    return start + (end - start) * jnp.minimum(progress / max(annealed, 1e-6), 1.0)


def bound_noise(mixture: Mixture, bound: Float[Array, ""], *, learned: bool) -> Mixture:
    """The mixture with s no less than the bound, or equal to it."""
    log_noise = jnp.maximum(mixture.log_noise, bound) if learned else jnp.full_like(mixture.log_noise, bound)
    return eqx.tree_at(lambda mixture: mixture.log_noise, mixture, log_noise)


@jax.custom_vjp
def finite_gradient(tree: Any) -> Any:
    """The tree itself, whose gradient is 0 where it is not finite: a start that diverges is not changed."""
    return tree


finite_gradient.defvjp(
    lambda tree: (tree, None),
    lambda _, grads: (jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0), grads),),
)


def start_losses(starts: Mixture, rows: Examples, bound: Float[Array, ""], *, learned: bool) -> Float[Array, " starts"]:
    """-log p(y) of one task's rows under each start."""
    params, static = eqx.partition(starts, eqx.is_inexact_array)
    starts = eqx.combine(finite_gradient(params), static)

    def loss(mixture: Mixture) -> Float[Array, ""]:
        return -bound_noise(mixture, bound, learned=learned).log_marginal(rows)

    return eqx.filter_vmap(loss)(starts)


def mean_of_finite(losses: Float[Array, " starts"]) -> Float[Array, ""]:
    """The mean over the starts whose loss is finite; NaN if there is none."""
    finite = jnp.isfinite(losses)
    return jnp.where(finite, losses, 0).sum() / jnp.where(finite.any(), finite.sum(), jnp.nan)

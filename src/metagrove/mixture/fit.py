"""Fitting the mixture: its marginal likelihood on training tasks is maximised from several starts at once.

maximise  mean over tasks of  log Σ_k π_k N(y; Φ m_k, Φ L_k L_kᵀ Φᵀ + s² I),   y of support and query together

by Adam with cosine decay. The noise has a lower bound that falls geometrically, so that clusters first part by coarse
shape and then by detail; s itself is learned above the bound. Of the starts, which share their tasks and run in one
call, the one with the largest evidence on validation tasks is kept. A task's family is never used.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import DivergedError, check_at_least_one
from metagrove.mixture.prior import Mixture
from metagrove.nets.basis import BasisSettings
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, join

START_TASKS = 500
"""Training tasks that decide the scale of inputs and targets."""
MEAN_STD, FACTOR_STD = 0.1, 0.33
"""Standard deviation of the first m_k and L_k, in units of the targets' standard deviation and of φ's amplitudes."""


@dataclasses.dataclass(frozen=True)
class MixtureFit:
    """Settings of a mixture and of its fit."""

    basis: BasisSettings = BasisSettings()
    """The features."""
    clusters: int = 8
    """Number of clusters at first; empty ones are pruned later."""
    rank: int = 6
    """R, how many directions a cluster's functions vary in; at most the number of features."""
    steps: int = 3000
    """Adam steps."""
    batch: int = 100
    """Tasks of a step."""
    lr: float = 0.01
    """First learning rate, with cosine decay to 0."""
    noise: tuple[float, float] = (0.25, 0.005)
    """First and last lower bound on s, in units of the targets' standard deviation."""
    annealed: float = 0.75
    """Share of the steps in which the bound falls."""
    learn_noise: bool = True
    """Learn s above the bound; otherwise s is the bound."""
    restarts: int = 4
    """Starts that run together."""
    validation_tasks: int = 1000
    """Tasks that choose among them."""

    def validation_errors(self) -> list[str]:
        """What is wrong with the settings, a line each."""
        counts = check_at_least_one(self, "clusters", "rank", "steps", "batch", "restarts", "validation_tasks")
        first, last = self.noise
        noise = [] if first >= last > 0 else [f"noise must be a pair that falls and stays above 0, got {self.noise}"]
        share = [] if 0 <= self.annealed <= 1 else [f"annealed must be 0 to 1, got {self.annealed}"]
        return counts + noise + share + self.basis.validation_errors()


class FitState(eqx.Module):
    """Everything a later step needs: one start, or several along a first axis."""

    mixture: Mixture
    optimizer: Any
    step: Array


class FitResult(eqx.Module):
    """The chosen mixture, and what is known about all starts."""

    mixture: Mixture
    restarts: Mixture
    """Every start's result, stacked."""
    log_marginal: Float[np.ndarray, " restarts"]
    """Mean log marginal likelihood of a validation task, by start."""


def rows_of(tasks: TaskDraw, keys: Array) -> Examples:
    """Support and query rows of a task for each key."""

    def one(key: PRNGKeyArray) -> Examples:
        task = tasks.sample(key)
        return join(task.support, task.query)

    return jax.vmap(one)(keys)


def start_mixture(fit: MixtureFit, rows: Examples, *, key: PRNGKeyArray) -> Mixture:
    """A random mixture for tasks such as these (a batch of rows).

    m ~ .1 a N(0, 1),   L ~ .33 a N(0, 1),   with φ's amplitudes a and targets of standard deviation 1
    """
    basis_key, mean_key, factor_key = jax.random.split(key, 3)
    mask = np.asarray(rows.mask)
    x, y = np.asarray(rows.x)[mask], np.asarray(rows.y, np.float64)[mask]
    basis = fit.basis(x.reshape(len(x), -1), key=basis_key)
    amplitudes = jnp.asarray(basis.amplitudes(), float)[None, :, None]
    shape = (fit.clusters, basis.num_features, y.shape[1])
    rank = min(fit.rank, basis.num_features * y.shape[1])
    scale = y.std(0)
    return Mixture(
        basis=basis,
        mean=MEAN_STD * amplitudes * jax.random.normal(mean_key, shape),
        factor=FACTOR_STD * amplitudes[..., None] * jax.random.normal(factor_key, (*shape, rank)),
        logits=jnp.zeros(fit.clusters),
        log_noise=jnp.full(y.shape[1], jnp.log(fit.noise[0])),
        y_shift=jnp.asarray(y.mean(0), float),
        y_scale=jnp.asarray(np.where(scale > 1e-6 * np.abs(y).max(0), scale, np.maximum(np.abs(y).max(0), 1)), float),
    )


def noise_bound(fit: MixtureFit, step: Array) -> Array:
    """log of the lower bound on s at a step: from noise[0] to noise[1] geometrically, then constant."""
    first, last = jnp.log(fit.noise[0]), jnp.log(fit.noise[1])
    return first + (last - first) * jnp.minimum(step / max(fit.annealed * fit.steps, 1), 1.0)


def optimizer_of(fit: MixtureFit) -> optax.GradientTransformation:
    """Adam with cosine decay, each start on its own."""
    return optax.chain(optax.clip_by_global_norm(1e3), optax.adam(optax.cosine_decay_schedule(fit.lr, fit.steps)))


def fit_step(fit: MixtureFit, state: FitState, rows: Examples) -> FitState:
    """One Adam step of one start on a batch of rows."""
    params, static = eqx.partition(state.mixture, eqx.is_inexact_array)

    def loss(params: Any) -> Array:
        mixture = at_least(eqx.combine(params, static), noise_bound(fit, state.step), learned=fit.learn_noise)
        return -jax.vmap(mixture.log_marginal)(rows).mean()

    updates, optimizer = optimizer_of(fit).update(jax.grad(loss)(params), state.optimizer, params)
    mixture = eqx.apply_updates(state.mixture, updates)
    return FitState(mixture, optimizer, state.step + 1)


def at_least(mixture: Mixture, bound: Array, *, learned: bool) -> Mixture:
    """The mixture with s no less than the bound, or equal to it."""
    log_noise = jnp.maximum(mixture.log_noise, bound) if learned else jnp.full_like(mixture.log_noise, bound)
    return eqx.tree_at(lambda mixture: mixture.log_noise, mixture, log_noise)


def start_fit(fit: MixtureFit, tasks: TaskDraw, *, key: PRNGKeyArray) -> FitState:
    """The state before the first step, a row for each start."""
    data_key, *keys = jax.random.split(key, fit.restarts + 1)
    rows = eqx.filter_jit(rows_of)(tasks, jax.random.split(data_key, START_TASKS))
    starts = [start_mixture(fit, rows, key=k) for k in keys]
    mixture = jax.tree.map(lambda *each: jnp.stack(each), *starts)
    optimizer = eqx.filter_vmap(lambda m: optimizer_of(fit).init(eqx.filter(m, eqx.is_inexact_array)))(mixture)
    return FitState(mixture, optimizer, jnp.zeros(fit.restarts, int))


@eqx.filter_jit
def fit_block(fit: MixtureFit, state: FitState, tasks: TaskDraw, key: PRNGKeyArray, steps: int) -> FitState:
    """So many steps; step i's tasks depend on `key` and i alone."""

    def body(_: Array, state: FitState) -> FitState:
        step_key = jax.random.fold_in(key, state.step[0])
        rows = rows_of(tasks, jax.random.split(step_key, fit.batch))
        return eqx.filter_vmap(lambda one: fit_step(fit, one, rows))(state)

    return jax.lax.fori_loop(0, steps, body, state)


@eqx.filter_jit
def mean_log_marginal(mixtures: Mixture, rows: Examples) -> Float[Array, " restarts"]:
    """Mean over tasks (a batch of rows) of log p(y), for each of several mixtures."""
    each = eqx.filter_vmap(lambda mixture: jax.lax.map(mixture.log_marginal, rows, batch_size=100))
    return each(mixtures).mean(1)


def finish_fit(fit: MixtureFit, state: FitState, tasks: TaskDraw, *, key: PRNGKeyArray) -> FitResult:
    """Choose among the starts by the evidence of validation tasks; one that has diverged is never chosen.

    Raises:
        DivergedError: If all have.
    """
    bound = jnp.log(jnp.asarray(fit.noise[1], float))
    restarts = at_least(state.mixture, bound, learned=fit.learn_noise)
    rows = eqx.filter_jit(rows_of)(tasks, jax.random.split(key, fit.validation_tasks))
    scores = np.asarray(mean_log_marginal(restarts, rows), np.float64)
    if not np.isfinite(scores).any():
        raise DivergedError(f"no start of the mixture stayed finite in {fit.steps} steps: lower lr (now {fit.lr})")
    best = int(np.where(np.isfinite(scores), scores, -np.inf).argmax())
    return FitResult(jax.tree.map(lambda leaf: leaf[best], restarts), restarts, scores)


def fit_mixture(fit: MixtureFit, tasks: TaskDraw, validation: TaskDraw, *, key: PRNGKeyArray) -> FitResult:
    """Start, all steps, choice.

    Args:
        fit: Settings.
        tasks: Draws training tasks.
        validation: Draws the tasks that choose among starts.
        key: Random key.
    """
    start_key, train_key, validation_key = jax.random.split(key, 3)
    state = start_fit(fit, tasks, key=start_key)
    state = fit_block(fit, state, tasks, train_key, fit.steps)
    return finish_fit(fit, state, validation, key=validation_key)

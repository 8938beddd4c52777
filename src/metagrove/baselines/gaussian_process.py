"""Gaussian processes for a new task: with a kernel shared by all tasks, or with one chosen for each task alone.

f ~ GP(φ(x)ᵀβ, k),   k(x, x') = a₀² + Σ_d a_d² z_d z'_d + b² exp(-½ Σ_d (z_d - z'_d)² / ℓ_d²),   y = f(x) + s e

The shared kernel maximises the marginal likelihood of the training tasks over β, a, b, ℓ and s by L-BFGS. For each task
alone the mean is the support's, ℓ and s are those of a grid that maximise the marginal likelihood of its support.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.baselines.baseline import Baseline, Fitted, at_once
from metagrove.baselines.data import Data, Rows, mean_loss
from metagrove.baselines.features import Features, FeatureSettings, Shape
from metagrove.baselines.logistic import as_examples
from metagrove.learner import Info
from metagrove.task import Examples, Spec

JITTER = 1e-5
MOST_TASKS, MOST_ROWS = 150, 30
"""Training tasks, and rows of each, whose marginal likelihood is maximised."""
LENGTHS, NOISES = (0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0), (0.01, 0.03, 0.1, 0.3, 0.6, 0.9)


class Kernel(eqx.Module):
    """Logarithms of the kernel's parameters; targets have standard deviation 1."""

    constant: Float[Array, ""]
    slopes: Float[Array, " d"]
    amplitude: Float[Array, ""]
    lengths: Float[Array, " d"]
    noise: Float[Array, ""]

    def __call__(self, x: Float[Array, "n d"], other: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Covariance of f at standardised inputs."""
        slopes, lengths = jnp.exp(self.slopes), jnp.exp(self.lengths)
        linear = (x * slopes[None]) @ (other * slopes[None]).T
        apart = (x[:, None] - other[None]) / lengths[None, None]
        smooth = jnp.exp(2 * self.amplitude - 0.5 * jnp.square(apart).sum(-1))
        return jnp.exp(2 * self.constant) + linear + smooth


class SharedKernel(eqx.Module):
    """Everything that tasks share."""

    kernel: Kernel
    features: Features
    weights: Float[Array, "f o"]
    """β."""
    y_shift: Float[Array, " o"]
    y_scale: Float[Array, " o"]


class Process(eqx.Module):
    """A task's posterior; as a predictor it gives its mean."""

    shared: SharedKernel
    x: Float[Array, "n d"]
    inverse_root: Float[Array, "n n"]
    """L⁻¹ of the covariance K + s² I = L Lᵀ of the support rows; masked rows have none with others."""
    alpha: Float[Array, "n o"]
    level: Float[Array, " o"]
    """Added to the mean function."""
    mask: Bool[Array, " n"]
    variance: Float[Array, ""]
    """Factor of all covariances."""

    def _covariance(self, x: Float[Array, "m d"]) -> Float[Array, "m n"]:
        unit = self.shared.features.straight.unit
        return self.shared.kernel(unit(x), unit(self.x)) * self.mask[None]

    def __call__(self, x: Float[Array, "m d"], mask: Bool[Array, " m"] | None = None) -> Float[Array, "m o"]:
        """Posterior mean of y."""
        del mask
        mean = self.shared.features(x) @ self.shared.weights + self.level[None]
        values = mean + self._covariance(x) @ self.alpha
        return values * self.shared.y_scale[None] + self.shared.y_shift[None]

    def std(self, x: Float[Array, "m d"], mask: Bool[Array, " m"] | None = None) -> Float[Array, "m o"]:
        """Standard deviation of a new y."""
        del mask
        kernel, unit = self.shared.kernel, self.shared.features.straight.unit
        z = unit(x)
        prior = jax.vmap(lambda row: kernel(row[None], row[None])[0, 0])(z)
        explained = jnp.square(self.inverse_root @ self._covariance(x).T).sum(0)
        variance = jnp.maximum(prior - explained, 0) + jnp.exp(2 * kernel.noise)
        return jnp.sqrt(self.variance * variance)[:, None] * self.shared.y_scale[None]


def factor(kernel: Kernel, z: Float[Array, "n d"], mask: Bool[Array, " n"]) -> Float[Array, "n n"]:
    """Cholesky factor of K + s² I; a masked row has variance 1 and no covariance."""
    both = mask[:, None] & mask[None]
    covariance = jnp.where(both, kernel(z, z), 0)
    return jnp.linalg.cholesky(covariance + jnp.diag(jnp.where(mask, jnp.exp(2 * kernel.noise) + JITTER, 1.0)))


def log_marginal(shared: SharedKernel, rows: Examples) -> Float[Array, ""]:
    """log N(y; φᵀβ, K + s² I) of standardised targets, without its constant."""
    root = factor(shared.kernel, shared.features.straight.unit(rows.x), rows.mask)
    residual = (rows.y - shared.features(rows.x) @ shared.weights) * rows.mask[:, None]
    half = jax.scipy.linalg.solve_triangular(root, residual, lower=True)
    return -0.5 * jnp.square(half).sum() - residual.shape[1] * jnp.log(jnp.diagonal(root)).sum()


def condition(shared: SharedKernel, support: Examples, level: Array, variance: Array) -> Process:
    """The posterior of a task."""
    y = (support.y - shared.y_shift[None]) / shared.y_scale[None]
    residual = (y - shared.features(support.x) @ shared.weights - level[None]) * support.mask[:, None]
    root = factor(shared.kernel, shared.features.straight.unit(support.x), support.mask)
    inverse_root = jax.scipy.linalg.solve_triangular(root, jnp.eye(root.shape[0]), lower=True)
    alpha = inverse_root.T @ (inverse_root @ residual)
    return Process(shared, support.x, inverse_root, alpha, level, support.mask, variance)


@dataclasses.dataclass(frozen=True)
class SharedGP(Baseline):
    """A Gaussian process whose kernel and mean function are learned from all training tasks."""

    shape: Shape = "linear"
    """Curve of each numeric input in the mean function."""
    size: int = 0
    """Degree of the polynomials, or number of knots of the splines."""
    products: bool = False
    """Products of pairs of inputs in the mean function."""
    curved: tuple[int, ...] = ()
    """Inputs that have a curve."""

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> SharedKernel:
        del key
        features = FeatureSettings(self.shape, self.size, self.products, self.curved).blank(spec.x_shape[0])
        return first_kernel(features, spec.x_shape[0], jnp.zeros(spec.y_dim), jnp.ones(spec.y_dim))

    def adapt(
        self, meta: SharedKernel, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Process, Info]:
        del key, steps
        return at_once(condition(meta, support, jnp.zeros_like(meta.y_shift), jnp.ones(())))


@dataclasses.dataclass(frozen=True)
class TaskGP(Baseline):
    """A Gaussian process for each task alone."""

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> SharedKernel:
        del key
        features = FeatureSettings().blank(spec.x_shape[0])
        return first_kernel(features, spec.x_shape[0], jnp.zeros(spec.y_dim), jnp.ones(spec.y_dim))

    def adapt(
        self, meta: SharedKernel, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Process, Info]:
        del key, steps
        count = jnp.maximum(support.mask.sum(), 1)
        y = (support.y - meta.y_shift[None]) / meta.y_scale[None]
        level = (y * support.mask[:, None]).sum(0) / count
        length, noise = (jnp.log(part.reshape(-1)) for part in jnp.meshgrid(jnp.array(LENGTHS), jnp.array(NOISES)))

        def at(length: Array, noise: Array) -> tuple[Process, Array]:
            kernel = dataclasses.replace(
                meta.kernel, lengths=jnp.full_like(meta.kernel.lengths, length), noise=noise, amplitude=half_log(noise)
            )
            found = condition(dataclasses.replace(meta, kernel=kernel), support, level, jnp.ones(()))
            residual = (y - level[None]) * support.mask[:, None]
            variance = jnp.maximum((found.alpha * residual).sum() / (count * y.shape[1]), 1e-8)
            determinant = -jnp.log(jnp.diagonal(found.inverse_root)).sum()
            evidence = -0.5 * count * y.shape[1] * jnp.log(variance) - y.shape[1] * determinant
            return dataclasses.replace(found, variance=variance), evidence

        found, evidence = jax.vmap(at)(length, noise)
        best = evidence.argmax()
        return at_once(jax.tree.map(lambda leaf: leaf[best], found))


def half_log(noise: Array) -> Array:
    """log b for b² = 1 - s², so that targets have variance 1."""
    return 0.5 * jnp.log1p(-jnp.exp(2 * noise))


NOTHING = -20.0
"""log of the amplitude of a disabled part of the kernel."""


def first_kernel(features: Features, dim: int, y_shift: Any, y_scale: Any) -> SharedKernel:
    """An initial kernel without a linear part, as for each task alone."""
    off = jnp.asarray(NOTHING)
    kernel = Kernel(off, jnp.full(dim, NOTHING), jnp.zeros(()), jnp.zeros(dim), jnp.log(jnp.asarray(0.3)))
    weights = jnp.zeros((features.num_features, y_shift.shape[0]))
    return SharedKernel(kernel, features, weights, y_shift, y_scale)


def scales(data: Data) -> tuple[Array, Array]:
    """Mean and standard deviation of the training targets."""
    _, y = data.train.flat()
    scale = y.std(0)
    return jnp.asarray(y.mean(0), float), jnp.asarray(np.where(scale > 1e-9, scale, 1.0), float)


def fit_task_gp(data: Data) -> Fitted:
    """Nothing is learned but the scales of inputs and targets."""
    x, _ = data.train.flat()
    return Fitted(TaskGP(), first_kernel(FeatureSettings()(x), x.shape[1], *scales(data)))


def fit_shared_gp(data: Data) -> Fitted:
    """Maximise the marginal likelihood of the training tasks, with a linear and a curved mean function."""
    x, _ = data.train.flat()
    shapes = [FeatureSettings()] + ([FeatureSettings("spline", 6, False, data.curved)] if data.curved else [])
    support, query = data.validation.joined()
    best: tuple[float, Fitted] | None = None
    for settings in shapes:
        meta = maximize(first_shared(settings(x), x.shape[1], *scales(data)), data.train)
        learner = SharedGP(**dataclasses.asdict(settings))
        loss = mean_loss(np.asarray(predict_tasks(learner, meta, support, query)), query, classifies=False)
        if best is None or loss < best[0]:
            best = loss, Fitted(learner, meta, f"mean {settings}")
    assert best is not None
    return best[1]


def first_shared(features: Features, dim: int, y_shift: Array, y_scale: Array) -> SharedKernel:
    """Initial values with all parts of the kernel."""
    blank = first_kernel(features, dim, y_shift, y_scale)
    half = jnp.log(jnp.asarray(0.5))
    kernel = Kernel(half, jnp.full(dim, half), half, jnp.zeros(dim), half)
    return dataclasses.replace(blank, kernel=kernel)


def predict_tasks(learner: Baseline, meta: Any, support: Rows, query: Rows) -> Array:
    """Predictions for the query rows of a batch of tasks."""
    return _predict_tasks(learner, meta, as_examples(support), jnp.asarray(query.x, float))


@eqx.filter_jit
def _predict_tasks(learner: Baseline, meta: Any, support: Examples, query: Array) -> Array:
    return jax.lax.map(lambda both: learner.adapt(meta, both[0])[0](both[1]), (support, query), batch_size=64)


def maximize(start: SharedKernel, rows: Rows) -> SharedKernel:
    """L-BFGS on kernel, noise and mean function, in double precision."""
    with jax.enable_x64(True):
        kernel, weights = _maximize(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), start), rows)
    single = [jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float32), one) for one in (kernel, weights)]
    return dataclasses.replace(start, kernel=single[0], weights=single[1])


def _maximize(start: SharedKernel, rows: Rows) -> tuple[Kernel, Array]:
    from scipy.optimize import minimize

    few = np.linspace(0, len(rows.x) - 1, min(MOST_TASKS, len(rows.x))).astype(int)
    y = (rows.y - np.asarray(start.y_shift)) / np.asarray(start.y_scale)
    tasks = as_examples(Rows(rows.x[few, :MOST_ROWS], y[few, :MOST_ROWS], rows.mask[few, :MOST_ROWS]))
    flat, unravel = ravel_pytree((start.kernel, start.weights))

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _loss(start, unravel(jnp.asarray(values, float)), tasks)
        return float(value), np.asarray(gradient_of(gradient), np.float64)

    def gradient_of(tree: Any) -> Array:
        return ravel_pytree(tree)[0]

    bounds = [(-6.0, 4.0)] * (len(flat) - start.weights.size) + [(-50.0, 50.0)] * start.weights.size
    found = minimize(
        loss, np.asarray(flat, np.float64), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 150}
    )
    return unravel(jnp.asarray(found.x, float))


@eqx.filter_jit
def _loss(start: SharedKernel, params: Any, tasks: Examples) -> tuple[Array, Any]:
    def mean_loss(params: Any) -> Array:
        shared = dataclasses.replace(start, kernel=params[0], weights=params[1])
        return -jax.vmap(lambda rows: log_marginal(shared, rows))(tasks).sum() / tasks.mask.sum()

    return jax.value_and_grad(mean_loss)(params)

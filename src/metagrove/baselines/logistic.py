"""Logistic mixed models with random coefficients on fixed features, by Laplace's approximation.

log p(y = k | x, W) = log softmax_k [0, φ(x)ᵀW],   W ~ N(m, Σ) for each task

The mode Ŵ of each task's posterior is computed by Newton's method, with C the inverse Hessian there. EM alternates
that with m = mean Ŵ and Σ = mean (C + (Ŵ - m)(Ŵ - m)ᵀ). A prediction averages the softmax over N(Ŵ, C) by shrinking
each logit, μ / √(1 + π v / 8) (MacKay, 1992). Logistic regression of each task alone and one model for all tasks are
the same with another prior.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.baselines.baseline import Baseline, Fitted, at_once
from metagrove.baselines.data import Data, Rows, mean_loss
from metagrove.baselines.features import Features, FeatureSettings, Shape, candidates
from metagrove.learner import Info
from metagrove.losses import LossFn, cross_entropy
from metagrove.task import Examples, Spec

NEWTON_STEPS = 8
EM_STEPS = 30
SHRINKAGE = 10.0
"""Weight, in tasks, of the prior that random coefficients are uncorrelated."""
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)
LEAST_VARIANCE = 1e-4


class LogisticPrior(eqx.Module):
    """Features, and the prior of their weights for all classes but the first: p = f * (classes - 1)."""

    features: Features
    mean: Float[Array, " p"]
    covariance: Float[Array, "p p"]


class LogisticPosterior(eqx.Module):
    """A task's weights and their uncertainty; as a predictor it gives log-probabilities."""

    features: Features
    weights: Float[Array, "f c"]
    covariance: Float[Array, "p p"]

    def __call__(self, x: Float[Array, "n d"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n k"]:
        """log softmax of [0, μ / √(1 + π v / 8)]."""
        del mask
        phi = self.features(x)
        num, classes = self.weights.shape
        blocks = self.covariance.reshape(num, classes, num, classes)
        own = jnp.einsum("fcgc->cfg", blocks)
        variance = jnp.einsum("nf,cfg,ng->nc", phi, own, phi)
        logits = (phi @ self.weights) / jnp.sqrt(1 + math.pi * variance / 8)
        return jax.nn.log_softmax(jnp.concatenate([jnp.zeros_like(logits[:, :1]), logits], axis=1))


def laplace(prior: LogisticPrior, rows: Examples) -> LogisticPosterior:
    """The mode of a task's posterior by Newton's method, with halved first steps, and the inverse Hessian there."""
    phi, y = prior.features(rows.x) * rows.mask[:, None], rows.y[:, 1:]
    num, classes = phi.shape[1], y.shape[1]
    precision = jnp.linalg.inv(prior.covariance)

    def hessian_and_gradient(w: Float[Array, " p"]) -> tuple[Array, Array]:
        logits = phi @ w.reshape(num, classes)
        odds = jnp.concatenate([jnp.zeros_like(logits[:, :1]), logits], axis=1)
        p = jax.nn.softmax(odds)[:, 1:]
        each = (jnp.eye(classes)[None] - p[:, None]) * p[:, :, None]
        curvature = jnp.einsum("nf,ncd,ng->fcgd", phi, each, phi).reshape(num * classes, -1)
        gradient = (phi.T @ ((p - y) * rows.mask[:, None])).reshape(-1) + precision @ (w - prior.mean)
        return curvature + precision, gradient

    def step(i: Array, w: Float[Array, " p"]) -> Float[Array, " p"]:
        hessian, gradient = hessian_and_gradient(w)
        return w - jnp.where(i < 2, 0.5, 1.0) * jnp.linalg.solve(hessian, gradient)

    w = jax.lax.fori_loop(0, NEWTON_STEPS, step, prior.mean)
    return LogisticPosterior(prior.features, w.reshape(num, classes), jnp.linalg.inv(hessian_and_gradient(w)[0]))


@dataclasses.dataclass(frozen=True)
class LogisticMixedModel(Baseline):
    """A logistic mixed model on fixed features; `fit_logistic` selects its settings and fits it."""

    loss: LossFn = cross_entropy
    """Query loss."""
    shape: Shape = "linear"
    """Curve of each numeric input."""
    size: int = 0
    """Degree of the polynomials, or number of knots of the splines."""
    products: bool = False
    """Products of pairs of inputs as features."""
    curved: tuple[int, ...] = ()
    """Inputs that have a curve."""

    @property
    def features(self) -> FeatureSettings:
        """Settings of the features."""
        return FeatureSettings(self.shape, self.size, self.products, self.curved)

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> LogisticPrior:
        del key
        features = self.features.blank(spec.x_shape[0])
        size = features.num_features * (spec.y_dim - 1)
        return LogisticPrior(features, jnp.zeros(size), jnp.eye(size))

    def adapt(
        self, meta: LogisticPrior, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[LogisticPosterior, Info]:
        del key, steps
        return at_once(laplace(meta, support))


@eqx.filter_jit
def laplace_tasks(prior: LogisticPrior, rows: Examples) -> tuple[Array, Array]:
    """Modes and covariances of a batch of tasks."""

    def one(rows: Examples) -> tuple[Array, Array]:
        found = laplace(prior, rows)
        return found.weights.reshape(-1), found.covariance

    return jax.vmap(one)(rows)


@eqx.filter_jit
def predict_tasks(prior: LogisticPrior, support: Examples, query: Float[Array, "t n d"]) -> Float[Array, "t n k"]:
    """Log-probabilities of the query rows of a batch of tasks."""
    return jax.vmap(lambda rows, x: laplace(prior, rows)(x))(support, query)


def as_examples(rows: Rows) -> Examples:
    """Rows as JAX arrays."""
    return Examples(jnp.asarray(rows.x, float), jnp.asarray(rows.y, float), jnp.asarray(rows.mask))


def fit_prior(features: Features, rows: Examples, steps: int = EM_STEPS) -> LogisticPrior:
    """EM with Laplace's approximation, from a standard normal prior."""
    size = features.num_features * (rows.y.shape[-1] - 1)
    prior = LogisticPrior(features, jnp.zeros(size), jnp.eye(size))
    for _ in range(steps):
        modes, covariances = (np.asarray(part, np.float64) for part in laplace_tasks(prior, rows))
        mean = modes.mean(0)
        covariance = (covariances.sum(0) + (modes - mean).T @ (modes - mean)) / len(modes)
        share = SHRINKAGE / (len(modes) + SHRINKAGE)
        covariance = (1 - share) * covariance + share * np.diag(np.diag(covariance)) + LEAST_VARIANCE * np.eye(size)
        prior = LogisticPrior(features, jnp.asarray(mean, float), jnp.asarray(covariance, float))
    return prior


def fit_logistic(data: Data) -> Fitted:
    """Fit a model for each choice of features, and keep the one with the least log loss on validation tasks."""
    x, _ = data.train.flat()
    rows = as_examples(data.train)
    shapes = [one for one in candidates(x.shape[1], data.curved) if one.size in (0, 2, 5)]
    return best_of(data, ((one, fit_prior(one(x), rows), str(one)) for one in shapes))


def best_of(data: Data, all_of: Iterable[tuple[FeatureSettings, LogisticPrior, str]]) -> Fitted:
    """The prior with the least log loss on validation tasks."""
    support, query = data.validation.joined()
    query_x = jnp.asarray(query.x, float)

    def loss(one: tuple[FeatureSettings, LogisticPrior, str]) -> float:
        found = np.asarray(predict_tasks(one[1], as_examples(support), query_x), np.float64)
        value = mean_loss(found, query, classifies=True)
        return value if math.isfinite(value) else math.inf

    settings, prior, words = min(all_of, key=loss)
    return Fitted(LogisticMixedModel(**dataclasses.asdict(settings)), prior, words)


def fit_task_logistic(data: Data) -> Fitted:
    """Logistic regression of each task alone, with the penalty that is best on validation tasks."""
    x, y = data.train.flat()
    features = FeatureSettings()(x)
    size = features.num_features * (y.shape[1] - 1)

    def prior(penalty: float) -> LogisticPrior:
        return LogisticPrior(features, jnp.zeros(size), jnp.eye(size) / penalty)

    return best_of(data, ((FeatureSettings(), prior(p), f"penalty {p:g}") for p in PENALTIES))


def fit_pooled_logistic(data: Data) -> Fitted:
    """One logistic model for all tasks: the mode of all rows together, and no variance."""
    x, y = data.train.flat()
    together = as_examples(Rows(x[None], y[None], np.ones((1, len(x)), bool)))

    def pooled(settings: FeatureSettings) -> tuple[FeatureSettings, LogisticPrior, str]:
        features = settings(x)
        size = features.num_features * (y.shape[1] - 1)
        modes, _ = laplace_tasks(LogisticPrior(features, jnp.zeros(size), 100 * jnp.eye(size)), together)
        return settings, LogisticPrior(features, modes[0], LEAST_VARIANCE * jnp.eye(size)), str(settings)

    shapes = [one for one in candidates(x.shape[1], data.curved) if one.size in (0, 2)]
    return best_of(data, map(functools.partial(pooled), shapes))

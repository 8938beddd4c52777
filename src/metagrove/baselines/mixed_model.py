"""Linear mixed models with random coefficients on fixed features, conditioned on a new task's support in closed form.

y = φ(x)ᵀ W + s e,   W ~ N(m, Σ) for each task,   prediction φ(x)ᵀ E[W | support]

It is the mixture of `metagrove.mixture` with one cluster (or a few), fitted by EM. Ridge regression of each task alone
and one linear model for all tasks are the same with another prior: Σ = s² / penalty, and Σ = 0.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from metagrove.baselines.baseline import Baseline, Fitted, at_once
from metagrove.baselines.data import Data, Rows, mean_loss
from metagrove.baselines.features import Features, FeatureSettings, Shape, candidates
from metagrove.errors import InputError
from metagrove.learner import Info
from metagrove.mixture import em
from metagrove.mixture.predictor import BasisPredictor, predictor_of
from metagrove.mixture.prior import Mixture
from metagrove.task import Examples, Spec

SHRINKAGE = 10.0
"""Weight, in tasks, of the prior that random coefficients are uncorrelated."""
TASKS_PER_KIND = 20
"""Minimum number of training tasks for each cluster of a mixture."""
BLOCK = 4096
"""Rows whose features are computed at once."""
PENALTIES = (1e-3, 0.01, 0.1, 1.0, 10.0)
BROAD = 100.0
"""Standard deviation of an intercept that is not penalised, in units of the targets'."""


@dataclasses.dataclass(frozen=True)
class MixedModel(Baseline):
    """A linear mixed model on fixed features; `fit_mixed_model` selects its settings and fits it."""

    shape: Shape = "linear"
    """Curve of each numeric input."""
    size: int = 0
    """Degree of the polynomials, or number of knots of the splines."""
    products: bool = False
    """Products of pairs of inputs as features."""
    curved: tuple[int, ...] = ()
    """Inputs that have a curve."""
    kinds: int = 1
    """Number of clusters of the mixture."""

    @property
    def features(self) -> FeatureSettings:
        """Settings of the features."""
        return FeatureSettings(self.shape, self.size, self.products, self.curved)

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Mixture:
        del key
        features = self.features.blank(spec.x_shape[0])
        num, outputs = features.num_features, spec.y_dim
        return Mixture(
            features,
            jnp.zeros((self.kinds, num, outputs)),
            jnp.zeros((self.kinds, num, outputs, num * outputs)),
            jnp.zeros(self.kinds),
            jnp.zeros(outputs),
            jnp.zeros(outputs),
            jnp.ones(outputs),
        )

    def adapt(
        self, meta: Mixture, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[BasisPredictor, Info]:
        del key, steps
        return at_once(predictor_of(meta.posterior(support)))


@dataclasses.dataclass(frozen=True)
class Standardized:
    """Rows whose targets have mean 0 and standard deviation 1 over the training rows."""

    shift: np.ndarray
    scale: np.ndarray
    features: Features

    def statistics(self, rows: Rows) -> em.Statistics:
        """Statistics of the rows of each task."""
        return em.statistics_of(features_of(self.features, rows), (rows.y - self.shift) / self.scale, rows.mask)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Features of the training and validation tasks."""

    made: Standardized
    train: em.Statistics
    support: em.Statistics
    """Of the validation tasks."""
    query: np.ndarray
    """Features of their query rows."""

    def predict(self, prior: em.Prior) -> np.ndarray:
        """Posterior means of the query rows of validation tasks, (tasks, n, o)."""
        weights = em.expect(prior, self.support).blended().reshape(len(self.query), -1, len(self.made.shift))
        return np.einsum("tnf,tfo->tno", self.query, weights) * self.made.scale + self.made.shift


@functools.lru_cache(maxsize=16)
def prepared(data: Data, settings: FeatureSettings) -> Prepared:
    """The features of training and validation tasks; cached, since several models share them."""
    x, y = data.train.flat()
    scale = y.std(0)
    made = Standardized(y.mean(0), np.where(scale > 1e-9, scale, 1.0), settings(x))
    support, query = data.validation.joined()
    return Prepared(made, made.statistics(data.train), made.statistics(support), features_of(made.features, query))


def features_of(features: Features, rows: Rows) -> np.ndarray:
    """φ of all rows, (tasks, n, f), in blocks of one size so that few of them compile."""
    flat = rows.x.reshape(-1, rows.x.shape[-1]).astype(np.float32)
    padded = np.pad(flat, [(0, -len(flat) % BLOCK), (0, 0)])
    blocks = [np.asarray(_features(features, padded[at : at + BLOCK])) for at in range(0, len(padded), BLOCK)]
    return np.concatenate(blocks)[: len(flat)].astype(np.float64).reshape(*rows.x.shape[:2], -1)


@eqx.filter_jit
def _features(features: Features, x: Any) -> Any:
    return features(x)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A fitted prior on some features."""

    settings: FeatureSettings
    data: Prepared
    prior: em.Prior
    words: str


def fit_mixed_model(data: Data, *, kinds: tuple[int, ...] = (1,)) -> Fitted:
    """Fit all candidates by EM and keep the one with the least error on validation tasks.

    Raises:
        InputError: If there are too few training tasks for the least number of clusters.
    """
    if len(data.train.x) < TASKS_PER_KIND * min(kinds) > TASKS_PER_KIND:
        raise InputError(f"{min(kinds)} clusters need {TASKS_PER_KIND * min(kinds)} training tasks")
    return best_of(data, mixed_models(data, kinds))


def mixed_models(data: Data, kinds: tuple[int, ...]) -> Iterable[Candidate]:
    """A mixed model for each choice of features and number of clusters."""
    for settings in candidates(data.train.x.shape[2], data.curved):
        here = prepared(data, settings)
        one = one_cluster(data, settings)
        for number in kinds:
            if number == 1:
                yield Candidate(settings, here, one, str(settings))
            elif len(data.train.x) >= TASKS_PER_KIND * number:
                several = em.split_prior(one, here.train, number, seed=0, shrinkage=SHRINKAGE)
                several = em.fit_em(here.train, several, shrinkage=SHRINKAGE, steps=100)
                yield Candidate(settings, here, several, f"{settings}, {number} clusters")


@functools.lru_cache(maxsize=16)
def one_cluster(data: Data, settings: FeatureSettings) -> em.Prior:
    """The mixed model on these features; a mixture starts from it."""
    here = prepared(data, settings)
    return em.fit_em(here.train, em.first_prior(here.train, here.made.features.amplitudes()), shrinkage=SHRINKAGE)


def best_of(data: Data, all_of: Iterable[Candidate]) -> Fitted:
    """The candidate with the least mean squared error on the validation tasks."""
    _, query = data.validation.joined()
    best = min(all_of, key=lambda one: mean_loss(one.data.predict(one.prior), query, classifies=False))
    how: dict[str, Any] = dataclasses.asdict(best.settings) | {"kinds": len(best.prior.mean)}
    made = best.data.made
    mixture = em.as_mixture(best.prior, made.features, made.shift, made.scale)
    return Fitted(MixedModel(**how), mixture, best.words)


def fit_ridge(data: Data) -> Fitted:
    """Ridge regression of each task alone, around the support's mean: a broad prior for the intercept only."""
    settings = FeatureSettings()
    here = prepared(data, settings)
    return best_of(data, (Candidate(settings, here, ridge(here.made, p), f"penalty {p:g}") for p in PENALTIES))


def ridge(made: Standardized, penalty: float) -> em.Prior:
    """The prior for which the posterior mean is the ridge estimate: Var W = s² / penalty."""
    outputs, num = len(made.shift), made.features.num_features
    noise = np.full(outputs, 0.1)
    variances = np.concatenate([[BROAD**2], np.full(num - 1, noise[0] ** 2 / penalty)])
    covariance = np.diag(np.repeat(variances, outputs))
    return em.Prior(np.zeros((1, num * outputs)), covariance[None], np.zeros(1), noise)


def fit_pooled_linear(data: Data) -> Fitted:
    """One linear model for all tasks: least squares, with a Σ of 0."""

    def pooled(settings: FeatureSettings) -> Candidate:
        here = prepared(data, settings)
        first = em.first_prior(here.train, here.made.features.amplitudes())
        nothing = dataclasses.replace(first, covariance=np.zeros_like(first.covariance))
        return Candidate(settings, here, nothing, str(settings))

    return best_of(data, [pooled(settings) for settings in candidates(data.train.x.shape[2], data.curved)])

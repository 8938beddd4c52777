"""LLAMA (Grant et al. 2018): MAML as empirical Bayes, with the Laplace approximation of a task's evidence.

φ = k steps of SGD from θ on the support,   meta-loss L(φ; query) + η/2 log det H
H: Fisher information of the query set at φ, a Kronecker-factored block per layer (`nets/kfac.py`)

Uncertainty: the Laplace posterior of the last layer, with features a of the support set as rows of Φ,

values:   var f(x) = aᵀ (γ ΦᵀΦ + τ I)⁻¹ a + 1/γ
classes:  logits have covariance Q diag_k(aᵀ (g_k ΦᵀΦ + τ I)⁻¹ a) Qᵀ, Γ = Q diag(g) Qᵀ the mean of diag(p) - p pᵀ, and
          p(y | x) = softmax(z / √(1 + π/8 var z)) (MacKay 1992)

Prior precision τ and noise precision γ are fitted to the queries of training tasks, which changes nothing else.
"""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.inner import GradientLearner, repeat
from metagrove.learner import Info, Predictor
from metagrove.losses import cross_entropy, masked_mean, metric_of
from metagrove.nets.kfac import kronecker_factors, log_determinant
from metagrove.nets.layers import require_layers
from metagrove.task import Examples, Spec, Task

__all__ = ["LLAMA"]


class LLAMAMeta(eqx.Module):
    """Θ: the initialisation, and the logarithms of τ and γ."""

    net: Predictor
    log_prior_precision: Float[Array, "..."]
    log_noise_precision: Float[Array, "..."] | None
    """Of a classifier, None."""


class LaplaceNet(eqx.Module):
    """Predictor: the adapted net, and the support set that the posterior of its last layer is given."""

    net: Any
    support: Examples
    log_prior_precision: Float[Array, "..."]
    log_noise_precision: Float[Array, "..."] | None

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        if self.log_noise_precision is not None:
            return self.net(x, mask)
        logits, covariance = self.logits(x, mask)
        return jax.nn.log_softmax(logits / jnp.sqrt(1 + math.pi / 8 * jnp.diagonal(covariance, axis1=1, axis2=2)))

    def std(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        """Standard deviation of a new value; of a classifier, of the probabilities, to first order."""
        if self.log_noise_precision is not None:
            noise = jnp.exp(self.log_noise_precision)
            variance = self.variance(self.features(x, mask), noise) + 1 / noise
            return jnp.broadcast_to(jnp.sqrt(variance)[:, None], (len(x), self.support.y.shape[-1]))
        logits, covariance = self.logits(x, mask)
        p = jax.nn.softmax(logits)
        slope = jnp.eye(p.shape[1])[None] * p[:, None] - p[:, :, None] * p[:, None]
        return jnp.sqrt(jnp.maximum(jnp.einsum("nij,njk,nik->ni", slope, covariance, slope), 0))

    def features(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n f"]:
        """Inputs of the last layer, with a 1 for its bias."""
        return jnp.pad(self.net.features(x, mask), ((0, 0), (0, 1)), constant_values=1.0)

    def logits(
        self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None
    ) -> tuple[Float[Array, "n y"], Float[Array, "n y y"]]:
        """Logits of a classifier, and their covariance."""
        features, (weight, bias) = self.features(x, mask), self.net.head
        of_support = jnp.exp(self.net(self.support.x, self.support.mask))
        fisher = jnp.eye(len(bias))[None] * of_support[:, None] - of_support[:, :, None] * of_support[:, None]
        strength, axes = jnp.linalg.eigh(jax.lax.stop_gradient(masked_mean(fisher, self.support.mask)))
        variances = jax.vmap(lambda g: self.variance(features, jnp.maximum(g, 0)), out_axes=1)(strength)
        return features[:, :-1] @ weight + bias[None], jnp.einsum("ik,nk,jk->nij", axes, variances, axes)

    def variance(self, features: Float[Array, "n f"], strength: Float[Array, ""]) -> Float[Array, " n"]:
        """Compute aᵀ (g ΦᵀΦ + τ I)⁻¹ a of every row by the Woodbury identity."""
        rows = self.features(self.support.x, self.support.mask) * self.support.mask[:, None]
        precision, products = jnp.exp(self.log_prior_precision), rows @ features.T
        gram = precision * jnp.eye(len(rows)) + strength * rows @ rows.T
        seen = strength * (products * jnp.linalg.solve(gram, products)).sum(0)
        return jnp.maximum(jnp.square(features).sum(1) - seen, 0) / precision


@dataclasses.dataclass(frozen=True)
class LLAMA(GradientLearner):
    """MAML with a Laplace approximation: the curvature enters the meta-loss, and gives a standard deviation.

    From Recasting Gradient-Based Meta-Learning as Hierarchical Bayes (Grant et al. 2018).
    """

    takes: ClassVar[tuple[str, ...]] = ()

    curvature_weight: float = 1e-6
    """Weight (η) of the log determinant in the meta-loss."""
    damping: float = 1e-3
    """Added to the diagonals of both Kronecker factors (λ)."""
    curvature_positions: int = 16
    """Estimate Ω of a convolution from about so many positions of each image; 0 for all of them."""
    initial_log_prior_precision: float = 3.0
    """Initial value of log τ."""

    def validation_errors(self) -> list[str]:
        errors = [] if self.curvature_weight >= 0 else ["curvature_weight must be 0 or more"]
        errors += [] if self.curvature_positions >= 0 else ["curvature_positions must be 0 or more"]
        errors += [] if self.damping > 0 else [f"damping must be positive, got {self.damping}"]
        return super().validation_errors() + errors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> LLAMAMeta:
        net = require_layers(self.net(spec, key=key), "LLAMA")
        noise = None if self.loss is cross_entropy else jnp.zeros(())
        return LLAMAMeta(net, jnp.full((), self.initial_log_prior_precision, float), noise)

    def adapt(
        self, meta: LLAMAMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[LaplaceNet, Info]:
        del key  # nothing here is random
        net, path = self.fit(meta.net, support, steps)
        scalars = meta.log_prior_precision, meta.log_noise_precision
        steps = self.inner_steps if steps is None else steps
        return LaplaceNet(net, support, *scalars), Info(LaplaceNet(path, *repeat((support, *scalars), steps + 1)))

    def meta_loss(self, meta: LLAMAMeta, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute the query loss plus η/2 log det H.

        Args:
            meta: The meta-parameters.
            task: A training task.
            key: Random key of the targets that the Fisher information is an expectation over.

        Returns:
            The loss, and the Info of the adaptation.
        """
        predictor, info = self.adapt(meta, task.support)
        query = task.query
        prediction = predictor.net(query.x, query.mask)
        loss = self.loss(prediction, query.y, query.mask)
        log_likelihood = sampled_likelihood(prediction, meta.log_noise_precision, key)
        at = {"positions": self.curvature_positions}
        factors = kronecker_factors(predictor.net, query.x, query.mask, log_likelihood, **at)
        curvature = log_determinant(factors, self.damping)
        metric, seen = metric_of(self.loss), {"query_loss": loss, "log_determinant": curvature}
        if metric.score is not self.loss:
            seen[metric.name] = metric.score(prediction, query.y, query.mask)
        fit = predictive_loss(predictor, query)
        loss = loss + fit - jax.lax.stop_gradient(fit)  # fits τ and γ, and leaves the loss as it is
        return loss + self.curvature_weight / 2 * curvature, dataclasses.replace(info, metrics=seen)


def sampled_likelihood(prediction: Float[Array, "n y"], log_noise_precision: Array | None, key: PRNGKeyArray) -> Any:
    """The log-likelihood of targets that are drawn from the model's own predictions."""
    prediction = jax.lax.stop_gradient(prediction)
    if log_noise_precision is None:
        drawn = jax.nn.one_hot(jax.random.categorical(key, prediction), prediction.shape[1])
        return lambda log_probabilities: (log_probabilities * drawn).sum(1)
    precision = jax.lax.stop_gradient(jnp.exp(log_noise_precision))
    drawn = prediction + jax.random.normal(key, prediction.shape) / jnp.sqrt(precision)
    return lambda values: -precision / 2 * jnp.square(drawn - values).sum(1)


def predictive_loss(predictor: LaplaceNet, query: Examples) -> Float[Array, ""]:
    """-log p of the queries, as a function of τ and γ alone."""
    net, support = jax.lax.stop_gradient((predictor.net, predictor.support))
    fixed = LaplaceNet(net, support, predictor.log_prior_precision, predictor.log_noise_precision)
    if predictor.log_noise_precision is None:
        return cross_entropy(fixed(query.x, query.mask), query.y, query.mask)
    variance = jnp.square(fixed.std(query.x, query.mask))
    errors = jax.lax.stop_gradient(jnp.square(query.y - fixed(query.x, query.mask)))
    return masked_mean((errors / variance + jnp.log(variance)).mean(1) / 2, query.mask)

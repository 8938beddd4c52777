"""PLATIPUS (Finn et al. 2018): MAML with a distribution over initialisations, so that each task has many solutions.

training:  q = N(μ - γ_q ∇L(μ; query), v²),   p = N(μ - γ_p ∇L(μ; support), σ²)
           θ ~ q,   φ = k steps of SGD from θ on the support,   meta-loss L(φ; query) + w KL(q ‖ p)
test:      θₘ ~ p for m = 1 … M,   φₘ = k steps from θₘ;   prediction: mean over m

μ, log σ, log v are one number for each parameter; γ_p and γ_q are learned too. For values, the noise precision is
fitted to the query errors of training tasks, which changes nothing else.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import GradientLearner, Params, descend
from metagrove.learner import Info, Predictor
from metagrove.losses import cross_entropy, metric_of
from metagrove.nets.ensemble import Ensemble, map_members
from metagrove.task import Examples, Spec, Task

__all__ = ["PLATIPUS"]


class PLATIPUSMeta(eqx.Module):
    """Θ: `net` holds μ; the others have its structure or are scalars."""

    net: Predictor
    log_prior_std: Params
    log_posterior_std: Params
    prior_rate: Float[Array, "..."]
    posterior_rate: Float[Array, "..."]
    log_noise_precision: Float[Array, "..."] | None
    """Of a classifier, None."""


@dataclasses.dataclass(frozen=True)
class PLATIPUS(GradientLearner):
    """Probabilistic MAML: samples initialisations from a learned Gaussian, with a predictive standard deviation.

    From Probabilistic Model-Agnostic Meta-Learning (Finn et al. 2018). The prediction is the mean over samples.
    """

    takes: ClassVar[tuple[str, ...]] = ()

    samples: int = 10
    """Number of samples at test (M)."""
    initial_log_std: float = -4.0
    """Initial value of log σ and log v."""
    initial_rate: float = 0.01
    """Initial value of γ_p and γ_q."""
    kl_weight: float = 1e-4
    """Weight (w) of the KL divergence; the bound has 1 / (number of queries) beside a mean loss."""
    first_order_offsets: bool = False
    """Treat ∇L(μ) as a constant, without second derivatives on all queries; the inner steps keep theirs."""

    def validation_errors(self) -> list[str]:
        errors = [] if self.kl_weight >= 0 else [f"kl_weight must be 0 or more, got {self.kl_weight}"]
        own = getattr(self.net, "statistics", "batch") == "support"
        errors += ["PLATIPUS needs batch normalisation by batch statistics: use --statistics batch"] if own else []
        return super().validation_errors() + check_at_least_one(self, "samples") + errors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> PLATIPUSMeta:
        net = self.net(spec, key=key)
        params = eqx.filter(net, eqx.is_inexact_array)
        start = jax.tree.map(lambda leaf: jnp.full_like(leaf, self.initial_log_std), params)
        rate = jnp.full((), self.initial_rate, float)
        noise = None if self.loss is cross_entropy else jnp.zeros(())
        return PLATIPUSMeta(net, start, start, rate, rate, noise)

    def adapt(
        self, meta: PLATIPUSMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Ensemble, Info]:
        key = jax.random.key(0) if key is None else key  # the same samples for every task
        mean = self.shifted(meta.net, support, meta.prior_rate)
        drawn = eqx.filter_vmap(lambda one: draw(mean, meta.log_prior_std, one))(jax.random.split(key, self.samples))
        nets, paths = map_members(lambda net: self.fit(net, support, steps), drawn)
        arrays, others = eqx.partition(paths, eqx.is_inexact_array)
        paths = eqx.combine(jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), arrays), others)
        noise = jnp.zeros(()) if meta.log_noise_precision is None else meta.log_noise_precision
        noises = jnp.broadcast_to(noise, (self.samples,))
        steps = self.inner_steps if steps is None else steps
        classifies = self.loss is cross_entropy
        path = Ensemble(paths, jnp.broadcast_to(noises, (steps + 1, self.samples)), classifies)
        return Ensemble(nets, noises, classifies), Info(path)

    def shifted(self, net: Predictor, examples: Examples, rate: Float[Array, ""]) -> Predictor:
        """Take one gradient step from μ with a learned learning rate.

        Args:
            net: The net at μ.
            examples: The examples of the loss.
            rate: γ.

        Returns:
            The net at μ - γ ∇L(μ).
        """
        params, fixed = eqx.partition(net, eqx.is_inexact_array)

        def loss(params: Params) -> Float[Array, ""]:
            return self.loss(eqx.combine(params, fixed)(examples.x, examples.mask), examples.y, examples.mask)

        constant = self.first_order or self.first_order_offsets
        how = {"first_order": constant, "recompute": self.recompute_inner_steps}
        last, _ = descend(loss, params, optax.sgd(rate), 1, **how)
        return eqx.combine(last, fixed)

    def meta_loss(self, meta: PLATIPUSMeta, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute the query loss of one sample of q plus w KL(q ‖ p).

        Args:
            meta: The meta-parameters.
            task: A training task.
            key: Random key of the sample.

        Returns:
            The loss, and the Info of the adaptation, with the path of the sample.
        """
        query = task.query
        posterior = self.shifted(meta.net, query, meta.posterior_rate)
        prior = self.shifted(meta.net, task.support, meta.prior_rate)
        adapted, path = self.fit(draw(posterior, meta.log_posterior_std, key), task.support, None)
        prediction = adapted(query.x, query.mask)
        loss = self.loss(prediction, query.y, query.mask)
        divergence = kl_divergence(posterior, meta.log_posterior_std, prior, meta.log_prior_std)
        seen = {"query_loss": loss, "kl": divergence}
        metric = metric_of(self.loss)
        if metric.score is not self.loss:
            seen[metric.name] = metric.score(prediction, query.y, query.mask)
        if meta.log_noise_precision is not None:
            fit = noise_loss(meta.log_noise_precision, jax.lax.stop_gradient(loss))
            loss = loss + fit - jax.lax.stop_gradient(fit)  # fits the noise, and leaves the loss as it is
        return loss + self.kl_weight * divergence, Info(path, metrics=seen)


def draw(net: Predictor, log_std: Params, key: PRNGKeyArray) -> Predictor:
    """Draw a net from a Gaussian around this one, reparametrised."""
    params, fixed = eqx.partition(net, eqx.is_inexact_array)
    noise = optax.tree.random_like(key, params, sampler=jax.random.normal)
    return eqx.combine(jax.tree.map(lambda m, s, e: m + jnp.exp(s) * e, params, log_std, noise), fixed)


def kl_divergence(first: Any, first_log_std: Params, second: Any, second_log_std: Params) -> Float[Array, ""]:
    """Compute KL(N(μ₁, σ₁²) ‖ N(μ₂, σ₂²)) = Σ log(σ₂/σ₁) + (σ₁² + (μ₁ - μ₂)²) / (2σ₂²) - ½."""
    first, second = (eqx.filter(net, eqx.is_inexact_array) for net in (first, second))

    def of_leaf(m1: Array, s1: Array, m2: Array, s2: Array) -> Array:
        return (s2 - s1 + (jnp.exp(2 * s1) + jnp.square(m1 - m2)) / (2 * jnp.exp(2 * s2)) - 0.5).sum()

    return sum(jax.tree.leaves(jax.tree.map(of_leaf, first, first_log_std, second, second_log_std)), jnp.zeros(()))


def noise_loss(log_precision: Float[Array, ""], squared_error: Float[Array, ""]) -> Float[Array, ""]:
    """-log of a Gaussian density of errors, as a function of their precision."""
    return (jnp.exp(log_precision) * squared_error - log_precision) / 2

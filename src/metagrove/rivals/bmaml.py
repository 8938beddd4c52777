"""BMAML (Yoon et al. 2018): M particles approximate a posterior over initialisations and are updated by SVGD.

SVGD:      θᵢ ← θᵢ + α φ(θᵢ),   φ(θᵢ) = 1/M Σⱼ [ k(θⱼ, θᵢ) ∇log p(θⱼ|D) + ∇_{θⱼ} k(θⱼ, θᵢ) ]
kernel:    k(a, b) = exp(-‖a - b‖² / h),   h = median of the squared distances / log M
chaser:    Σᵢ ‖followerᵢ - stopgrad(leaderᵢ)‖²; the follower is fitted to the support set, the leader continues from it
           on support and query
posterior: Gaussian noise of precision γ, Gaussian weights of precision λ, Gamma priors on both; log γ and log λ are
           part of each particle
"""

import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import GradientLearner, UpdateRule, clipped, descend, squared_distance
from metagrove.learner import Info, Predictor
from metagrove.losses import cross_entropy
from metagrove.nets.ensemble import AbstractEnsemble, map_members
from metagrove.task import Examples, Spec, Task, join

__all__ = ["BMAML", "Particles", "squared_distances", "stein_direction"]


class Particles(AbstractEnsemble):
    """M nets, every array with a first axis of M, and their log precisions. Predicts the mean over particles."""

    nets: Predictor
    log_noise_precision: Float[Array, "*m"]
    log_weight_precision: Float[Array, "*m"]
    classifies: bool = eqx.field(static=True)
    """Predictions are log-probabilities: the mean is taken of probabilities, and γ plays no part."""


@dataclasses.dataclass(frozen=True)
class BMAML(GradientLearner):
    """Bayesian MAML: an ensemble of initialisations, adapted by SVGD, with a predictive standard deviation.

    From Bayesian Model-Agnostic Meta-Learning (Yoon et al. 2018). The prediction is the mean over particles.
    """

    takes: ClassVar[tuple[str, ...]] = ()

    inner_lr: float = 0.03
    """Inner learning rate (α), the step along φ."""
    inner_steps: int = 1
    """Number of SVGD steps of the follower."""
    inner_clip: float = 100.0
    """Clip ∇log p elementwise to this absolute value; 0 disables clipping."""
    particles: int = 10
    """Number of particles (M)."""
    leader_steps: int = 1
    """Number of SVGD steps of the leader, starting from the follower."""
    noise_prior: tuple[float, float] = (2.0, 0.2)
    """Shape and rate of the Gamma prior on the noise precision γ."""
    weight_prior: tuple[float, float] = (2.0, 100_000.0)
    """Shape and rate of the Gamma prior on the weight precision λ; a small rate shrinks a large net to 0."""

    def validation_errors(self) -> list[str]:
        few = [] if self.particles >= 2 else [f"particles must be at least 2 (one has no kernel), got {self.particles}"]
        priors = [
            f"{name} must be positive, got {value}"
            for name in ("noise_prior", "weight_prior")
            if not min(value := getattr(self, name)) > 0
        ]
        own = getattr(self.net, "statistics", "batch") == "support"
        priors += ["BMAML needs batch normalisation by batch statistics: use --statistics batch"] if own else []
        return super().validation_errors() + few + check_at_least_one(self, "leader_steps") + priors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Particles:
        nets = eqx.filter_vmap(lambda k: self.net(spec, key=k))(jax.random.split(key, self.particles))
        log_weight_precision = eqx.filter_vmap(self.map_log_precision)(nets)
        return Particles(
            nets=nets,
            log_noise_precision=jnp.zeros(self.particles),
            log_weight_precision=log_weight_precision,
            classifies=self.loss is cross_entropy,
        )

    def map_log_precision(self, net: Predictor) -> Float[Array, ""]:
        """Compute the initial log λ: its maximum a posteriori value given the weights of a net.

        Args:
            net: A base net.

        Returns:
            log λ.
        """
        weights, (shape, rate) = eqx.filter(net, eqx.is_inexact_array), self.weight_prior
        num_weights, squares = optax.tree.size(weights), optax.tree.norm(weights, squared=True)
        return jnp.log((shape + num_weights / 2) / (rate + squares / 2))

    def adapt(
        self, meta: Particles, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Particles, Info]:
        del key  # nothing here is random
        return self.run_svgd(meta, support, self.inner_steps if steps is None else steps)

    def run_svgd(self, particles: Particles, examples: Examples, steps: int) -> tuple[Particles, Info]:
        """Take SVGD steps on a set of examples.

        Args:
            particles: The particles to start from.
            examples: The examples of the posterior.
            steps: Number of steps.

        Returns:
            The updated particles, and an Info with their path.
        """
        params, static = eqx.partition(particles, eqx.is_inexact_array)

        def minus_log_posteriors(params: Any) -> Float[Array, ""]:
            each = map_members(lambda one: self.log_posterior(one, examples), eqx.combine(params, static))
            return -each.sum()

        rule = clipped(svgd(self.inner_lr), self.inner_clip)
        how = {"first_order": self.first_order, "recompute": self.recompute_inner_steps}
        last, path = descend(minus_log_posteriors, params, rule, steps, **how)
        return eqx.combine(last, static), Info(eqx.combine(path, static))

    def log_posterior(self, particle: Particles, examples: Examples) -> Float[Array, ""]:
        """Compute log p(θ, γ, λ | D) of one particle up to a constant, as a density of θ, log γ and log λ.

        Args:
            particle: One particle, without the leading axis.
            examples: The data D.

        Returns:
            A scalar.
        """
        log_noise, log_weight = particle.log_noise_precision, particle.log_weight_precision
        num_values = examples.mask.sum() * examples.y.shape[-1]
        loss = self.loss(particle.nets(examples.x, examples.mask), examples.y, examples.mask)
        weights = eqx.filter(particle.nets, eqx.is_inexact_array)
        if particle.classifies:
            likelihood = -examples.mask.sum() * loss
        else:
            likelihood = num_values * (log_noise - jnp.exp(log_noise) * loss) / 2
        prior = (
            optax.tree.size(weights) * log_weight - jnp.exp(log_weight) * optax.tree.norm(weights, squared=True)
        ) / 2
        return likelihood + prior + log_gamma(log_noise, *self.noise_prior) + log_gamma(log_weight, *self.weight_prior)

    def meta_loss(self, meta: Particles, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute the chaser loss, the squared distance between follower and leader.

        Args:
            meta: The particles.
            task: A training task.
            key: Unused, since nothing is random.

        Returns:
            The loss, and the Info of the follower with its query loss.
        """
        del key
        follower, info = self.adapt(meta, task.support)
        leader, _ = self.run_svgd(follower, join(task.support, task.query), self.leader_steps)
        query_loss = self.loss(follower(task.query.x, task.query.mask), task.query.y, task.query.mask)
        return squared_distance(follower, jax.lax.stop_gradient(leader)), dataclasses.replace(
            info, metrics={"query_loss": query_loss}
        )


def log_gamma(log_value: Float[Array, ""], shape: float, rate: float) -> Float[Array, ""]:
    """Compute the log density of the logarithm of a Gamma variable, up to a constant."""
    return shape * log_value - rate * jnp.exp(log_value)


def svgd(inner_lr: float) -> UpdateRule:
    """Update rule α φ, given gradients of -log p; particles are along the first axis of every array."""

    def update(grads: Any, params: Any) -> Any:
        direction = stein_direction(params, jax.tree.map(jnp.negative, grads))
        return jax.tree.map(lambda leaf: inner_lr * leaf, direction)

    return optax.stateless(update)


def stein_direction(particles: Any, scores: Any) -> Any:
    """Compute φ of every particle from ∇log p (`scores`).

    With this kernel, Σⱼ ∇_{θⱼ}k(θⱼ, θᵢ) = 2/h Σⱼ kᵢⱼ (θᵢ - θⱼ).
    """
    distances = squared_distances(particles)
    num_particles = len(distances)
    bandwidth = jax.lax.stop_gradient(jnp.median(distances) / math.log(num_particles))
    bandwidth = jnp.maximum(bandwidth, 1e-12)  # if all particles coincide
    kernel = jnp.exp(-distances / bandwidth)
    repulsion = 2 / bandwidth * (jnp.diag(kernel.sum(1)) - kernel)
    return jax.tree.map(lambda p, s: mix(kernel, s) + mix(repulsion, p), particles, scores)


def mix(weights: Float[Array, "m m"], rows: Float[Array, "m ..."]) -> Float[Array, "m ..."]:
    """Compute 1/M Σⱼ wᵢⱼ rowⱼ."""
    return jnp.tensordot(weights, rows, axes=1) / len(rows)


def squared_distances(particles: Any) -> Float[Array, "m m"]:
    """Compute ‖θᵢ - θⱼ‖² from inner products of centred particles, which avoids cancellation."""

    def products(leaf: Float[Array, "m ..."]) -> Float[Array, "m m"]:
        centred = (leaf - leaf.mean(0, keepdims=True)).reshape(len(leaf), -1)
        return centred @ centred.T

    total = sum(jax.tree.leaves(jax.tree.map(products, particles)))
    squares = jnp.diagonal(total)
    return jnp.maximum(squares[:, None] + squares[None, :] - 2 * total, 0.0)

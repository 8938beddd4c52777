"""BMAML (Yoon et al. 2018): not one initialisation but M particles, moved together as samples of a posterior.

SVGD:      θᵢ ← θᵢ + α φ(θᵢ),   φ(θᵢ) = 1/M Σⱼ [ k(θⱼ, θᵢ) ∇log p(θⱼ|D) + ∇_{θⱼ} k(θⱼ, θᵢ) ]
kernel:    k(a, b) = exp(-‖a - b‖² / h),   h = median of the squared distances / log M
chaser:    Σᵢ ‖followerᵢ - stopgrad(leaderᵢ)‖²; the follower knows the support, the leader goes on from it with
           support and query
posterior: Gaussian noise of precision γ, Gaussian weights of precision λ, Gamma priors on both; each particle has its
           own log γ and log λ and moves them too
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.inner import GradientLearner, UpdateRule, clipped, descend
from metagrove.learner import Info, Predictor
from metagrove.task import Examples, Spec, Task, join


class Particles(eqx.Module):
    """M nets, every array with a first axis of M, and their log precisions. Predicts the mean over particles."""

    nets: Predictor
    log_noise_precision: Float[Array, "*m"]
    log_weight_precision: Float[Array, "*m"]

    def each(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "m n y"]:
        """Every particle's prediction."""
        return eqx.filter_vmap(lambda net: net(x, mask))(self.nets)

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        return self.each(x, mask).mean(0)

    def spread(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        """Standard deviation of a new value: the particles' disagreement, and their mean noise."""
        return jnp.sqrt(self.each(x, mask).var(0) + jnp.exp(-self.log_noise_precision).mean())


@dataclasses.dataclass(frozen=True)
class BMAML(GradientLearner):
    """A cloud of initialisations moved by Stein variational gradient descent; its answers come with a spread."""

    inner_lr: float = 0.01
    """α, the step size along φ."""
    inner_steps: int = 1
    """SVGD steps of the follower."""
    inner_clip: float = 10.0
    """Largest size of each number of ∇log p; 0 leaves it as it is."""
    particles: int = 10
    """M."""
    leader_steps: int = 1
    """SVGD steps of the leader, from the follower on."""
    prior_shape: float = 2.0
    """Shape of the Gamma priors on both precisions."""
    prior_rate: float = 0.2
    """Rate of the Gamma priors on both precisions."""

    def problems(self) -> list[str]:
        few = [] if self.particles >= 2 else [f"particles must be at least 2 (one has no kernel), got {self.particles}"]
        lead = [] if self.leader_steps >= 1 else [f"leader_steps must be at least 1, got {self.leader_steps}"]
        priors = [
            f"{name} must be positive, got {value}"
            for name in ("prior_shape", "prior_rate")
            if not (value := getattr(self, name)) > 0
        ]
        return super().problems() + few + lead + priors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Particles:
        nets = eqx.filter_vmap(lambda k: self.net(spec, key=k))(jax.random.split(key, self.particles))
        return Particles(nets, jnp.zeros(self.particles), jnp.zeros(self.particles))

    def adapt(
        self, meta: Particles, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Particles, Info]:
        del key  # nothing here is random
        return self.follow(meta, support, self.inner_steps if steps is None else steps)

    def follow(self, particles: Particles, examples: Examples, steps: int) -> tuple[Particles, Info]:
        """The particles after some SVGD steps on these examples."""
        params, static = eqx.partition(particles, eqx.is_inexact_array)

        def minus_log_posteriors(params: Any) -> Float[Array, ""]:
            each = eqx.filter_vmap(lambda one: self.log_posterior(one, examples))(eqx.combine(params, static))
            return -each.sum()

        rule = clipped(svgd(self.inner_lr), self.inner_clip)
        last, path = descend(minus_log_posteriors, params, rule, steps, first_order=self.first_order)
        return eqx.combine(last, static), Info(eqx.combine(path, static))

    def log_posterior(self, particle: Particles, examples: Examples) -> Float[Array, ""]:
        """log p(θ, γ, λ | D) of one particle up to a constant, as a density of θ, log γ and log λ."""
        log_noise, log_weight = particle.log_noise_precision, particle.log_weight_precision
        num_values = examples.mask.sum() * examples.y.shape[-1]
        loss = self.loss(particle.nets(examples.x, examples.mask), examples.y, examples.mask)
        weights, _ = ravel_pytree(eqx.filter(particle.nets, eqx.is_inexact_array))
        likelihood = num_values * (log_noise - jnp.exp(log_noise) * loss) / 2
        prior = (weights.size * log_weight - jnp.exp(log_weight) * jnp.square(weights).sum()) / 2
        gammas = [self.prior_shape * log - self.prior_rate * jnp.exp(log) for log in (log_noise, log_weight)]
        return likelihood + prior + sum(gammas)

    def meta_loss(self, meta: Particles, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """The chaser loss: how far the follower is from where the query would have led it."""
        del key
        follower, info = self.adapt(meta, task.support)
        leader, _ = self.follow(follower, join(task.support, task.query), self.leader_steps)
        query_loss = self.loss(follower(task.query.x, task.query.mask), task.query.y, task.query.mask)
        return squared_distance(follower, jax.lax.stop_gradient(leader)), dataclasses.replace(
            info, metrics={"query_loss": query_loss}
        )


def squared_distance(first: Any, second: Any) -> Float[Array, ""]:
    """Sum of squared differences over all arrays."""
    first, second = (eqx.filter(tree, eqx.is_inexact_array) for tree in (first, second))
    return optax.tree.norm(jax.tree.map(jnp.subtract, first, second), squared=True)


def svgd(inner_lr: float) -> UpdateRule:
    """α φ, from the gradients of -log p of particles that lie along every array's first axis."""

    def update(grads: Any, params: Any) -> Any:
        _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], params))
        flat, flat_grads = (jax.vmap(lambda one: ravel_pytree(one)[0])(tree) for tree in (params, grads))
        return jax.vmap(unravel)(inner_lr * stein_direction(flat, -flat_grads))

    return optax.stateless(update)


def stein_direction(particles: Float[Array, "m p"], scores: Float[Array, "m p"]) -> Float[Array, "m p"]:
    """φ of every particle; `scores` are ∇log p. With this kernel Σⱼ ∇_{θⱼ}k(θⱼ, θᵢ) = 2/h Σⱼ kᵢⱼ (θᵢ - θⱼ)."""
    distances = squared_distances(particles)
    bandwidth = jax.lax.stop_gradient(jnp.median(distances) / math.log(len(particles)))
    bandwidth = jnp.maximum(bandwidth, 1e-12)  # all particles in one place
    kernel = jnp.exp(-distances / bandwidth)
    repulsion = 2 / bandwidth * (kernel.sum(1)[:, None] * particles - kernel @ particles)
    return (kernel @ scores + repulsion) / len(particles)


def squared_distances(particles: Float[Array, "m p"]) -> Float[Array, "m m"]:
    """‖θᵢ - θⱼ‖² by products of the centred particles, so that what all share cancels no digits."""
    centred = particles - particles.mean(0)[None]
    products = centred @ centred.T
    squares = jnp.diagonal(products)
    return jnp.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)

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
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.inner import GradientLearner, UpdateRule, clipped, descend, squared_distance
from metagrove.learner import Info, Predictor
from metagrove.losses import cross_entropy
from metagrove.nets.layers import AfterLayer
from metagrove.nets.predictors import PlainLayers, Statistics, bind_support, no_layers, plain_layers
from metagrove.task import Examples, Spec, Task, join


class Particles(eqx.Module):
    """M nets, every array with a first axis of M, and their log precisions. Predicts the mean over particles."""

    nets: Predictor
    log_noise_precision: Float[Array, "*m"]
    log_weight_precision: Float[Array, "*m"]
    classifies: bool = eqx.field(static=True)
    """Predictions are log-probabilities: the mean is taken of probabilities, and γ plays no part."""

    def each(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "m n y"]:
        """Every particle's prediction."""
        return eqx.filter_vmap(lambda net: net(x, mask))(self.nets)

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        each = self.each(x, mask)
        return jax.nn.logsumexp(each, axis=0) - math.log(len(each)) if self.classifies else each.mean(0)

    def std(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        """Standard deviation of a new value: the particles' disagreement, and their mean noise.

        Of a classifier, that of the particles' probabilities.
        """
        if self.classifies:
            return jnp.exp(self.each(x, mask)).std(0)
        return jnp.sqrt(self.each(x, mask).var(0) + jnp.exp(-self.log_noise_precision).mean())

    def bind_support(self, support: Examples, statistics: Statistics | None = None) -> "Particles":
        """Each particle's net bound to the support set."""
        nets = eqx.filter_vmap(lambda net: bind_support(net, support, statistics))(self.nets)
        return dataclasses.replace(self, nets=nets)

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """All particles' layers; biases have an axis for rows, so that x W + b serves one net and many."""
        layers = eqx.filter_vmap(lambda net: plain_layers(net, after_layer).layers)(self.nets)
        if any(weight.ndim > 3 for weight, _ in layers):  # convolutions
            raise no_layers(self)
        noise = 0.0 if self.classifies else jnp.exp(-self.log_noise_precision).mean()
        both = tuple((weight, bias[:, None]) for weight, bias in layers)
        return PlainLayers(both, self.classifies, len(both[0][0]), noise)


@dataclasses.dataclass(frozen=True)
class BMAML(GradientLearner):
    """A cloud of initialisations moved by Stein variational gradient descent; predictions come with their std."""

    inner_lr: float = 0.03
    """α, the step size along φ."""
    inner_steps: int = 1
    """SVGD steps of the follower."""
    inner_clip: float = 100.0
    """Largest size of each number of ∇log p; 0 leaves it as it is."""
    particles: int = 10
    """M."""
    leader_steps: int = 1
    """SVGD steps of the leader, from the follower on."""
    noise_prior: tuple[float, float] = (2.0, 0.2)
    """Shape and rate of the Gamma prior on γ."""
    weight_prior: tuple[float, float] = (2.0, 100_000.0)
    """Shape and rate of the Gamma prior on λ; a small rate ties a net of many weights to 0."""

    def validation_errors(self) -> list[str]:
        few = [] if self.particles >= 2 else [f"particles must be at least 2 (one has no kernel), got {self.particles}"]
        priors = [
            f"{name} must be positive, got {value}"
            for name in ("noise_prior", "weight_prior")
            if not min(value := getattr(self, name)) > 0
        ]
        own = getattr(self.net, "statistics", "batch") == "support"
        priors += ["BMAML normalises by the statistics of the set it looks at: --statistics batch"] if own else []
        return super().validation_errors() + few + check_at_least_one(self, "leader_steps") + priors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Particles:
        nets = eqx.filter_vmap(lambda k: self.net(spec, key=k))(jax.random.split(key, self.particles))
        log_weight_precision = eqx.filter_vmap(self.likely_log_precision)(nets)
        return Particles(nets, jnp.zeros(self.particles), log_weight_precision, self.loss is cross_entropy)

    def likely_log_precision(self, net: Predictor) -> Float[Array, ""]:
        """log of the λ at which the posterior of log λ is highest given the net's weights, to begin with."""
        weights, (shape, rate) = eqx.filter(net, eqx.is_inexact_array), self.weight_prior
        num_weights, squares = optax.tree.size(weights), optax.tree.norm(weights, squared=True)
        return jnp.log((shape + num_weights / 2) / (rate + squares / 2))

    def adapt(
        self, meta: Particles, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Particles, Info]:
        del key  # nothing here is random
        return self.tracking_loss(meta, support, self.inner_steps if steps is None else steps)

    def tracking_loss(self, particles: Particles, examples: Examples, steps: int) -> tuple[Particles, Info]:
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
        """The chaser loss: how far the follower is from where the query would have led it."""
        del key
        follower, info = self.adapt(meta, task.support)
        leader, _ = self.tracking_loss(follower, join(task.support, task.query), self.leader_steps)
        query_loss = self.loss(follower(task.query.x, task.query.mask), task.query.y, task.query.mask)
        return squared_distance(follower, jax.lax.stop_gradient(leader)), dataclasses.replace(
            info, metrics={"query_loss": query_loss}
        )


def log_gamma(log_value: Float[Array, ""], shape: float, rate: float) -> Float[Array, ""]:
    """log density of the logarithm of a Gamma variable, up to a constant."""
    return shape * log_value - rate * jnp.exp(log_value)


def svgd(inner_lr: float) -> UpdateRule:
    """α φ, from the gradients of -log p of particles that lie along every array's first axis."""

    def update(grads: Any, params: Any) -> Any:
        direction = stein_direction(params, jax.tree.map(jnp.negative, grads))
        return jax.tree.map(lambda leaf: inner_lr * leaf, direction)

    return optax.stateless(update)


def stein_direction(particles: Any, scores: Any) -> Any:
    """φ of every particle; `scores` are ∇log p. With this kernel Σⱼ ∇_{θⱼ}k(θⱼ, θᵢ) = 2/h Σⱼ kᵢⱼ (θᵢ - θⱼ)."""
    distances = squared_distances(particles)
    num_particles = len(distances)
    bandwidth = jax.lax.stop_gradient(jnp.median(distances) / math.log(num_particles))
    bandwidth = jnp.maximum(bandwidth, 1e-12)  # all particles in one place
    kernel = jnp.exp(-distances / bandwidth)
    repulsion = 2 / bandwidth * (jnp.diag(kernel.sum(1)) - kernel)
    return jax.tree.map(lambda p, s: mix(kernel, s) + mix(repulsion, p), particles, scores)


def mix(weights: Float[Array, "m m"], rows: Float[Array, "m ..."]) -> Float[Array, "m ..."]:
    """1/M Σⱼ wᵢⱼ rowⱼ."""
    return jnp.tensordot(weights, rows, axes=1) / len(rows)


def squared_distances(particles: Any) -> Float[Array, "m m"]:
    """‖θᵢ - θⱼ‖² by products of the centred particles, so that what all share cancels no digits."""

    def products(leaf: Float[Array, "m ..."]) -> Float[Array, "m m"]:
        centred = (leaf - leaf.mean(0, keepdims=True)).reshape(len(leaf), -1)
        return centred @ centred.T

    total = sum(jax.tree.leaves(jax.tree.map(products, particles)))
    squares = jnp.diagonal(total)
    return jnp.maximum(squares[:, None] + squares[None, :] - 2 * total, 0.0)

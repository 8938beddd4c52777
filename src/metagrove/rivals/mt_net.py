"""MT-Net (Lee & Choi 2018): a learned space in which to take steps, and a learned choice of the units that take them.

layer:   act((x W + b) T),   T meta-learned and never adapted, the identity at first
mask:    m ~ GumbelSoftmax(ζ) for each unit, once a task, straight-through
step:    [W, b]ᵗ⁺¹ = [W, b]ᵗ - α m ∘ ∇L
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.inner import GradientLearner, trainable_mask
from metagrove.learner import Info, Predictor
from metagrove.nets.layers import AfterLayer, require_layers
from metagrove.nets.predictors import PlainLayers, plain_layers
from metagrove.task import Examples, Spec


class Transformed(eqx.Module):
    """A net with T after each layer; without any, the net itself."""

    net: Any
    transforms: tuple[Float[Array, "_ _"], ...]

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        if not self.transforms:
            return self.net(x, mask)
        return self.net(x, mask, after_layer=self.transform)

    def transform(self, layer: int, values: Float[Array, "..."]) -> Float[Array, "..."]:
        """A layer's values times its T."""
        return values @ self.transforms[layer]

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """(x W + b) T = x (W T) + b T."""
        del after_layer  # what wraps a net this deep is not wrapped again
        if not self.transforms:
            return plain_layers(self.net)
        plain = plain_layers(self.net, self.transform)
        both = zip(plain.layers, self.transforms, strict=True)
        return dataclasses.replace(plain, layers=tuple((weight @ t, bias @ t) for (weight, bias), t in both))


class MTNetMeta(eqx.Module):
    """Θ: the net with its transforms, and ζ, a logit for each layer's every unit."""

    predictor: Transformed
    logits: tuple[Float[Array, " _"], ...]


@dataclasses.dataclass(frozen=True)
class MTNet(GradientLearner):
    """Learns which units a task may change, and a transform of each layer that no task changes."""

    transform: bool = True
    """Use T; without it this is the mask alone."""
    temperature: float = 1.0
    """Of the Gumbel-softmax that the masks are drawn from."""

    def validation_errors(self) -> list[str]:
        wrong = [] if self.temperature > 0 else [f"temperature must be positive, got {self.temperature}"]
        return super().validation_errors() + wrong

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> MTNetMeta:
        net = require_layers(self.net(spec, key=key), "MT-Net")
        transforms = tuple(jnp.eye(size) for size in net.layer_sizes) if self.transform else ()
        return MTNetMeta(Transformed(net, transforms), tuple(jnp.zeros(size) for size in net.layer_sizes))

    def adapt(
        self, meta: MTNetMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        """Without a key no mask is drawn: each step is the mean of what it would be over masks."""
        if key is None:
            masks = tuple(jax.nn.sigmoid(logits) for logits in meta.logits)
        else:
            keys = jax.random.split(key, len(meta.logits))
            masks = tuple(gumbel_mask(z, self.temperature, key=k) for z, k in zip(meta.logits, keys, strict=True))
        rule = optax.stateless(lambda grads, _: mask_units(grads, masks, -self.inner_lr))
        adapts = trainable_mask(meta.predictor, lambda predictor: predictor.net)  # not T
        adapted, path = self.fit(meta.predictor, support, steps, rule=rule, adapts=adapts)
        return adapted, Info(path, metrics={"units_that_adapt": jnp.concatenate(masks).mean()})


def gumbel_mask(logits: Float[Array, " o"], temperature: float, *, key: PRNGKeyArray) -> Float[Array, " o"]:
    """0 or 1 for each unit, 1 with probability σ(ζ); its gradient is that of σ((ζ + G₁ - G₀) / temperature).

    The difference of two Gumbel variables is a logistic one.
    """
    soft = jax.nn.sigmoid((logits + jax.random.logistic(key, logits.shape)) / temperature)
    hard = (soft > 0.5).astype(soft.dtype)
    return hard + soft - jax.lax.stop_gradient(soft)


def mask_units(grads: Any, masks: tuple[Float[Array, " _"], ...], factor: float) -> Any:
    """factor · m ∘ gradient, where a unit's weights and bias share its m: units are every parameter's last axis."""
    net = jax.tree.map(
        lambda m, g: factor * m.reshape((1,) * (g.ndim - 1) + (-1,)) * g, grads.net.by_layer(masks), grads.net
    )
    return eqx.tree_at(lambda tree: tree.net, grads, net)

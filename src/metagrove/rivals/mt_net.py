"""MT-Net (Lee & Choi 2018): a learned metric for the inner steps, and a learned mask of the units that are adapted.

layer:   act((x W + b) T),   T meta-learned and never adapted, initialised to the identity
mask:    m ~ GumbelSoftmax(ζ) for each unit, once per task, straight-through estimator
step:    [W, b]ᵗ⁺¹ = [W, b]ᵗ - α m ∘ ∇L
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.inner import GradientLearner
from metagrove.learner import Info, Predictor
from metagrove.nets.few_shot import start_head
from metagrove.nets.layers import AfterLayer, adapted_mask, require_layers
from metagrove.nets.predictors import PlainLayers, plain_layers
from metagrove.task import Examples, Spec

__all__ = ["MTNet"]


class Transformed(eqx.Module):
    """Predictor: a net with T after each layer; without transforms, the net itself."""

    net: Any
    transforms: tuple[Float[Array, "_ _"], ...]

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        if not self.transforms:
            return self.net(x, mask)
        return self.net(x, mask, after_layer=self.transform)

    def transform(self, layer: int, values: Float[Array, "..."]) -> Float[Array, "..."]:
        """A layer's values times its T."""
        return values @ self.transforms[layer]

    @property
    def adapted_mask(self) -> "Transformed":
        """Inner steps adapt the net and leave T unchanged."""
        transforms = (False,) * len(self.transforms)
        return eqx.tree_at(lambda mask: (mask.net, mask.transforms), self, (adapted_mask(self.net), transforms))

    def start_head(self, support: Examples, after_layer: AfterLayer | None = None) -> "Transformed":
        """The last layer is set from features of the transformed layers."""
        del after_layer  # what wraps a net this deep is not wrapped again
        hook = self.transform if self.transforms else None
        return eqx.tree_at(lambda net: net.net, self, start_head(self.net, support, hook))

    def rates(self) -> None:
        """MT-Net has an update rule of its own."""

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """(x W + b) T = x (W T) + b T."""
        del after_layer  # what wraps a net this deep is not wrapped again
        if not self.transforms:
            return plain_layers(self.net)
        plain = plain_layers(self.net, self.transform)
        both = zip(plain.layers, self.transforms, strict=True)
        return dataclasses.replace(plain, layers=tuple((weight @ t, bias @ t) for (weight, bias), t in both))


class MTNetMeta(eqx.Module):
    """Θ: the net with its transforms, and ζ, a logit for each unit of each layer."""

    predictor: Transformed
    logits: tuple[Float[Array, " _"], ...]


@dataclasses.dataclass(frozen=True)
class MTNet(GradientLearner):
    """MT-Net: learns which units are adapted, and a transformation of each layer that is not adapted.

    From Gradient-Based Meta-Learning with Learned Layerwise Metric and Subspace (Lee & Choi 2018). Without a key,
    `adapt` uses the expected mask σ(ζ) instead of a sample.
    """

    takes: ClassVar[tuple[str, ...]] = ("head",)

    transform: bool = True
    """Use the transformations T; without them only the masks are learned (the paper's M-net)."""
    temperature: float = 1.0
    """Temperature of the Gumbel-softmax distribution of the masks."""

    def validation_errors(self) -> list[str]:
        errors = [] if self.temperature > 0 else [f"temperature must be positive, got {self.temperature}"]
        return super().validation_errors() + errors

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> MTNetMeta:
        net = require_layers(self.make_net(spec, key=key), "MT-Net")
        transforms = tuple(jnp.eye(size) for size in net.layer_sizes) if self.transform else ()
        return MTNetMeta(Transformed(net, transforms), tuple(jnp.zeros(size) for size in net.layer_sizes))

    def base_net(self, meta: MTNetMeta) -> Any:
        return meta.predictor.net

    def adapt(
        self, meta: MTNetMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Predictor, Info]:
        if key is None:  # deterministic: the expected mask
            masks = tuple(jax.nn.sigmoid(logits) for logits in meta.logits)
        else:
            keys = jax.random.split(key, len(meta.logits))
            masks = tuple(gumbel_mask(z, self.temperature, key=k) for z, k in zip(meta.logits, keys, strict=True))
        rule = optax.stateless(lambda grads, _: mask_units(grads, masks, -self.inner_lr))
        adapted, path = self.fit(meta.predictor, support, steps, rule=rule)
        return adapted, Info(path, metrics={"units_that_adapt": jnp.concatenate(masks).mean()})


def gumbel_mask(logits: Float[Array, " o"], temperature: float, *, key: PRNGKeyArray) -> Float[Array, " o"]:
    """Draw a mask of 0 or 1 for each unit, 1 with probability σ(ζ).

    Its gradient is that of σ((ζ + G₁ - G₀) / temperature) (straight-through estimator). The difference of two Gumbel
    variables is logistic.
    """
    soft = jax.nn.sigmoid((logits + jax.random.logistic(key, logits.shape)) / temperature)
    hard = (soft > 0.5).astype(soft.dtype)
    return hard + soft - jax.lax.stop_gradient(soft)


def mask_units(grads: Any, masks: tuple[Float[Array, " _"], ...], factor: float) -> Any:
    """Compute factor · m ∘ gradient; units are the last axis of every parameter, so weights and bias share a mask."""
    net = jax.tree.map(
        lambda m, g: factor * m.reshape((1,) * (g.ndim - 1) + (-1,)) * g, grads.net.by_layer(masks), grads.net
    )
    return eqx.tree_at(lambda tree: tree.net, grads, net)

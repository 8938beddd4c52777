"""Conditional neural process (Garnelo et al. 2018), deterministic: the baseline without an inner loop.

r = encoder({(xⱼ, yⱼ)}), invariant to the order of the examples;   prediction = decoder([x, r])
"""

import dataclasses
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.errors import InputError, check_at_least_one
from metagrove.inner import repeat
from metagrove.learner import Info, Learner
from metagrove.losses import cross_entropy, masked_mean
from metagrove.nets.attention import AttentionAggregator
from metagrove.nets.layers import AfterLayer
from metagrove.nets.linear import Linear
from metagrove.nets.mlp import MLP
from metagrove.nets.predictors import PlainLayers
from metagrove.task import Examples, Spec

__all__ = ["NeuralProcess"]


class MeanEncoder(eqx.Module):
    """Mean over examples of the features of a net."""

    inward: Linear
    net: MLP

    def __init__(self, in_dim: int, width: int, init_sd: float, *, key: PRNGKeyArray):
        inward_key, net_key = jax.random.split(key)
        self.inward = Linear(in_dim, width, key=inward_key)
        self.net = MLP((width, width, width), init_sd, key=net_key)

    def __call__(self, rows: Float[Array, "n i"], mask: Bool[Array, " n"]) -> tuple[Float[Array, " d"], None]:
        return masked_mean(self.net(jax.nn.relu(self.inward(rows))), mask), None


class NeuralProcessMeta(eqx.Module):
    """Θ: encoder and decoder."""

    encoder: MeanEncoder | AttentionAggregator
    decoder: MLP


class Conditioned(eqx.Module):
    """Predictor: the decoder, conditioned on the representation of the support set."""

    decoder: MLP
    representation: Float[Array, "*_ d"]
    input_scale: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n i"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        representation = jnp.broadcast_to(self.representation, (len(x), len(self.representation)))
        return self.decoder(jnp.concatenate([x * self.input_scale, representation], axis=1), mask)

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """The decoder, what it was told of the support moved into its first bias."""
        plain = self.decoder.as_layers(after_layer)
        (weight, bias), *later = plain.layers
        x_dim = len(weight) - len(self.representation)
        first = weight[:x_dim] * self.input_scale, bias + self.representation @ weight[x_dim:]
        return dataclasses.replace(plain, layers=(first, *later))


@dataclasses.dataclass(frozen=True)
class NeuralProcess(Learner):
    """Conditional neural process: predicts from an encoding of the support set, without gradient steps.

    From Conditional Neural Processes (Garnelo et al. 2018). It has no base net.
    """

    encoder: Literal["mean", "attention"] = "attention"
    """Encoder of the support set: the mean of a net's features, or self-attention layers."""
    width: int = 128
    """Size of the representation and of the two hidden layers of the decoder."""
    attention_layers: int = 2
    """Number of layers of the attention encoder."""
    attention_heads: int = 4
    """Number of heads of the attention encoder."""
    input_scale: float = 0.2
    """Factor by which inputs and support targets are multiplied."""

    inner_steps: ClassVar[int] = 0

    def validation_errors(self) -> list[str]:
        few = check_at_least_one(self, "width", "attention_layers", "attention_heads")
        if few or self.width % self.attention_heads == 0:
            return few
        return [f"width must be a multiple of attention_heads, got {self.width} and {self.attention_heads}"]

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> NeuralProcessMeta:
        encoder_key, decoder_key = jax.random.split(key)
        if len(spec.x_shape) != 1:
            raise InputError("the neural process needs vectors, not images: use --learner protonet or matching-net")
        (x_dim,), wide = spec.x_shape, (self.width, self.width)
        init_sd = (2 / self.width) ** 0.5  # He initialisation
        if self.encoder == "mean":
            encoder = MeanEncoder(x_dim + spec.y_dim, self.width, init_sd, key=encoder_key)
        else:
            encoder = AttentionAggregator(
                x_dim + spec.y_dim, self.width, self.attention_layers, self.attention_heads, key=encoder_key
            )
        sizes, classifies = (x_dim + self.width, *wide, spec.y_dim), self.loss is cross_entropy
        return NeuralProcessMeta(encoder, MLP(sizes, init_sd, classifies=classifies, key=decoder_key))

    def adapt(
        self, meta: NeuralProcessMeta, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[Conditioned, Info]:
        del key, steps  # there is no inner loop: the path has one predictor
        rows = jnp.concatenate([support.x, support.y], axis=1) * self.input_scale
        representation, _ = meta.encoder(rows, support.mask)
        predictor = Conditioned(meta.decoder, representation, self.input_scale)
        return predictor, Info(repeat(predictor, 1), task_embedding=representation)

"""A task's posterior as one linear model on features, with a predictive standard deviation.

μ(x) = φ(x)ᵀ W̄,   σ²(x) = Σ_k p_k (‖φᵀ L_k C_k‖² + (φᵀ (W_k - W̄))²) + s² = ‖φᵀ V‖² + s²

by the law of total variance over clusters: V has the columns √p_k L_k C_k and √p_k (W_k - W̄) of all clusters.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metagrove.mixture.prior import Posterior
from metagrove.nets.basis import Basis
from metagrove.nets.basis_layers import feature_layers
from metagrove.nets.layers import AfterLayer
from metagrove.nets.predictors import PlainLayers

__all__ = ["BasisPredictor", "predictor_of"]


class BasisPredictor(eqx.Module):
    """Predictor: a linear model on features, W̄ and V in units of `scale`."""

    basis: Basis
    weight: Float[Array, "*_ f o"]
    """W̄."""
    root: Float[Array, "*_ q f o"]
    """V, a row for each column of the module's docstring."""
    noise: Float[Array, "*_ o"]
    """s."""
    shift: Float[Array, "*_ o"]
    scale: Float[Array, "*_ o"]

    def __call__(self, x: Float[Array, "n d"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n o"]:
        """μ of each row."""
        del mask
        return self.basis(x) @ self.weight * self.scale[None] + self.shift[None]

    def std(self, x: Float[Array, "n d"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n o"]:
        """σ of a new value at each row."""
        del mask
        squares = jnp.square(jnp.einsum("nf,qfo->nqo", self.basis(x), self.root)).sum(1)
        return jnp.sqrt(squares + jnp.square(self.noise)[None]) * self.scale[None]

    def as_layers(self, after_layer: AfterLayer | None = None) -> PlainLayers:
        """The features' layers, and a last layer with W̄; in its place, one with V gives the variance."""
        del after_layer
        layers = feature_layers(self.basis)
        weight, bias = layers.head(self.weight * self.scale[None])
        root = jnp.moveaxis(self.root * self.scale[None, None], 1, 0)
        return PlainLayers(
            (*layers.hidden, (weight, bias + self.shift)),
            classifies=False,
            activations=layers.activations,
            std=layers.head(root.reshape(len(root), -1)),
            noise=self.noise * self.scale,
        )


def predictor_of(posterior: Posterior) -> BasisPredictor:
    """The linear model that predicts as the posterior does."""
    mixture, p = posterior.mixture, posterior.probabilities
    mean = posterior.mean_weights
    within = jnp.einsum("kfor,krq->kqfo", mixture.factor, posterior.root)
    between = (posterior.cluster_weights - mean[None])[:, None]
    root = jnp.sqrt(p)[:, None, None, None] * jnp.concatenate([within, between], axis=1)
    return BasisPredictor(
        mixture.basis,
        mean,
        root.reshape(-1, *mean.shape),
        jnp.exp(mixture.log_noise),
        mixture.y_shift,
        mixture.y_scale,
    )

"""Fisher information of a layered net, one Kronecker-factored block per layer (K-FAC; Martens & Grosse 2015).

block of a layer:  Ω ⊗ Γ,   Ω = E[Σ a aᵀ],   Γ = E[d dᵀ]
a: input of the layer with a 1 for the bias (of a convolution the 3×3 neighbourhood, summed over positions);
d: gradient of log p(y | x) by the layer's output, y drawn from the model (of a convolution the mean over positions)
log det(Ω + λ) ⊗ (Γ + λ) = dim(Γ) log det(Ω + λ) + dim(Ω) log det(Γ + λ)

Layers are those of the exported form (`nets/predictors.py` `PlainLayers`): normalisation is part of the weights, and
ReLU, of images after 2×2 max pooling, follows each layer.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from metagrove.nets.convolution import im2col
from metagrove.nets.max_pool import max_pool

Factors = tuple[Float[Array, "_ _"], Float[Array, "_ _"]]
"""Ω and Γ of one layer."""


def kronecker_factors(
    net: Any,
    x: Float[Array, "n ..."],
    mask: Bool[Array, " n"],
    log_likelihood: Callable[[Array], Float[Array, " n"]],
    *,
    positions: int = 0,
) -> list[Factors]:
    """Compute Ω and Γ of every layer.

    Args:
        net: A layered net, see `nets/layers.py`.
        x: Inputs.
        mask: False for padded rows.
        log_likelihood: Maps the net's predictions to log p(yᵢ | xᵢ) of each row, its targets drawn from the model.
        positions: Number of positions of each image, on a grid, from which Ω of a convolution is estimated; 0 for all.

    Returns:
        The factors of each layer.
    """

    def run(shifts: dict[int, Array] | None) -> tuple[Float[Array, ""], dict[int, Array]]:
        values: dict[int, Array] = {}

        def shift(layer: int, before: Array) -> Array:
            values[layer] = before if shifts is None else before + shifts[layer]
            return values[layer]

        prediction = net(x, mask, after_layer=shift)
        return jnp.where(mask, log_likelihood(prediction), 0).sum(), values

    shapes = jax.eval_shape(lambda: run(None)[1])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    grads, values = jax.grad(run, has_aux=True)(zeros)
    return [layer_factors(a, grads[i], mask, positions) for i, a in enumerate(layer_inputs(x, values))]


def layer_inputs(x: Float[Array, "n ..."], values: dict[int, Array]) -> list[Array]:
    """The input of each layer: x, then the output of the layer before, after pooling (of images) and ReLU."""
    inputs = [x]
    for layer in range(len(values) - 1):
        before = values[layer]
        after = jax.nn.relu(max_pool(before) if before.ndim == 4 else before)
        inputs.append(after if values[layer + 1].ndim == 4 else after.reshape(len(after), -1))
    return inputs


def layer_factors(
    a: Float[Array, "n ..."], d: Float[Array, "n ..."], mask: Bool[Array, " n"], positions: int
) -> Factors:
    """Compute Ω and Γ of one layer from its inputs and the gradients by its outputs."""
    rows, d = (im2col(a, 3), d) if a.ndim == 4 else (a[:, None, None], d[:, None, None])
    height, width = d.shape[1:3]
    share = mask / jnp.maximum(mask.sum(), 1)
    every = max(1, round(math.sqrt(height * width / positions))) if positions else 1
    rows = rows[:, every // 2 :: every, every // 2 :: every]
    of_rows = jnp.repeat(share, rows.shape[1] * rows.shape[2])[:, None] * (height * width / math.prod(rows.shape[1:3]))
    rows = rows.reshape(len(of_rows), -1)
    sums, count = (of_rows * rows).sum(0), jnp.full((1, 1), float(height * width))
    omega = jnp.block([[gram(jnp.sqrt(of_rows) * rows), sums[:, None]], [sums[None], count]])
    of_d = jnp.repeat(jnp.sqrt(share / (height * width)), height * width)[:, None]
    return omega, gram(of_d * d.reshape(len(of_d), -1))


@jax.custom_vjp
def gram(rows: Float[Array, "n i"]) -> Float[Array, "i i"]:
    """Compute Xᵀ X; its derivative is one product, X (G + Gᵀ), and not two."""
    return rows.T @ rows


gram.defvjp(lambda rows: (rows.T @ rows, rows), lambda rows, g: (rows @ (g + g.T),))


def log_determinant(factors: list[Factors], damping: float) -> Float[Array, ""]:
    """Compute Σ over layers of log det (Ω + λI) ⊗ (Γ + λI)."""
    return sum(
        (len(gamma) * log_det(omega, damping) + len(omega) * log_det(gamma, damping) for omega, gamma in factors),
        jnp.zeros(()),
    )


def log_det(matrix: Float[Array, "i i"], damping: float) -> Float[Array, ""]:
    """Compute log det (A + λI) of a positive semidefinite matrix."""
    return 2 * jnp.log(jnp.diagonal(jnp.linalg.cholesky(matrix + damping * jnp.eye(len(matrix))))).sum()

"""Features φ(x) as plain layers, for use without this package: φ(x) C = head(hidden(x)) for any coefficients C.

- Chebyshev: T_j(z) = cos(j arccos z), two hidden layers with the activations `angle` and `cos`;
- spline: linear in [u, max(u, 0)³] with u = z - κ, one hidden layer with the activation `cubes`;
- learned: its net, with `silu`;
- linear: no hidden layer.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

from metagrove.errors import InputError
from metagrove.nets.basis import ChebyshevBasis, LearnedBasis, LinearBasis, SplineBasis

__all__ = ["FeatureLayers", "feature_layers"]

Layer = tuple[Array, Array]


class FeatureLayers(NamedTuple):
    """Hidden layers with their activations, and a matrix with φ = [1, hidden M + offset]."""

    hidden: tuple[Layer, ...]
    activations: tuple[str, ...]
    matrix: Float[Array, "h g"]
    offset: Float[Array, " g"]

    def head(self, coefficients: Float[Array, "f m"]) -> Layer:
        """The last layer, whose values are φ(x) C."""
        constant, others = coefficients[0], coefficients[1:]
        return self.matrix @ others, constant + self.offset @ others


@functools.singledispatch
def feature_layers(basis: Any) -> FeatureLayers:
    """The layers of a basis."""
    raise InputError(f"{type(basis).__name__} cannot be exported as layers: adapt with a learner, e.g. --learner hsml")


@feature_layers.register
def _(basis: LinearBasis) -> FeatureLayers:
    return FeatureLayers((), (), jnp.diag(1 / basis.scale), -basis.shift / basis.scale)


@feature_layers.register
def _(basis: ChebyshevBasis) -> FeatureLayers:
    num_inputs = len(basis.shift)
    unit = jnp.diag(1 / basis.scale), -basis.shift / basis.scale
    multiples = jnp.arange(1.0, basis.degree + 1)[None]
    angles = block_diag(*[multiples] * num_inputs), jnp.zeros(num_inputs * basis.degree)
    size = num_inputs * basis.degree
    return FeatureLayers((unit, angles), ("angle", "cos"), jnp.eye(size), jnp.zeros(size))


@feature_layers.register
def _(basis: SplineBasis) -> FeatureLayers:
    num_inputs, num_knots = basis.knots.shape
    columns = block_diag(*[jnp.full((1, num_knots), 1 / scale) for scale in basis.scale])
    biases = -(basis.shift / basis.scale)[:, None] - basis.knots
    linear = block_diag(*[jnp.eye(num_knots, num_knots - 1).at[:, 1:].set(0)] * num_inputs)
    cubes = block_diag(*[_spline_cubes(basis.knots[i]) for i in range(num_inputs)])
    offset = basis.center.at[:, 0].add(-basis.knots[:, 0])
    orthonormal = block_diag(*basis.orthonormal)
    matrix = jnp.concatenate([linear, cubes]) @ orthonormal
    return FeatureLayers(((columns, biases.ravel()),), ("cubes",), matrix, -offset.ravel() @ orthonormal)


def _spline_cubes(knots: Float[Array, " k"]) -> Float[Array, "k j"]:
    """N_2, ..., N_{k-1} of `SplineBasis` as combinations of the cubes (z - κ)₊³, after a column of 0 for N₁."""
    num = len(knots)
    slopes = jnp.concatenate([jnp.eye(num - 1), -jnp.ones((1, num - 1))]) / (knots[-1] - knots[:-1])[None]
    return jnp.concatenate([jnp.zeros((num, 1)), slopes[:, :-1] - slopes[:, -1:]], axis=1)


@feature_layers.register
def _(basis: LearnedBasis) -> FeatureLayers:
    weights, biases = list(basis.weights), list(basis.biases)
    biases[0] = biases[0] - (basis.shift / basis.scale) @ weights[0]
    weights[0] = weights[0] / basis.scale[:, None]
    hidden = tuple(zip(weights[:-1], biases[:-1], strict=True))
    return FeatureLayers(hidden, ("silu",) * len(hidden), weights[-1], biases[-1])

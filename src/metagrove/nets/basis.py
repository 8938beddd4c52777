"""Features φ(x) of a row of inputs, including the constant, for a linear model over functions.

Each is a small module `phi(x: (n, d)) -> (n, f)`. Inputs are first brought to unit scale by a shift and a scale taken
from training rows, which no gradient changes. With several inputs the fixed bases are additive:

φ(x) = [1, φ₁(x₁), ..., φ_d(x_d)]

and the learned one is a net of all inputs.
"""

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import InputError

BasisName = Literal["linear", "chebyshev", "spline", "learned"]
TINY = 1e-12
"""Smallest relative scale of an input; a constant input is not scaled."""


class Basis(eqx.Module):
    """Abstract: features of rows of inputs."""

    shift: eqx.AbstractVar[Float[Array, " d"]]
    scale: eqx.AbstractVar[Float[Array, " d"]]

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n f"]:
        """φ of each row."""

    @abc.abstractmethod
    def amplitudes(self) -> np.ndarray:
        """Return the expected magnitude of the coefficient of each feature, (f,), which scales initial values."""

    def redraw(self, key: PRNGKeyArray) -> "Basis":
        """The same features with their random parts drawn again."""
        del key
        return self

    @property
    def num_features(self) -> int:
        """f, including the constant."""
        return len(self.amplitudes())

    def unit(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """(x - shift) / scale."""
        shift, scale = jax.lax.stop_gradient((self.shift, self.scale))
        return (x - shift[None]) / scale[None]


def with_constant(features: Float[Array, "n f"]) -> Float[Array, "n g"]:
    """[1, features]."""
    return jnp.concatenate([jnp.ones_like(features[:, :1]), features], axis=1)


class LinearBasis(Basis):
    """[1, z], with z the standardised inputs."""

    shift: Float[Array, " d"]
    scale: Float[Array, " d"]

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n f"]:
        return with_constant(self.unit(x))

    def amplitudes(self) -> np.ndarray:
        return np.ones(1 + len(self.shift))


class ChebyshevBasis(Basis):
    """T₀, T₁, ..., T_degree of each input brought to [-1, 1]; inputs are clipped to the training range.

    T_{j+1}(z) = 2 z T_j(z) - T_{j-1}(z)
    """

    shift: Float[Array, " d"]
    scale: Float[Array, " d"]
    degree: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n f"]:
        z = jnp.clip(self.unit(x), -1, 1)
        terms = [jnp.ones_like(z), z]
        for _ in range(self.degree - 1):
            terms.append(2 * z * terms[-1] - terms[-2])
        return with_constant(jnp.stack(terms[1:], axis=-1).reshape(x.shape[0], -1))

    def amplitudes(self) -> np.ndarray:
        """1 / (1 + j) for degree j: smooth functions first."""
        return np.concatenate([[1.0], np.tile(1 / np.arange(2, self.degree + 2), len(self.shift))])


class SplineBasis(Basis):
    """Natural cubic splines of each input, linear beyond the outer knots (Hastie et al., 2009, eqs. 5.4-5.5).

    N₁ = z,   N_{j+1} = d_j - d_{k-1},   d_j = ((z - κ_j)₊³ - (z - κ_k)₊³) / (κ_k - κ_j),   j = 1, ..., k - 2

    The `k - 1` functions of an input are then centred and made orthonormal on the training rows.
    """

    shift: Float[Array, " d"]
    scale: Float[Array, " d"]
    knots: Float[Array, "d k"]
    """In units of the scaled input, ascending."""
    center: Float[Array, "d j"]
    orthonormal: Float[Array, "d j j"]

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n f"]:
        knots, center, orthonormal = jax.lax.stop_gradient((self.knots, self.center, self.orthonormal))
        terms = natural_cubic(self.unit(x), knots) - center[None]
        return with_constant(jnp.einsum("ndj,djl->ndl", terms, orthonormal).reshape(x.shape[0], -1))

    def amplitudes(self) -> np.ndarray:
        """1 / (1 + j) for the j-th function, the straight line being the first."""
        num_inputs, functions = self.center.shape
        return np.concatenate([[1.0], np.tile(1 / np.arange(2, functions + 2), num_inputs)])


def natural_cubic(z: Float[Array, "n d"], knots: Float[Array, "d k"]) -> Float[Array, "n d j"]:
    """N₁, ..., N_{k-1} of each input; see `SplineBasis`."""
    cubes = jnp.maximum(z[:, :, None] - knots[None], 0) ** 3
    last = cubes[:, :, -1:]
    slopes = (cubes[:, :, :-1] - last) / (knots[:, -1:] - knots[:, :-1])[None]
    return jnp.concatenate([z[:, :, None], slopes[:, :, :-1] - slopes[:, :, -1:]], axis=2)


class LearnedBasis(Basis):
    """The last layer of an MLP with SiLU, and a constant; trained with the prior that uses it."""

    shift: Float[Array, " d"]
    scale: Float[Array, " d"]
    weights: tuple[Float[Array, "_ _"], ...]
    biases: tuple[Float[Array, " _"], ...]

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n f"]:
        hidden, last = self.unit(x), len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = hidden @ weight + bias[None]
            hidden = jax.nn.silu(hidden) if layer < last else hidden
        return with_constant(hidden)

    def redraw(self, key: PRNGKeyArray) -> "LearnedBasis":
        sizes = [self.weights[0].shape[0], *(weight.shape[1] for weight in self.weights)]
        return LearnedBasis(self.shift, self.scale, *draw_net(sizes, key=key))

    def amplitudes(self) -> np.ndarray:
        num_features = 1 + self.biases[-1].shape[0]
        return np.full(num_features, num_features**-0.5)


@dataclasses.dataclass(frozen=True)
class BasisSettings:
    """Which features a prior over functions uses; called with training rows it draws the module."""

    kind: BasisName = "chebyshev"
    """Fixed functions of each input (linear, chebyshev, spline), or a net of all of them that is trained (learned)."""
    degree: int = 12
    """Highest degree of the Chebyshev polynomials."""
    knots: int = 6
    """Knots of each input's spline, at quantiles of the training rows; there are fewer where values repeat."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden units of the learned features' net."""
    features: int = 15
    """Number of learned features, without the constant."""

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each."""
        least = {"degree": 1, "knots": 3, "features": 1}
        errors = [
            f"{name} must be at least {n}, got {v}" for name, n in least.items() if (v := getattr(self, name)) < n
        ]
        return errors + (
            [f"hidden must be positive numbers, got {self.hidden}"] if min(self.hidden, default=1) < 1 else []
        )

    def __call__(self, rows: Float[np.ndarray, "n d"], *, key: PRNGKeyArray) -> Basis:
        """Make the module for the range of these rows.

        Args:
            rows: Inputs of training tasks, one row each.
            key: Random key of the initial weights of learned features.

        Raises:
            InputError: If there is no row, or a value is not finite.
        """
        rows = np.asarray(rows, np.float64)
        if not (len(rows) and np.isfinite(rows).all()):
            raise InputError("features need at least one row of finite inputs: check the training tasks")
        return BASES[self.kind](self, rows, key)


def make_linear(settings: BasisSettings, rows: np.ndarray, key: PRNGKeyArray) -> LinearBasis:
    """Mean 0 and standard deviation 1 on the rows."""
    del settings, key
    return LinearBasis(*as_arrays(rows.mean(0), nonzero(rows.std(0), rows)))


def make_chebyshev(settings: BasisSettings, rows: np.ndarray, key: PRNGKeyArray) -> ChebyshevBasis:
    """The rows' range becomes [-1, 1]."""
    del key
    low, high = rows.min(0), rows.max(0)
    shift, scale = as_arrays((low + high) / 2, nonzero((high - low) / 2, rows))
    return ChebyshevBasis(shift, scale, settings.degree)


def make_spline(settings: BasisSettings, rows: np.ndarray, key: PRNGKeyArray) -> SplineBasis:
    """Knots at equally spaced quantiles; where these coincide, equally spaced over the range."""
    del key
    shift, scale = rows.mean(0), nonzero(rows.std(0), rows)
    z = (rows - shift) / scale
    knots = np.stack([spline_knots(column, settings.knots) for column in z.T])
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):  # also where init is traced for its shapes
        terms = np.asarray(natural_cubic(jnp.asarray(z), jnp.asarray(knots)))
    center = terms.mean(0)
    transforms = [orthonormalizer(terms[:, d] - center[d]) for d in range(rows.shape[1])]
    return SplineBasis(*as_arrays(shift, scale, knots, center, np.stack(transforms)))


def make_learned(settings: BasisSettings, rows: np.ndarray, key: PRNGKeyArray) -> LearnedBasis:
    """Inputs of std 1, and a random net."""
    shift, scale = as_arrays(rows.mean(0), nonzero(rows.std(0), rows))
    return LearnedBasis(shift, scale, *draw_net((rows.shape[1], *settings.hidden, settings.features), key=key))


def draw_net(sizes: Sequence[int], *, key: PRNGKeyArray) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Weights and biases of a net with these layer sizes: He weights, biases N(0, ½²)."""
    keys = jax.random.split(key, 2 * len(sizes))
    shapes = list(itertools.pairwise(sizes))
    weights = tuple(jax.random.normal(k, s) * (2 / s[0]) ** 0.5 for k, s in zip(keys, shapes, strict=False))
    biases = tuple(0.5 * jax.random.normal(k, s[1:]) for k, s in zip(keys[len(sizes) :], shapes, strict=False))
    return weights, biases


BASES = {"linear": make_linear, "chebyshev": make_chebyshev, "spline": make_spline, "learned": make_learned}


def as_arrays(*values: np.ndarray) -> tuple[Array, ...]:
    """Convert arrays to the default precision of JAX."""
    return tuple(jnp.asarray(value, float) for value in values)


def nonzero(scale: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The scale, or 1 for a constant input."""
    return np.where(scale > TINY * np.abs(rows).max(0), scale, 1.0)


def spline_knots(column: np.ndarray, num: int) -> np.ndarray:
    """`num` ascending knots from the smallest value to the largest."""
    knots = np.quantile(column, np.linspace(0, 1, num))
    low, high = (knots[0], knots[-1]) if knots[-1] > knots[0] else (knots[0] - 1, knots[0] + 1)
    least_gap = 1e-3 * (high - low)
    return knots if np.diff(knots).min() > least_gap else np.linspace(low, high, num)


def orthonormalizer(terms: np.ndarray) -> np.ndarray:
    """T with terms T of covariance I, upper triangular; directions without variance in the rows are left out."""
    covariance = terms.T @ terms / len(terms)
    size = np.diag(covariance)
    ridge = np.diag(1e-9 * size + 1e-9 * (size == 0).any())
    factor = np.linalg.cholesky(covariance + ridge + 1e-12 * np.eye(len(size)) * max(size.max(), 1e-12))
    return np.linalg.inv(factor).T

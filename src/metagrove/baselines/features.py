"""Fixed features of all inputs: a slope for each, a curve for those that can have one, and products of pairs.

φ(x) = [1, z_j for inputs without a curve, curve(x_j) for the others, z_i z_j for pairs]
"""

import dataclasses
import itertools
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from metagrove.nets.basis import Basis, BasisSettings, LinearBasis, SplineBasis, natural_cubic, spline_knots

Shape = Literal["linear", "polynomial", "spline"]
RIDGE = 1e-6
"""Directions of a spline with less than this fraction of its variance are not scaled to unit variance."""


class Features(Basis):
    """The features above; see `FeatureSettings`."""

    straight: LinearBasis
    curve: Basis | None
    curved: tuple[int, ...] = eqx.field(static=True)
    products: bool = eqx.field(static=True)

    @property
    def shift(self) -> Float[Array, " d"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Shift of the inputs."""
        return self.straight.shift

    @property
    def scale(self) -> Float[Array, " d"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Scale of the inputs."""
        return self.straight.scale

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n f"]:
        """φ of each row."""
        line = self.straight(x)
        z = line[:, 1:]
        parts = [line[:, : 1 if self.curve else None]]
        if self.curve is not None:
            flat = [i for i in range(x.shape[1]) if i not in self.curved]
            parts += [z[:, np.array(flat, int)], self.curve(x[:, np.array(self.curved, int)])[:, 1:]]
        if self.products:
            first, second = (np.array(one, int) for one in zip(*pairs(x.shape[1]), strict=True))
            parts.append(z[:, first] * z[:, second])
        return jnp.concatenate(parts, axis=1)

    def amplitudes(self) -> np.ndarray:
        """Return the expected magnitude of the coefficient of each feature."""
        dim = self.straight.shift.shape[0]
        parts = [np.ones(1 + dim)]
        if self.curve is not None:
            parts = [np.ones(1 + dim - len(self.curved)), self.curve.amplitudes()[1:]]
        if self.products:
            parts.append(np.full(len(pairs(dim)), 0.5))
        return np.concatenate(parts)


def polynomial(rows: Float[np.ndarray, "n d"], degree: int) -> Basis:
    """Chebyshev polynomials over the range of the rows."""
    return BasisSettings("chebyshev", degree=degree)(rows, key=jax.random.key(0))


def make_spline(rows: Float[np.ndarray, "n d"], num_knots: int) -> SplineBasis:
    """Natural cubic splines with knots at quantiles of the distinct values, so that a value that is frequent (e.g. 0)
    does not take several; functions are centred and nearly orthonormal on the rows.
    """
    shift, scale = rows.mean(0), np.where(rows.std(0) > 0, rows.std(0), 1.0)
    z = (rows - shift) / scale
    knots = np.stack([spline_knots(np.unique(column), num_knots) for column in z.T])
    terms = np.asarray(natural_cubic(jnp.asarray(z, float), jnp.asarray(knots, float)), np.float64)
    center = terms.mean(0)
    transforms = []
    for j in range(rows.shape[1]):
        size = terms[:, j].std(0)
        size = np.where(size > 0, size, 1.0)
        unit = (terms[:, j] - center[j]) / size
        covariance = unit.T @ unit / len(unit)
        root = np.linalg.cholesky(covariance + RIDGE * np.eye(len(size)))
        transforms.append(np.linalg.inv(root).T / size[:, None])
    return SplineBasis(*(jnp.asarray(part, float) for part in (shift, scale, knots, center, np.stack(transforms))))


def pairs(dim: int) -> list[tuple[int, int]]:
    """Pairs of different inputs."""
    return list(itertools.combinations(range(dim), 2))


@dataclasses.dataclass(frozen=True)
class FeatureSettings:
    """Settings of the features; called with rows of inputs, they make the module."""

    shape: Shape = "linear"
    size: int = 0
    """Degree of the polynomials, or number of knots of the splines."""
    products: bool = False
    curved: tuple[int, ...] = ()

    def __call__(self, rows: Float[np.ndarray, "n d"]) -> Features:
        """The module for inputs like these rows."""
        with jax.ensure_compile_time_eval():
            straight: Any = BasisSettings("linear")(rows, key=jax.random.key(0))
            curve = None
            if self.shape != "linear":
                columns = rows[:, list(self.curved)]
                curve = make_spline(columns, self.size) if self.shape == "spline" else polynomial(columns, self.size)
        return Features(straight, curve, self.curved, self.products)  # pyright: ignore[reportCallIssue]

    def blank(self, dim: int) -> Features:
        """Features of the right shapes, for inputs of that dimension."""
        return self(np.random.default_rng(0).normal(size=(64, dim)))

    def __str__(self) -> str:
        words = {"linear": "linear", "polynomial": f"degree {self.size}", "spline": f"spline of {self.size} knots"}
        return words[self.shape] + (" and products" if self.products else "")


def candidates(dim: int, curved: tuple[int, ...]) -> list[FeatureSettings]:
    """Features to choose from, for inputs of that dimension."""
    shapes: list[tuple[Shape, int]] = [("linear", 0)]
    bent: list[tuple[Shape, int]] = [("polynomial", 2), ("polynomial", 3), ("spline", 5), ("spline", 8), ("spline", 12)]
    shapes += bent if curved else []
    both = (False, True) if 2 <= dim <= 6 else (False,)
    return [
        FeatureSettings(shape, size, products, curved if shape != "linear" else ())
        for shape, size in shapes
        for products in both
    ]

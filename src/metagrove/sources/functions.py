"""Regression tasks from families of functions (paper, section 6.1): each task is one function at a few points."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one, quoted
from metagrove.sources.source import Source
from metagrove.task import Examples, Spec, Task, unpadded

__all__ = ["FAMILIES", "Functions"]

FAMILIES: dict[str, tuple[Callable, tuple[tuple[float, float], ...]]] = {
    # name: (function of x and its coefficients, range of each coefficient)
    "sinusoid": (lambda x, a, w, b, _: a * jnp.sin(w * x) + b, ((0.1, 5.0), (0.8, 1.2), (0.0, 2 * jnp.pi), (0, 0))),
    "line": (lambda x, a, b, *_: a * x + b, ((-3.0, 3.0), (-3.0, 3.0), (0, 0), (0, 0))),
    "quadratic": (lambda x, a, b, c, _: (a * x + b) * x + c, ((-0.2, 0.2), (-2.0, 2.0), (-3.0, 3.0), (0, 0))),
    # the quadratic of the authors' continual experiment, easier than the one above
    "parabola": (lambda x, a, b, c, _: a * jnp.square(x - c) + b, ((-0.2, 0.2), (-3.0, 3.0), (-2.0, 2.0), (0, 0))),
    "cubic": (
        lambda x, a, b, c, d: ((a * x + b) * x + c) * x + d,
        ((-0.1, 0.1), (-0.2, 0.2), (-2.0, 2.0), (-3.0, 3.0)),
    ),
}


@dataclasses.dataclass(frozen=True)
class Functions(Source):
    """Regression on functions of one variable, by default without noise (paper, section 6.1 and appendix B).

    Each task draws a family uniformly at random, the coefficients of its function uniformly from the ranges in
    `FAMILIES`, and every x independently from U[-5, 5].

    Example:
        >>> import jax
        >>> import metagrove as mg
        >>> source = mg.Functions(families=("line", "cubic"), shots=5)
        >>> task = source.sample(jax.random.key(0))
        >>> task.support.x.shape
        (5, 1)
    """

    families: tuple[str, ...] = ("sinusoid", "line", "quadratic", "cubic")
    """Families of functions to draw tasks from."""
    shots: int = 5
    """Number of support points per task."""
    queries: int = 10
    """Number of query points per task."""
    min_shots: int = 0
    """If set, the number of support points is drawn uniformly between this and `shots`."""
    noise: float = 0.0
    """Standard deviation of the Gaussian noise of every y, of support and query points; 0 in the paper."""

    def validation_errors(self) -> list[str]:
        """List the problems of the settings, one line each; see `Source.validation_errors`.

        Returns:
            A message for each setting that cannot be used.
        """
        unknown = [name for name in self.families if name not in FAMILIES]
        return (
            [f"families must be among {', '.join(FAMILIES)}, got {quoted(name)}" for name in unknown]
            + ([] if self.families else ["families must name at least one family"])
            + check_at_least_one(self, "shots", "queries")
            + ([] if 0 <= self.min_shots <= self.shots else [f"min_shots must be 0 to shots, got {self.min_shots}"])
            + ([] if self.noise >= 0 else [f"noise must be 0 or more, got {self.noise}"])
        )

    @property
    def spec(self) -> Spec:
        """Shapes of inputs and targets: one number each."""
        return Spec(x_shape=(1,), y_dim=1)

    @property
    def family_names(self) -> tuple[str, ...]:
        """Names of the families, in the order of `Task.family`."""
        return self.families

    def sample(self, key: PRNGKeyArray) -> Task:
        """Draw one task.

        Args:
            key: Random key; it determines the task completely.

        Returns:
            The task, with `shots` support and `queries` query points.
        """
        function_key, x_key, size_key = jax.random.split(key, 3)
        x = jax.random.uniform(x_key, (self.shots + self.queries, 1), minval=-5.0, maxval=5.0)
        family, y = self._function(function_key, x)
        if self.noise:
            y = y + self.noise * jax.random.normal(jax.random.fold_in(key, 3), y.shape)
        support = unpadded(x[: self.shots], y[: self.shots])
        if self.min_shots:
            size = jax.random.randint(size_key, (), self.min_shots, self.shots + 1)
            support = Examples(support.x, support.y, jnp.arange(self.shots) < size)
        return Task(support, unpadded(x[self.shots :], y[self.shots :]), family)

    def curve(self, key: PRNGKeyArray, x: Float[Array, "n 1"]) -> Float[Array, "n 1"]:
        """Evaluate the function of a task at any points, e.g. for figures.

        Args:
            key: The key that the task was drawn with.
            x: Points at which to evaluate the function.

        Returns:
            Values of the function, without noise.
        """
        return self._function(jax.random.split(key, 3)[0], x)[1]

    def _function(self, key: PRNGKeyArray, x: Float[Array, "n 1"]) -> tuple[Array, Float[Array, "n 1"]]:
        """Draw a family and its coefficients; return the family and the values of the function."""
        family_key, coefficient_key = jax.random.split(key)
        family = jax.random.randint(family_key, (), 0, len(self.families))
        low, high = jnp.moveaxis(jnp.array([FAMILIES[name][1] for name in self.families])[family], -1, 0)
        coefficients = low + (high - low) * jax.random.uniform(coefficient_key, (4,))
        branches = [FAMILIES[name][0] for name in self.families]
        return family, jax.lax.switch(family, branches, x, *coefficients)

"""Functions of four families (paper, section 6.1): each task is one function seen at a few points, without noise."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from metagrove.errors import check_at_least_one
from metagrove.sources.source import Source
from metagrove.task import Examples, Spec, Task, unpadded

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
    """Tasks drawn from the families, each equally likely; x ~ U[-5, 5] independently for every point."""

    families: tuple[str, ...] = ("sinusoid", "line", "quadratic", "cubic")
    """Which families of functions tasks are drawn from."""
    shots: int = 5
    """Support points of a task."""
    queries: int = 10
    """Query points of a task."""
    min_shots: int = 0
    """If set, tasks differ in size: from this many support points to `shots`, each number equally likely."""

    def validation_errors(self) -> list[str]:
        unknown = [name for name in self.families if name not in FAMILIES]
        return (
            [f"families must be among {', '.join(FAMILIES)}, got {name!r}" for name in unknown]
            + ([] if self.families else ["families must name at least one family"])
            + check_at_least_one(self, "shots", "queries")
            + ([] if 0 <= self.min_shots <= self.shots else [f"min_shots must be 0 to shots, got {self.min_shots}"])
        )

    @property
    def spec(self) -> Spec:
        return Spec(x_shape=(1,), y_dim=1)

    @property
    def family_names(self) -> tuple[str, ...]:
        return self.families

    def sample(self, key: PRNGKeyArray) -> Task:
        """One task, all of it decided by `key`."""
        function_key, x_key, size_key = jax.random.split(key, 3)
        x = jax.random.uniform(x_key, (self.shots + self.queries, 1), minval=-5.0, maxval=5.0)
        family, y = self._function(function_key, x)
        support = unpadded(x[: self.shots], y[: self.shots])
        if self.min_shots:
            size = jax.random.randint(size_key, (), self.min_shots, self.shots + 1)
            support = Examples(support.x, support.y, jnp.arange(self.shots) < size)
        return Task(support, unpadded(x[self.shots :], y[self.shots :]), family)

    def curve(self, key: PRNGKeyArray, x: Float[Array, "n 1"]) -> Float[Array, "n 1"]:
        """The function behind the task of that key, anywhere: for figures."""
        return self._function(jax.random.split(key, 3)[0], x)[1]

    def _function(self, key: PRNGKeyArray, x: Float[Array, "n 1"]) -> tuple[Array, Float[Array, "n 1"]]:
        """Draw a family and its coefficients; the family and the function's values."""
        family_key, coefficient_key = jax.random.split(key)
        family = jax.random.randint(family_key, (), 0, len(self.families))
        low, high = jnp.moveaxis(jnp.array([FAMILIES[name][1] for name in self.families])[family], -1, 0)
        coefficients = low + (high - low) * jax.random.uniform(coefficient_key, (4,))
        branches = [FAMILIES[name][0] for name in self.families]
        return family, jax.lax.switch(family, branches, x, *coefficients)

"""The mean of the support rows, or the smoothed rate of each class among them (Laplace's rule)."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.baselines.baseline import Baseline, Fitted, at_once
from metagrove.baselines.data import Data
from metagrove.learner import Info
from metagrove.losses import cross_entropy, mse
from metagrove.task import Examples, Spec


class Constant(eqx.Module):
    """Predicts the same for all rows."""

    value: Float[Array, " y"]

    def __call__(self, x: Float[Array, "n ..."], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n y"]:
        del mask
        return jnp.broadcast_to(self.value, (x.shape[0], self.value.shape[0]))


@dataclasses.dataclass(frozen=True)
class SupportMean(Baseline):
    """Predicts the mean of the support rows; for classes (n_k + 1) / (n + K)."""

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Float[Array, " y"]:
        del key
        return jnp.zeros(spec.y_dim)

    def adapt(
        self,
        meta: Float[Array, " y"],
        support: Examples,
        *,
        key: PRNGKeyArray | None = None,
        steps: int | None = None,
    ) -> tuple[Constant, Info]:
        del key, steps
        total, count = (support.y * support.mask[:, None]).sum(0), support.mask.sum()
        if self.loss is cross_entropy:
            return at_once(Constant(jnp.log((total + 1) / (count + total.shape[0])) + 0 * meta))
        return at_once(Constant(jnp.where(count > 0, total / jnp.maximum(count, 1), meta)))


def fit_support_mean(data: Data) -> Fitted:
    """Only the mean of all rows is fitted, for a task without rows."""
    _, y = data.train.flat()
    return Fitted(SupportMean(loss=cross_entropy if data.classifies else mse), jnp.asarray(y.mean(0), float))

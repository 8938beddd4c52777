"""mAP-DLM (Triantafillou et al. 2017): every example ranks all others, and the mean average precision is optimised.

Of a query with positives f⁺₁ ≥ … ≥ f⁺_P (cosines to its class) and negatives f⁻₁ ≥ … ≥ f⁻_N:

score of a ranking:  S(y) = 1/(PN) Σᵢⱼ yᵢⱼ (f⁺ᵢ - f⁻ⱼ),   yᵢⱼ = 1 if positive i stands before negative j, else -1
standard:            y_std = argmax S(y) = sign(f⁺ᵢ - f⁻ⱼ)
loss-augmented:      y_aug = argmax S(y) + ε (1 - AP(y))
loss:                (α S(y_aug) - S(y_std)) / ε,   both rankings constant (direct loss minimisation, positive update)

The published dynamic programme finds y_aug cell by cell. Here it is found for all negatives at once: to put negative j
before positive i rather than behind it changes the objective by δᵢⱼ = 2 (f⁻ⱼ - f⁺ᵢ)/(PN) + ε/P · i/((i+j-1)(i+j)),
which does not depend on the other negatives and falls with j, so that the best place of each negative alone, the
largest Σ_{k≥i} δ_kj, is the best ranking (Yue et al. 2007).
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from metagrove.inner import repeat
from metagrove.learner import Info, Learner, NetFn
from metagrove.losses import LossFn, cross_entropy, masked_mean
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.layers import without_head
from metagrove.nets.predictors import bind_support
from metagrove.task import Examples, Spec, Task, join

__all__ = ["MAPDLM"]

SMALL = 1e-8
FAR = -1e9
"""Similarity of rows that do not take part: it sorts them last."""


class RankedSupport(eqx.Module):
    """Predictor: the net, and the normalised features and labels of the support set.

    The score of a class is the average precision of the query's ranking of the support with that class as positives;
    with one shot it is 1 / rank, so that the nearest support example decides.
    """

    net: Any
    directions: Float[Array, "*_ n f"]
    labels: Float[Array, "*_ n k"]
    real: Bool[Array, "*_ n"]

    def __call__(self, x: Float[Array, "q ..."], mask: Bool[Array, " q"] | None = None) -> Float[Array, "q k"]:
        similarity = unit(self.net.features(x, mask)) @ self.directions.T
        similarity = jnp.where(self.real[None], similarity, FAR)
        members = self.labels * self.real[:, None]
        scores = jax.vmap(lambda row: average_precisions(row, members))(similarity) + SMALL
        return jnp.log(scores / scores.sum(1, keepdims=True))


@dataclasses.dataclass(frozen=True)
class MAPDLM(Learner):
    """mAP-DLM: features trained to rank examples of the same class first; the support is ranked at test.

    From Few-Shot Learning Through an Information Retrieval Lens (Triantafillou et al. 2017). Training uses all
    examples of a task alike; as published, training tasks have 8 ways (`--train-ways 8`).
    """

    loss: LossFn = cross_entropy
    """Query loss of evaluation; training minimises the direct loss of the mean average precision."""
    net: Conv4Net | NetFn = Conv4Net(filters=64)
    """Settings of the net whose penultimate layer gives the features."""
    perturbation: float = 1.0
    """Weight (ε) of 1 - AP in the loss-augmented ranking."""
    augmented_weight: float = 10.0
    """Weight (α) of the score of the loss-augmented ranking."""

    inner_steps: ClassVar[int] = 0
    any_ways: ClassVar[bool] = True

    def validation_errors(self) -> list[str]:
        names = ("perturbation", "augmented_weight")
        return [f"{name} must be positive, got {value}" for name in names if not (value := getattr(self, name)) > 0]

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Any:
        return without_head(self.net(spec, key=key), "mAP-DLM")

    def adapt(
        self, meta: Any, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[RankedSupport, Info]:
        del key, steps  # there is no inner loop: the path has one predictor
        directions = unit(meta.features(support.x, support.mask))
        predictor = RankedSupport(bind_support(meta, support), directions, support.y, support.mask)
        return predictor, Info(repeat(predictor, 1))

    def meta_loss(self, meta: Any, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Info]:
        """Compute the direct loss, the mean over all examples of the task, each ranking all others.

        Args:
            meta: The base net without head.
            task: A training task; support and query are joined.
            key: Unused, since nothing is random.

        Returns:
            The loss, and the Info of the adaptation with the mean average precision in percent.
        """
        _, info = self.adapt(meta, task.support, key=key)
        examples = join(task.support, task.query)
        directions = unit(meta.features(examples.x, examples.mask))
        same = (examples.y @ examples.y.T) > 0.5
        others = ~jnp.eye(len(same), dtype=bool) & examples.mask[None]

        def of_query(row: Array, same: Array, others: Array) -> tuple[Array, Array]:
            how = {"perturbation": self.perturbation, "augmented_weight": self.augmented_weight}
            ap = average_precisions(jnp.where(others, row, FAR), (same & others)[:, None] * 1.0)[0]
            return direct_loss(row, same & others, ~same & others, **how), ap

        losses, precisions = jax.vmap(of_query)(directions @ directions.T, same, others)
        ranks = examples.mask & (same & others).any(1) & (~same & others).any(1)
        seen = {"mean_average_precision": 100 * masked_mean(precisions, ranks)}
        return masked_mean(losses, ranks), dataclasses.replace(info, metrics=seen)


def unit(rows: Float[Array, "n f"]) -> Float[Array, "n f"]:
    """Normalise each row to unit length."""
    return rows * jax.lax.rsqrt(jnp.square(rows).sum(1, keepdims=True) + SMALL)


def average_precisions(similarity: Float[Array, " n"], members: Float[Array, "n k"]) -> Float[Array, " k"]:
    """Compute the average precision of one ranking for each class: the mean over its members of precision at its rank.

    Args:
        similarity: Similarity of the query to each example.
        members: 1 where an example belongs to a class; a row of zeros never counts as a positive.

    Returns:
        A value in [0, 1] for each class; 0 for a class without members.
    """
    in_order = members[jnp.argsort(-similarity)]
    ranks = jnp.arange(1, len(similarity) + 1)[:, None]
    precision = jnp.cumsum(in_order, axis=0) / ranks
    return (precision * in_order).sum(0) / jnp.maximum(in_order.sum(0), 1)


def direct_loss(
    similarity: Float[Array, " n"],
    positive: Bool[Array, " n"],
    negative: Bool[Array, " n"],
    *,
    perturbation: float,
    augmented_weight: float,
) -> Float[Array, ""]:
    """Compute (α S(y_aug) - S(y_std)) / ε of one query.

    Args:
        similarity: Cosines of the query to all examples.
        positive: Which examples are of its class.
        negative: Which examples are of another class.
        perturbation: ε.
        augmented_weight: α.

    Returns:
        The loss.
    """
    positives, negatives = (-jnp.sort(jnp.where(which, -similarity, -FAR)) for which in (positive, negative))
    num_positives, num_negatives = positive.sum(), negative.sum()
    frozen = jax.lax.stop_gradient((positives, negatives))
    augmented = augmented_ranking(*frozen, num_positives, num_negatives, perturbation)
    standard = jnp.where(frozen[0][:, None] > frozen[1][None], 1.0, -1.0)
    count = jnp.arange(len(similarity))
    real = (count < num_positives)[:, None] & (count < num_negatives)[None]
    pairs = jnp.where(real, augmented_weight * augmented - standard, 0) / jnp.maximum(num_positives * num_negatives, 1)
    positives, negatives = (
        jnp.where(count < n, f, 0) for f, n in ((positives, num_positives), (negatives, num_negatives))
    )
    return (pairs.sum(1) @ positives - pairs.sum(0) @ negatives) / perturbation


def augmented_ranking(
    positives: Float[Array, " p"],
    negatives: Float[Array, " n"],
    num_positives: Array,
    num_negatives: Array,
    perturbation: float,
) -> Float[Array, "p n"]:
    """Compute y_aug = argmax S(y) + ε (1 - AP(y)), as yᵢⱼ = ±1.

    Args:
        positives: Similarities of the positives in falling order; those beyond `num_positives` have no effect.
        negatives: Similarities of the negatives in falling order.
        num_positives: P.
        num_negatives: N.
        perturbation: ε.

    Returns:
        y_aug; cells beyond P and N have no meaning.
    """
    i = jnp.arange(1, len(positives) + 1)[:, None]
    j = jnp.arange(1, len(negatives) + 1)[None]
    pairs = jnp.maximum(num_positives * num_negatives, 1)
    gain = 2 * (negatives[None] - positives[:, None]) / pairs
    gain = gain + perturbation / jnp.maximum(num_positives, 1) * i / ((i + j - 1) * (i + j))
    gain = jnp.where(i <= num_positives, gain, 0)
    from_here = jnp.flip(jnp.cumsum(jnp.flip(gain, 0), axis=0), 0)  # Σ_{k≥i} δ_kj
    behind_all = jnp.zeros((1, len(negatives)))
    first_behind = jnp.argmax(jnp.concatenate([from_here, behind_all]), axis=0)  # counted from 0
    return jnp.where(i - 1 < first_behind[None], 1.0, -1.0)

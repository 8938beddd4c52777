"""Boosted trees (scikit-learn's HistGradientBoosting), fitted to all rows, saved as arrays and called in JAX.

Pooled trees use a row's inputs alone. On support features, trees also use the support set of the row's task (its mean
and standard deviation, the slope of each input by ridge regression, the linear prediction, the nearest support row) and
predict y minus the support's mean.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from metagrove.baselines.baseline import Baseline, Fitted, at_once
from metagrove.baselines.data import Data, Rows
from metagrove.learner import Info
from metagrove.losses import LossFn, cross_entropy, mse
from metagrove.task import Examples, Spec

TREES, LEAVES, DEPTH = 150, 16, 8
NODES = 2 * LEAVES - 1
DRAWS = 12
"""Support sets that are drawn of each training task."""
MOST_SAMPLES = 60_000
NEVER = -14.0
"""Raw score of a class that no training row has."""


class Forest(eqx.Module):
    """Trees as arrays, a first axis of outputs; a leaf is its own child."""

    feature: Int[Array, "o t n"]
    threshold: Float[Array, "o t n"]
    left: Int[Array, "o t n"]
    right: Int[Array, "o t n"]
    value: Float[Array, "o t n"]
    base: Float[Array, " o"]

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " o"]:
        """Raw score of one row."""

        def go_down(_: Array, at: Int[Array, "o t 1"]) -> Int[Array, "o t 1"]:
            def of(nodes: Array) -> Array:
                return jnp.take_along_axis(nodes, at, 2)

            return jnp.where(x[of(self.feature)] <= of(self.threshold), of(self.left), of(self.right))

        at = jax.lax.fori_loop(0, DEPTH, go_down, jnp.zeros((*self.feature.shape[:2], 1), int))
        return self.base + jnp.take_along_axis(self.value, at, 2)[..., 0].sum(1)


class SupportSummary(eqx.Module):
    """Summary of a support set, as features for trees."""

    x: Float[Array, "n d"]
    y: Float[Array, "n o"]
    mask: Bool[Array, " n"]
    mean: Float[Array, " o"]
    std: Float[Array, " o"]
    center: Float[Array, " d"]
    slopes: Float[Array, "d o"]

    def features(self, x: Float[Array, " d"]) -> Float[Array, " g"]:
        """[x, mean, std, slopes, linear prediction - mean, nearest row's x - x, its y - mean]."""
        distance = jnp.where(self.mask, jnp.square(self.x - x[None]).sum(1), jnp.inf)
        nearest = distance.argmin()
        linear = (x - self.center) @ self.slopes
        parts = [x, self.mean, self.std, self.slopes.reshape(-1), linear, self.x[nearest] - x]
        return jnp.concatenate([*parts, self.y[nearest] - self.mean])


def summarize(support: Examples) -> SupportSummary:
    """Mean, standard deviation and ridge slopes (penalty 1) of a support set."""
    mask, count = support.mask, jnp.maximum(support.mask.sum(), 1)
    mean, center = support.y.sum(0) / count, support.x.sum(0) / count
    dx, dy = (support.x - center[None]) * mask[:, None], (support.y - mean[None]) * mask[:, None]
    slopes = jnp.linalg.solve(dx.T @ dx + jnp.eye(dx.shape[1]), dx.T @ dy)
    std = jnp.sqrt(jnp.square(dy).sum(0) / count)
    return SupportSummary(support.x, support.y, mask, mean, std, center, slopes)


class TreePredictor(eqx.Module):
    """Trees, and the support set that they use, or None."""

    forest: Forest
    support: SupportSummary | None
    classifies: bool = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"], mask: Bool[Array, " n"] | None = None) -> Float[Array, "n o"]:
        del mask
        raw = jax.vmap(self._raw)(x)
        return jax.nn.log_softmax(raw) if self.classifies else raw

    def _raw(self, x: Float[Array, " d"]) -> Float[Array, " o"]:
        if self.support is None:
            return self.forest(x)
        raw = self.forest(self.support.features(x))
        return raw if self.classifies else raw + self.support.mean


@dataclasses.dataclass(frozen=True)
class BoostedTrees(Baseline):
    """Gradient boosting on the rows of all tasks."""

    support_features: bool = False
    """Whether trees also use the support set of a row's task."""

    def init(self, spec: Spec, *, key: PRNGKeyArray) -> Forest:
        del key
        shape = (spec.y_dim, TREES, NODES)
        nodes, zeros = jnp.zeros(shape, int), jnp.zeros(shape)
        return Forest(nodes, zeros, nodes, nodes, zeros, jnp.zeros(spec.y_dim))

    def adapt(
        self, meta: Forest, support: Examples, *, key: PRNGKeyArray | None = None, steps: int | None = None
    ) -> tuple[TreePredictor, Info]:
        del key, steps
        seen = summarize(support) if self.support_features else None
        return at_once(TreePredictor(meta, seen, self.loss is cross_entropy))


def fit_pooled_trees(data: Data) -> Fitted:
    """Trees of the inputs alone."""
    x, y = data.train.flat()
    return Fitted(BoostedTrees(loss=loss_of(data)), fit_forest(x, y, data.classifies))


def fit_support_trees(data: Data) -> Fitted:
    """Trees on support features, from support sets drawn of the training tasks."""
    x, y = support_samples(data.train, data.shots, data.classifies)
    return Fitted(BoostedTrees(loss=loss_of(data), support_features=True), fit_forest(x, y, data.classifies))


def loss_of(data: Data) -> LossFn:
    """Return the loss that goes with the targets."""
    return cross_entropy if data.classifies else mse


def support_samples(rows: Rows, shots: int, classifies: bool) -> tuple[np.ndarray, np.ndarray]:
    """Support features and targets of the rows outside drawn support sets of the training tasks."""
    rng, per_draw = np.random.default_rng(0), max(1, MOST_SAMPLES // (DRAWS * len(rows.x)))
    found = []
    for _ in range(DRAWS):
        order = np.argsort(rng.random(rows.mask.shape) + 2 * ~rows.mask, axis=1)
        x, y, mask = (
            np.take_along_axis(a, order.reshape(*order.shape, *(1,) * (a.ndim - 2)), 1)
            for a in (rows.x, rows.y, rows.mask)
        )
        last = slice(shots, shots + per_draw)
        support = Examples(*(jnp.asarray(a[:, :shots], bool if a is mask else float) for a in (x, y, mask)))
        features, mean = (np.asarray(part, np.float64) for part in _features(support, jnp.asarray(x[:, last], float)))
        target = y[:, last] if classifies else y[:, last] - mean[:, None]
        found.append((features[mask[:, last]], target[mask[:, last]]))
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


@eqx.filter_jit
def _features(support: Examples, x: Float[Array, "t n d"]) -> tuple[Array, Array]:
    """Features of rows of a batch of tasks, and the means of their support sets."""

    def one(support: Examples, x: Float[Array, "n d"]) -> tuple[Array, Array]:
        seen = summarize(support)
        return jax.vmap(seen.features)(x), seen.mean

    return jax.vmap(one)(support, x)


def fit_forest(x: np.ndarray, y: np.ndarray, classifies: bool) -> Forest:
    """Fit scikit-learn's model, on one thread since the data are small, and take its trees."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        return _fit_forest(x, y, classifies)


def _fit_forest(x: np.ndarray, y: np.ndarray, classifies: bool) -> Forest:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    how: dict[str, Any] = {"max_iter": TREES, "max_leaf_nodes": LEAVES, "max_depth": DEPTH, "learning_rate": 0.07}
    how |= {"min_samples_leaf": 20, "early_stopping": False, "random_state": 0}
    x = x.astype(np.float32)
    if not classifies:
        models = [HistGradientBoostingRegressor(**how).fit(x, y[:, i]) for i in range(y.shape[1])]
        trees = [[stage[0] for stage in model._predictors] for model in models]
        return as_forest(trees, np.array([float(model._baseline_prediction.item()) for model in models]))
    labels = y.argmax(1)
    base, trees = np.full(y.shape[1], NEVER), [[] for _ in range(y.shape[1])]
    if len(set(labels)) == 1:
        base[labels[0]] = 0.0
        return as_forest(trees, base)
    model = HistGradientBoostingClassifier(**how).fit(x, labels)
    binary = len(model.classes_) == 2
    for i, label in enumerate(model.classes_):
        own = i - 1 if binary else i
        base[label] = 0.0 if own < 0 else float(model._baseline_prediction.reshape(-1)[own])
        trees[label] = [] if own < 0 else [stage[own] for stage in model._predictors]
    return as_forest(trees, base)


def as_forest(trees: list[list[Any]], base: np.ndarray) -> Forest:
    """Nodes of fitted trees as arrays; a missing tree has one leaf of value 0."""
    shape = (len(trees), TREES, NODES)
    arrays = {name: np.zeros(shape, int) for name in ("feature", "left", "right")}
    arrays |= {name: np.zeros(shape) for name in ("threshold", "value")}
    for at in ((i, j) for i, of_output in enumerate(trees) for j in range(len(of_output))):
        nodes = trees[at[0]][at[1]].nodes
        num, leaf = len(nodes), nodes["is_leaf"].astype(bool)
        own = np.arange(num)
        arrays["feature"][at][:num] = np.where(leaf, 0, nodes["feature_idx"])
        arrays["threshold"][at][:num] = np.where(leaf, 0, rounded_down(nodes["num_threshold"]))
        arrays["left"][at][:num], arrays["right"][at][:num] = (
            np.where(leaf, own, nodes[side].astype(int)) for side in ("left", "right")
        )
        arrays["value"][at][:num] = np.where(leaf, nodes["value"], 0)
    return Forest(
        **{name: jnp.asarray(array, int if array.dtype.kind == "i" else float) for name, array in arrays.items()},
        base=jnp.asarray(base, float),
    )


def rounded_down(thresholds: np.ndarray) -> np.ndarray:
    """Round down to single precision, which preserves x ≤ t for x in single precision."""
    single = np.clip(thresholds, -3e38, 3e38).astype(np.float32)
    return np.where(single > thresholds, np.nextafter(single, np.float32(-np.inf)), single)

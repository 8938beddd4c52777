"""From a flat mixture to a hierarchy: empty clusters are pruned, the others merged pair by pair.

Both steps are measured by the mean log marginal likelihood of tasks (nats per task):

loss of pruning k       log Σ_j π_j e^ℓ_j  -  log Σ_{j≠k} π_j / (1 - π_k) e^ℓ_j
loss of merging a, b    log Σ_j π_j e^ℓ_j  -  log( Σ_{j≠a,b} π_j e^ℓ_j + (π_a + π_b) e^ℓ_ab )

where ℓ_ab is the evidence under one Gaussian with the pair's mean and covariance:

m = w_a m_a + w_b m_b,   L = [√w_a L_a, √w_b L_b, √(w_a w_b) (m_a - m_b)],   w_a = π_a / (π_a + π_b)

The pair that loses least is merged first, and so on up to the root: the dendrogram is the hierarchy.
"""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from metagrove.errors import DivergedError, InputError
from metagrove.mixture.prior import Mixture
from metagrove.task import Examples

PRUNE_LOSS = 0.01
"""A cluster whose removal costs fewer nats per task is empty."""
MERGED_RANK = 16
"""Largest rank of a merged prior; the directions of least variance are left out."""
BATCH = 100


class Tree(eqx.Module):
    """A dendrogram over K leaves. Node i < K is a leaf and node K + j the j-th merge; the last one is the root."""

    children: Int[np.ndarray, "merges 2"]
    loss: Float[np.ndarray, " merges"]
    """Loss of each merge in nats per task."""
    nodes: Mixture
    """Every node's prior; its logits are the logarithms of the nodes' masses."""

    @property
    def num_leaves(self) -> int:
        """K."""
        return len(self.children) + 1

    def ancestry(self) -> Float[np.ndarray, "k nodes"]:
        """1 where a leaf is, or stands below, a node: p @ ancestry is a task's mass at every node."""
        below = list(np.eye(self.num_leaves))
        for first, second in self.children:
            below.append(below[first] + below[second])
        return np.stack(below, axis=1)

    def cut(self, num_nodes: int) -> list[int]:
        """The nodes that are left when no more than `num_nodes` are, in the order of their first leaf."""
        if num_nodes < 1:
            raise InputError(f"a level of the tree has at least 1 node, got {num_nodes}")
        left = set(range(self.num_leaves))
        for merge, pair in enumerate(self.children.tolist()):
            if len(left) > num_nodes:
                left = left - set(pair) | {self.num_leaves + merge}
        first_leaf = self.ancestry().argmax(0)
        return sorted(left, key=lambda node: first_leaf[node])

    def links(self, levels: tuple[int, ...]) -> tuple[Float[np.ndarray, "_ _"], ...]:
        """Parent links between successive levels, 0 or 1 and one 1 a row, shaped (K, K²), ..., (K^{L-1}, K^L).

        Args:
            levels: Nodes of each level above the leaves, decreasing, e.g. (4, 2, 1). A level with at least as many
                nodes as there are leaves consists of the leaves.
        """
        if any(upper > lower for lower, upper in itertools.pairwise(levels)):
            raise InputError(f"levels of a tree must not grow towards the root, got {levels}")
        ancestry = self.ancestry()
        member = [np.eye(self.num_leaves), *(ancestry[:, self.cut(count)] for count in levels)]
        return tuple((lower.T @ upper > 0).astype(float) for lower, upper in itertools.pairwise(member))


def level_assignments(
    probabilities: Float[Array, " k"], links: tuple[Float[Array | np.ndarray, "_ _"], ...]
) -> tuple[Float[Array, "_ _"], ...]:
    """A task's assignment at every level, as HSML's: p^{0→k} (1, K), then the links; rows sum to 1."""
    return probabilities[None], *(jnp.asarray(link) for link in links)


@eqx.filter_jit
def evidence_of_one(mixture: Mixture, rows: Examples) -> Float[Array, " tasks"]:
    """ℓ of each task (a batch of rows) under a mixture of one cluster."""
    return jax.lax.map(lambda one: mixture.log_evidence(one)[0], rows, batch_size=BATCH)


def evidence_matrix(mixture: Mixture, rows: Examples) -> Float[np.ndarray, "tasks k"]:
    """ℓ_k of each task (a batch of rows), in double precision.

    Cluster after cluster, with columns of 0 in L up to `node_rank`, so that one compiled function serves any number of
    clusters, leaves and merged ones.
    """
    wide = _widen(mixture)
    columns = [evidence_of_one(pick(wide, [k]), rows) for k in range(mixture.num_clusters)]
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def mean_log_marginal(mixture: Mixture, rows: Examples) -> float:
    """Mean over tasks (a batch of rows) of log p(y); NaN of a mixture that is not finite."""
    with np.errstate(invalid="ignore"):
        return float(np.logaddexp.reduce(evidence_matrix(mixture, rows) + log_masses(mixture), axis=1).mean())


def choose_start(starts: Mixture, rows: Examples) -> tuple[Mixture, Float[np.ndarray, " starts"]]:
    """Of mixtures stacked along a first axis the one with the largest evidence of tasks, and the mean of each.

    Args:
        starts: The mixtures; one that is not finite is never chosen.
        rows: Validation tasks, a batch of rows.

    Raises:
        DivergedError: If none is finite.
    """
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], starts) for i in range(starts.logits.shape[0])]
    scores = np.asarray([mean_log_marginal(one, rows) for one in each])
    if not np.isfinite(scores).any():
        raise DivergedError("no start of the evidence clusters stayed finite: train anew with a lower --fit-lr")
    return each[int(np.where(np.isfinite(scores), scores, -np.inf).argmax())], scores


def log_masses(mixture: Mixture) -> Float[np.ndarray, " k"]:
    """log π."""
    logits = np.asarray(mixture.logits, np.float64)
    return logits - np.logaddexp.reduce(logits)


def pick(mixture: Mixture, clusters: list[int] | np.ndarray) -> Mixture:
    """The mixture of these clusters alone."""
    index = np.asarray(clusters, int)
    return dataclasses.replace(
        mixture, mean=mixture.mean[index], factor=mixture.factor[index], logits=mixture.logits[index]
    )


def prune(mixture: Mixture, rows: Examples, *, max_loss: float = PRUNE_LOSS) -> Mixture:
    """Remove clusters one by one, the least needed first, for as long as each costs less than `max_loss`.

    Args:
        mixture: A fitted mixture.
        rows: Tasks whose likelihood is measured, a batch of rows.
        max_loss: Nats per task.
    """
    log_mass = log_masses(mixture)
    joint = evidence_matrix(mixture, rows) + log_mass
    left = list(range(mixture.num_clusters))

    def mean_log(clusters: list[int]) -> float:
        return np.logaddexp.reduce(joint[:, clusters], axis=1).mean() - np.logaddexp.reduce(log_mass[clusters])

    while len(left) > 1:
        without = {k: mean_log([j for j in left if j != k]) for k in left}
        weakest = max(without, key=lambda k: without[k])
        if not mean_log(left) - without[weakest] < max_loss:
            break
        left.remove(weakest)
    return pick(mixture, left)


def merge_clusters(mixture: Mixture, rows: Examples) -> Tree:
    """The dendrogram.

    Args:
        mixture: A fitted mixture, pruned.
        rows: Tasks whose likelihood is measured, a batch of rows.
    """
    nodes = _widen(mixture)
    evidence, log_mass = evidence_matrix(nodes, rows), log_masses(mixture)
    left, children, losses = list(range(mixture.num_clusters)), [], []
    pairs: dict[tuple[int, int], tuple[Mixture, np.ndarray]] = {}
    while len(left) > 1:
        new = [pair for pair in itertools.combinations(left, 2) if pair not in pairs]
        pairs |= _merged_pairs(nodes, log_mass, new, rows)
        whole = np.logaddexp.reduce(evidence[:, left] + log_mass[left], axis=1)
        cost = {p: _loss(whole, evidence, log_mass, left, p, pairs[p][1]) for p in itertools.combinations(left, 2)}
        best = min(cost, key=lambda pair: cost[pair])
        node, node_evidence = pairs[best]
        children.append(best)
        losses.append(cost[best])
        nodes = _append(nodes, node)
        evidence = np.concatenate([evidence, node_evidence[:, None]], axis=1)
        log_mass = np.append(log_mass, np.logaddexp(*log_mass[list(best)]))
        left = [k for k in left if k not in best] + [len(log_mass) - 1]
    nodes = dataclasses.replace(nodes, logits=jnp.asarray(log_mass, float))
    return Tree(np.asarray(children, int).reshape(-1, 2), np.asarray(losses, float), nodes)


def _loss(
    whole: np.ndarray,
    evidence: np.ndarray,
    log_mass: np.ndarray,
    left: list[int],
    pair: tuple[int, int],
    merged: np.ndarray,
) -> float:
    """Nats per task that are lost by merging the pair; see the module's docstring."""
    others = [k for k in left if k not in pair]
    terms = np.column_stack([evidence[:, others] + log_mass[others], merged + np.logaddexp(*log_mass[list(pair)])])
    return float((whole - np.logaddexp.reduce(terms, axis=1)).mean())


def _merged_pairs(
    nodes: Mixture, log_mass: np.ndarray, pairs: list[tuple[int, int]], rows: Examples
) -> dict[tuple[int, int], tuple[Mixture, np.ndarray]]:
    """Every pair's common prior and its evidence for each task."""
    each = [_merge(nodes, log_mass, *pair) for pair in pairs]
    columns = [evidence_matrix(one, rows)[:, 0] for one in each]
    return {pair: (one, column) for pair, one, column in zip(pairs, each, columns, strict=True)}


def _merge(nodes: Mixture, log_mass: np.ndarray, first: int, second: int) -> Mixture:
    """One cluster with the pair's mean and covariance, of the same rank as its parts."""
    share = np.exp(log_mass[[first, second]] - np.logaddexp(log_mass[first], log_mass[second]))
    means = np.asarray(nodes.mean, np.float64)[[first, second]]
    factors = np.asarray(nodes.factor, np.float64)[[first, second]]
    rank = factors.shape[-1]
    between = np.sqrt(share.prod()) * (means[0] - means[1])
    columns = np.concatenate([*(factors * np.sqrt(share)[:, None, None, None]), between[..., None]], axis=-1)
    left, size, _ = np.linalg.svd(columns.reshape(-1, columns.shape[-1]), full_matrices=False)
    factor = np.pad(left * size, [(0, 0), (0, max(rank - len(size), 0))])[:, :rank]
    return dataclasses.replace(
        nodes,
        mean=jnp.asarray(np.einsum("k,kfo->fo", share, means)[None], float),
        factor=jnp.asarray(factor.reshape(1, *means.shape[1:], rank), float),
        logits=jnp.zeros(1),
    )


def node_rank(mixture: Mixture) -> int:
    """Columns of L at every node of a dendrogram: those of the leaves, and room for what merges add."""
    _, features, outputs, rank = mixture.factor.shape
    return max(rank, min(features * outputs, MERGED_RANK))


def _widen(mixture: Mixture) -> Mixture:
    """The same mixture with columns of 0 in L."""
    extra = node_rank(mixture) - mixture.factor.shape[-1]
    return dataclasses.replace(mixture, factor=jnp.pad(mixture.factor, [(0, 0)] * 3 + [(0, extra)]))


def chain(mixture: Mixture) -> Tree:
    """A dendrogram with the shapes of a fitted one, in which each merge adds the next cluster."""
    num = mixture.num_clusters
    children = np.asarray([(num + merge - 1 if merge else 0, merge + 1) for merge in range(num - 1)], int)
    nodes = _widen(mixture)
    repeats = [*range(num), *[0] * (num - 1)]
    return Tree(children.reshape(-1, 2), np.zeros(num - 1), pick(nodes, repeats))


def _append(nodes: Mixture, node: Mixture) -> Mixture:
    """One more cluster."""
    both = {name: jnp.concatenate([getattr(nodes, name), getattr(node, name)]) for name in ("mean", "factor", "logits")}
    return dataclasses.replace(nodes, **both)

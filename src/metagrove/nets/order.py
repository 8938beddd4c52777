"""Order in which a recurrent net reads the rows of a set, which is unordered."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from metagrove.task import Examples

RowOrder = Literal["random", "sorted"]
SUMMARIES = 2
"""Number of fixed random projections of the pixels by which images are sorted."""


def read_rows(
    read: Callable[[Float[Array, "n e"], Bool[Array, " n"]], Any],
    rows: Float[Array, "n e"],
    support: Examples,
    *,
    order: RowOrder,
    num_permutations: int,
    key: PRNGKeyArray | None,
) -> Any:
    """Apply `read` to rows, one per support example, in a sorted or random order.

    Without a key the result is invariant to the order of the support: rows are sorted, and if training uses random
    orders, the result is averaged over `num_permutations` fixed permutations of the sorted rows.
    """

    def read_as(places: Int[Array, " n"]) -> Any:
        return read(rows[places], support.mask[places])

    if order == "sorted":
        return read_as(sorted_places(support))
    if key is not None:
        return read_as(permuted_places(support.mask, key))
    each = jax.vmap(read_as)(row_orders(support, num_permutations, key=None))
    return jax.tree.map(lambda out: out.mean(0), each)


def row_orders(support: Examples, num_permutations: int, *, key: PRNGKeyArray | None) -> Int[Array, "p n"]:
    """Draw one random order of the rows; without a key, fixed permutations of the sorted rows.

    Unmasked rows come first in each.
    """
    if key is not None:
        return permuted_places(support.mask, key)[None]
    in_order = sorted_places(support)
    keys = jax.random.split(jax.random.key(0), num_permutations)
    return in_order[jax.vmap(permuted_places, in_axes=(None, 0))(support.mask[in_order], keys)]


def sorted_places(support: Examples) -> Int[Array, " n"]:
    """Return the sorting permutation: unmasked rows first, by x and then y; images by y and projections of x."""
    x = support.x.reshape(len(support.x), -1)
    if support.x.ndim > 2:
        sums = np.random.default_rng(0).normal(size=(x.shape[1], SUMMARIES)).astype(np.float32)
        columns = jnp.concatenate([support.y, x @ sums], axis=1)
    else:
        columns = jnp.concatenate([x, support.y], axis=1)
    return jnp.lexsort([*columns.T[::-1], ~support.mask])


def permuted_places(mask: Bool[Array, " n"], key: PRNGKeyArray) -> Int[Array, " n"]:
    """Draw a permutation with unmasked rows first, which does not depend on the amount of padding."""
    draw = jax.vmap(lambda row: jax.random.uniform(jax.random.fold_in(key, row)))
    return jnp.argsort(draw(jnp.arange(mask.shape[0])) + ~mask)

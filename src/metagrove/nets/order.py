"""Order in which a recurrent net reads the rows of a set, which is unordered."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from metagrove.task import Examples

RowOrder = Literal["random", "sorted"]
SUMMARIES = 2
"""Number of fixed random projections of the pixels by which images are sorted."""


def row_orders(
    support: Examples, num_permutations: int, *, key: PRNGKeyArray | None, order: RowOrder = "random"
) -> Int[Array, "p n"]:
    """Orders in which to read the rows of a support set; unmasked rows come first in each.

    With a key there is one order, random or sorted. Without a key the orders do not depend on that of the support set:
    the sorted rows, or if training uses random orders, `num_permutations` fixed permutations of them, to be averaged.
    """
    if order == "sorted":
        return sorted_order(support)[None]
    if key is not None:
        return permuted_order(support.mask, key)[None]
    in_order = sorted_order(support)
    keys = jax.random.split(jax.random.key(0), num_permutations)
    return in_order[jax.vmap(permuted_order, in_axes=(None, 0))(support.mask[in_order], keys)]


def sorted_order(support: Examples) -> Int[Array, " n"]:
    """Return the sorting permutation: unmasked rows first, by x and then y; images by y and projections of x."""
    x = support.x.reshape(len(support.x), -1)
    if support.x.ndim > 2:
        sums = np.random.default_rng(0).normal(size=(x.shape[1], SUMMARIES)).astype(np.float32)
        columns = jnp.concatenate([support.y, x @ sums], axis=1)
    else:
        columns = jnp.concatenate([x, support.y], axis=1)
    return jnp.lexsort([*columns.T[::-1], ~support.mask])


def permuted_order(mask: Bool[Array, " n"], key: PRNGKeyArray) -> Int[Array, " n"]:
    """Draw a permutation with unmasked rows first, which does not depend on the amount of padding."""
    draw = jax.vmap(lambda row: jax.random.uniform(jax.random.fold_in(key, row)))
    return jnp.argsort(draw(jnp.arange(mask.shape[0])) + ~mask)

"""In which order a recurrent net reads the rows of a set, which have none."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from metagrove.task import Examples

RowOrder = Literal["random", "sorted"]


def read_rows(
    read: Callable[[Examples], Any],
    support: Examples,
    *,
    order: RowOrder,
    num_permutations: int,
    key: PRNGKeyArray | None,
) -> Any:
    """What `read` makes of the rows. Without a key the order in which they come does not matter: they are sorted, and
    where training saw random orders, the same few permutations of the sorted rows are averaged.
    """
    if order == "sorted":
        return read(sort_rows(support))
    if key is not None:
        return read(permute_rows(support, key))
    keys = jax.random.split(jax.random.key(0), num_permutations)
    permuted = jax.vmap(permute_rows, in_axes=(None, 0))(sort_rows(support), keys)
    return jax.tree.map(lambda out: out.mean(0), jax.vmap(read)(permuted))


def sort_rows(support: Examples) -> Examples:
    """Real rows first, by x and then by y."""
    columns = jnp.concatenate([support.x, support.y], axis=1).T
    order = jnp.lexsort([*columns[::-1], ~support.mask])
    return jax.tree.map(lambda rows: rows[order], support)


def permute_rows(support: Examples, key: PRNGKeyArray) -> Examples:
    """Real rows first, in an order that depends on the key and not on the padding."""
    draw = jax.vmap(lambda row: jax.random.uniform(jax.random.fold_in(key, row)))
    order = jnp.argsort(draw(jnp.arange(support.mask.shape[0])) + ~support.mask)
    return jax.tree.map(lambda rows: rows[order], support)

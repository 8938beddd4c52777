"""Independent random keys derived from one seed, so that test tasks are never training tasks."""

from typing import Literal

import jax
from jaxtyping import PRNGKeyArray

Purpose = Literal["init", "train", "validation", "test", "growth", "start"]

PURPOSES = ("init", "train", "validation", "test", "growth", "start")


def key_for(purpose: Purpose, seed: int) -> PRNGKeyArray:
    """Return the random key of a purpose; fold in the step or the index of the task.

    Args:
        purpose: What the key is used for; keys of different purposes are independent.
        seed: Random seed of the run.

    Returns:
        A random key.
    """
    return jax.random.fold_in(jax.random.key(seed), PURPOSES.index(purpose))

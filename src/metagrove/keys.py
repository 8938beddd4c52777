"""One seed, six independent streams: so that no test task is ever a training task."""

from typing import Literal

import jax
from jaxtyping import PRNGKeyArray

Purpose = Literal["init", "train", "validation", "test", "growth", "start"]

PURPOSES = ("init", "train", "validation", "test", "growth", "start")


def key_for(purpose: Purpose, seed: int) -> PRNGKeyArray:
    """The key of a stream; fold the step or the task's number in."""
    return jax.random.fold_in(jax.random.key(seed), PURPOSES.index(purpose))

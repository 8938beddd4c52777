"""Split whole tasks into training, validation and test tasks: seeded, stratified and grouped."""

from collections.abc import Sequence

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.settings import TableData
from metagrove.task import Split

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
FEWEST = 2
"""Minimum number of tasks per split, for a confidence interval."""


def split_tasks(family: np.ndarray, group: np.ndarray, data: TableData) -> np.ndarray:
    """Split tasks; the split of a task depends on names, families, groups and seed, but not on the order of rows.

    Args:
        family: Index of the family of each task, in the order of the families' names.
        group: Index of the group of each task, in the order of the groups' names; a group stays in one split.
        data: The settings.

    Returns:
        The index of the split of each task among `SPLITS`.

    Raises:
        InputError: If there are too few groups.
    """
    num_groups = int(group.max(initial=-1)) + 1
    if num_groups < 3 * FEWEST:
        what = "groups of tasks" if data.group_column else "tasks"
        raise InputError(f"{data.tasks}: {num_groups} {what} with enough rows, at least {3 * FEWEST} are needed")
    return split_groups(strata(family, group, num_groups) if data.group_column else family[np.argsort(group)], data)[
        group
    ]


def strata(family: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """The stratum of each group: groups with tasks of the same families are of one stratum."""
    pairs = np.unique(np.stack([group, family]), axis=1)
    families: Sequence[tuple[int, ...]] = [
        tuple(part.tolist()) for part in np.split(pairs[1], np.searchsorted(pairs[0], np.arange(1, num_groups)))
    ]
    rank = {key: at for at, key in enumerate(sorted(set(families)))}
    return np.array([rank[key] for key in families])


def split_groups(strata: np.ndarray, data: TableData) -> np.ndarray:
    """The index of the split of each group, by systematic sampling from the groups sorted by stratum."""
    rng = np.random.default_rng(data.split_seed)
    left = np.lexsort((rng.permutation(len(strata)), strata))
    found = np.zeros(len(strata), np.int8)
    wanted: tuple[tuple[Split, float], ...] = (("test", data.test), ("validation", data.validation))
    for split, part in wanted:
        count = max(FEWEST, round(part * len(strata)))
        places = ((np.arange(count) + rng.uniform()) * len(left) / count).astype(int)
        found[left[places]] = SPLITS.index(split)
        left = left[found[left] == SPLITS.index("train")]
    return found

"""Split whole tasks into training, validation and test tasks: seeded, stratified and grouped."""

from collections.abc import Mapping, Sequence

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.settings import TableData
from metagrove.tables.tasks import TaskRows
from metagrove.task import Split

FEWEST = 2
"""Minimum number of tasks per split, for a confidence interval."""


def split_tasks(tasks: Sequence[TaskRows], data: TableData) -> dict[str, Split]:
    """Return the split of each task, which depends on names, families, groups and seed but not on the row order."""
    kinds: dict[str, set[str]] = {}
    for task in tasks:
        kinds.setdefault(task.group, set()).add(task.kind)
    if len(kinds) < 3 * FEWEST:
        what = "groups of tasks" if data.group_column else "tasks"
        raise InputError(f"{data.tasks}: {len(kinds)} {what} with enough rows, at least {3 * FEWEST} are needed")
    of_group = split_groups(kinds, data)
    return {task.name: of_group[task.group] for task in tasks}


def split_groups(kinds: Mapping[str, set[str]], data: TableData) -> dict[str, Split]:
    """Return the split of each group by systematic sampling from the groups sorted by family."""
    rng = np.random.default_rng(data.split_seed)
    drawn = dict(zip(sorted(kinds), rng.permutation(len(kinds)), strict=True))
    left = sorted(kinds, key=lambda group: (sorted(kinds[group]), drawn[group]))
    parts: dict[str, Split] = {}
    wanted: tuple[tuple[Split, float], ...] = (("test", data.test), ("validation", data.validation))
    for split, part in wanted:
        count = max(FEWEST, round(part * len(kinds)))
        positions = ((np.arange(count) + rng.uniform()) * len(left) / count).astype(int)
        parts |= {left[position]: split for position in positions}
        left = [group for group in left if group not in parts]
    for group in left:
        parts[group] = "train"
    return parts

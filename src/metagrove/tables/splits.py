"""Training, validation and test tasks: whole tasks, seeded, each kind in its proportion."""

from collections.abc import Mapping, Sequence

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.settings import TableData
from metagrove.tables.tasks import TaskRows
from metagrove.task import Split

FEWEST = 2
"""Tasks of a split, for a confidence interval."""


def split_tasks(tasks: Sequence[TaskRows], data: TableData) -> dict[str, Split]:
    """{task: its split}. Which one depends on names, kinds, groups and the seed, not on the order of rows."""
    kinds: dict[str, set[str]] = {}
    for task in tasks:
        kinds.setdefault(task.group, set()).add(task.kind)
    if len(kinds) < 3 * FEWEST:
        what = "groups of tasks" if data.together else "tasks"
        raise InputError(f"{data.tasks}: {len(kinds)} {what} of enough rows, at least {3 * FEWEST} are needed")
    of_group = split_groups(kinds, data)
    return {task.name: of_group[task.group] for task in tasks}


def split_groups(kinds: Mapping[str, set[str]], data: TableData) -> dict[str, Split]:
    """{group: its split}: groups of a kind stand side by side, and every so many of them is taken."""
    rng = np.random.default_rng(data.split_seed)
    drawn = dict(zip(sorted(kinds), rng.permutation(len(kinds)), strict=True))
    left = sorted(kinds, key=lambda group: (sorted(kinds[group]), drawn[group]))
    parts: dict[str, Split] = {}
    wanted: tuple[tuple[Split, float], ...] = (("test", data.test), ("validation", data.validation))
    for split, part in wanted:
        count = max(FEWEST, round(part * len(kinds)))
        places = ((np.arange(count) + rng.uniform()) * len(left) / count).astype(int)
        parts |= {left[place]: split for place in places}
        left = [group for group in left if group not in parts]
    for group in left:
        parts[group] = "train"
    return parts

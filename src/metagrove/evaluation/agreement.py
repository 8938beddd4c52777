"""Agreement of the nodes of a hierarchy with families of tasks and with the shapes of their true functions."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from metagrove.evaluation.shapes import shape_classes
from metagrove.files import OMIT_NONE
from metagrove.outer import map_drawn, task_keys
from metagrove.serve.run import Run, draws_of
from metagrove.sources.source import Source, TaskDraw
from metagrove.task import Task
from metagrove.training.scores import test_parts

__all__ = ["Agreements", "DrawnPart", "LevelAgreement", "agreements", "draw_parts", "level_shares", "node_name"]

MOST_TASKS = 4000
"""Maximum number of test tasks."""
SCALE_TASKS = 200
"""Test tasks of each part whose inputs determine the range of the grid."""
CURVE_POINTS = 101
"""Points of the grid on which a true function is classified."""


@dataclasses.dataclass(frozen=True)
class LevelAgreement:
    """Normalised mutual information of the strongest node of a level with the families and shapes of the tasks."""

    nodes: int
    families: float | None
    """With the families; None if there is only one."""
    shapes: float | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """With shape classes (rising, falling, arc, wave); None if the true functions are unknown or not curves."""


@dataclasses.dataclass(frozen=True)
class Agreements:
    """Agreement of the nodes of each level with families and shapes."""

    levels: list[LevelAgreement]
    """Agreement at each level below the root."""
    merged: LevelAgreement | None = None
    """Agreement of the dendrogram, cut to as many nodes as there are families."""
    families_by_parent: dict[str, list[str]] | None = None
    """Families whose strongest second-level node is the same, by node."""


@dataclasses.dataclass(frozen=True)
class DrawnPart:
    """Test tasks of one part of a source."""

    tasks: TaskDraw
    keys: Key[Array, " n"]


def draw_parts(source: Source, num_tasks: int, seed: int) -> list[DrawnPart]:
    """The first test tasks of `Run.scores`, part by part."""
    parts = test_parts(source, seed)
    sizes = draws_of(min(num_tasks, MOST_TASKS), len(parts), again=source.repeats_tasks)
    return [DrawnPart(tasks, task_keys(key, size)) for (tasks, key), size in zip(parts, sizes, strict=True)]


def level_shares(assignments: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Share of each task in each node of every level: s^1 = p^{0→·}, s^{l+1} = Σ_k s^l_k p^{k→·}.

    Args:
        assignments: p^{k→k'} of every level, with a row for each task.

    Returns:
        For each level an array (tasks, nodes) whose rows sum to 1.
    """
    found: list[np.ndarray] = []
    for assignment in assignments:
        found.append(assignment[:, 0] if not found else np.einsum("nk,nkl->nl", found[-1], assignment))
    return tuple(found)


def agreements(run: Run, drawn: Sequence[DrawnPart], family: np.ndarray, shares: Sequence[np.ndarray]) -> Agreements:
    """Measure the agreement of nodes with families and shapes, from each task's share in the nodes of a level."""
    names = run.config.source.family_names
    known = family if len(np.unique(family)) > 1 else None
    shapes = shapes_of(run.config.source, drawn)
    below = shares[:-1]
    levels = [agreement(one, known, shapes) for one in below]
    if known is None:
        return Agreements(levels)
    groups = run.config.learner.cluster_groups(run.meta, len(np.unique(family)))
    merged = None if groups is None else agreement(shares[0] @ groups, known, shapes)
    parents: dict[str, list[str]] = {}
    for one in np.unique(family) if len(below) > 1 else ():
        strongest = int(below[1][family == one].mean(0).argmax())
        parents.setdefault(node_name(1, strongest, len(shares)), []).append(names[one])
    return Agreements(levels, merged, parents or None)


def agreement(share: np.ndarray, family: np.ndarray | None, shapes: np.ndarray | None) -> LevelAgreement:
    """Agreement of a level's strongest nodes."""
    from sklearn.metrics import normalized_mutual_info_score

    strongest = share.argmax(1)
    nmi = [None if one is None else float(normalized_mutual_info_score(one, strongest)) for one in (family, shapes)]
    return LevelAgreement(share.shape[1], *nmi)


def shapes_of(source: Source, drawn: Sequence[DrawnPart]) -> np.ndarray | None:
    """The shape class of each task's true function; None if it is unknown or not a curve with one output."""
    if source.spec.x_shape != (1,) or source.spec.y_dim != 1 or source.schema is not None:
        return None
    first = drawn[0]
    x = np.concatenate([np.ravel(map_drawn(inputs_of, one.tasks, one.keys[:SCALE_TASKS])) for one in drawn])
    grid = jnp.linspace(x.min(), x.max(), CURVE_POINTS, dtype=jnp.float32)[:, None]
    if source.curve(first.keys[0], grid) is None:
        return None
    fn = eqx.Partial(curve_of, source, grid)
    curves = [map_drawn(fn, one.tasks, one.keys, one.keys) for one in drawn]
    return shape_classes(np.concatenate(curves)[:, :, 0])


def inputs_of(task: Task) -> Float[Array, "n d"]:
    """For `outer.map_drawn`: the inputs of the query set."""
    return task.query.x


def curve_of(source: Source, grid: Float[Array, "n 1"], task: Task, key: PRNGKeyArray) -> Float[Array, "n 1"]:
    """For `outer.map_drawn`: the task's true function on a grid."""
    del task
    curve = source.curve(key, grid)
    assert curve is not None
    return curve


def node_name(level: int, cluster: int, num_levels: int) -> str:
    """Return the name of a node: C1, C2, ... at the first level, D1, ... at the second; the last is the root.

    Args:
        level: Index of the level, from 0.
        cluster: Index of the node within its level.
        num_levels: Number of levels.

    Returns:
        The name.
    """
    return "root" if level == num_levels - 1 else f"{chr(ord('C') + level)}{cluster + 1}"

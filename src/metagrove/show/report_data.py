"""What a report tells of a run: its test tasks, one by one, the clusters they fall in, and how rivals do on them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from metagrove.errors import InputError
from metagrove.learner import Learner, Meta
from metagrove.losses import Metric, metric_of
from metagrove.outer import over_tasks
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.run import Run, draws_of
from metagrove.show.figures import adapt
from metagrove.sources.source import TaskDraw
from metagrove.task import Task
from metagrove.train.scores import Scores, clustering, in_batches, test_parts


@dataclasses.dataclass(frozen=True)
class Case:
    """A test task: what it is called, and what draws it."""

    name: str
    family: int
    part: TaskDraw
    key: PRNGKeyArray


@dataclasses.dataclass(frozen=True)
class Look:
    """A run on test tasks, a row each. `assignments` is p^{k→k'} of every level, empty without clusters."""

    scores: np.ndarray
    family: np.ndarray
    embeddings: np.ndarray | None
    assignments: tuple[np.ndarray, ...]
    cases: tuple[Case, ...]
    metric: Metric

    @property
    def shares(self) -> tuple[np.ndarray, ...]:
        """Of every level how far each task is in each cluster: s^1 = p^{0→·}, s^{l+1} = Σ_k s^l_k p^{k→·}."""
        found = []
        for assignment in self.assignments:
            found.append(assignment[:, 0] if not found else np.einsum("nk,nkl->nl", found[-1], assignment))
        return tuple(found)

    @property
    def flows(self) -> tuple[np.ndarray, ...]:
        """Between one level and the next: the mean of s^l_k p^{k→k'} over tasks."""
        pairs = zip(self.shares, self.assignments[1:], strict=False)
        return tuple(np.einsum("nk,nkl->kl", share, assignment) / len(share) for share, assignment in pairs)

    @property
    def agreement(self) -> dict[str, Any] | None:
        """How far clusters and families agree, where there are several of both."""
        if not self.assignments or self.shares[0].shape[1] < 2 or len(np.unique(self.family)) < 2:
            return None
        return clustering(Scores(self.scores[:, None], self.family, self.shares[0]))

    def best_first(self) -> np.ndarray:
        """Numbers of the tasks; a score that is not finite is the worst."""
        badness = -self.scores if self.metric.higher_is_better else self.scores
        return np.argsort(np.where(np.isfinite(badness), badness, np.inf), kind="stable")


def look(run: Run, *, num_tasks: int, seed: int) -> Look:
    """Adapt to the test tasks that `Run.scores` has, and keep what there is to see.

    Of a source that draws the same tasks again, a row is the mean over a task's draws, and its case one of them.
    """
    source = run.config.source
    parts = test_parts(source, seed)
    sizes = draws_of(num_tasks, len(parts), again=source.repeats_tasks)
    if min(sizes) < 2:
        raise InputError(f"--tasks must be at least {2 * len(parts)} for this run, got {num_tasks}")
    found = [_look_at(run, part, key, size) for (part, key), size in zip(parts, sizes, strict=True)]
    shown = [[middling(each[0])] if source.repeats_tasks else range(n) for each, n in zip(found, sizes, strict=True)]
    keys = [(part, jax.random.fold_in(key, i)) for (part, key), some in zip(parts, shown, strict=True) for i in some]
    found = [mean_draw(each) for each in found] if source.repeats_tasks else found
    scores, family, embeddings, assignments = jax.tree.map(joined, *found)
    names = called(family, source)
    cases = [Case(name, int(f), *key) for name, f, key in zip(names, family, keys, strict=True)]
    metric = metric_of(run.config.learner.loss)
    return Look(scores, family, embeddings, assignments, tuple(cases), metric)


def joined(*parts: np.ndarray) -> np.ndarray:
    """One after the other, in double precision."""
    together = np.concatenate(parts)
    return together if together.dtype.kind == "i" else together.astype(np.float64)


def middling(scores: np.ndarray) -> int:
    """The draw whose score is nearest to their mean."""
    return int(np.argmin(np.nan_to_num(np.abs(scores - scores.mean()), nan=np.inf)))


def mean_draw(draws: Any) -> Any:
    """Of the draws of one task their means."""
    return jax.tree.map(lambda each: each[:1] if each.dtype.kind == "i" else each.mean(0, keepdims=True), draws)


def _look_at(run: Run, part: TaskDraw, key: PRNGKeyArray, num_tasks: int) -> Any:
    learner, how = run.config.learner, (run.inner_steps, run.config.training.task_chunk_size)
    return in_batches(lambda start, size: _look_batch(learner, run.meta, part, key, start, size, *how), num_tasks)


@eqx.filter_jit
def _look_batch(
    learner: Learner,
    meta: Meta,
    tasks: TaskDraw,
    key: PRNGKeyArray,
    start: Array,
    size: int,
    steps: int,
    task_chunk_size: int,
):
    score = metric_of(learner.loss).score

    def one(index: Array):
        task = tasks.sample(jax.random.fold_in(key, index))
        predictor, info = learner.adapt(meta, task.support, steps=steps)
        last = score(predictor(task.query.x, task.query.mask), task.query.y, task.query.mask)
        return last, task.family, info.task_embedding, info.assignments

    return over_tasks(one, start + jnp.arange(size), task_chunk_size=task_chunk_size)


def called(family: np.ndarray, source: Any) -> list[str]:
    """Tasks' own names, or without them numbers in their family: line 1, line 2."""
    if source.repeats_tasks and hasattr(source, "task_names"):
        return list(source.task_names("test"))
    so_far = np.zeros(len(source.family_names), int)
    found = []
    for one in family:
        so_far[one] += 1
        found.append(f"{source.family_names[one]} {so_far[one]}")
    return found


@dataclasses.dataclass(frozen=True)
class Fit:
    """A task, and what the run and those beside it make of it."""

    case: Case
    score: float
    task: Task
    adapted: FittedTask
    others: tuple[FittedTask, ...] = ()


def fit(run: Run, seen: Look, index: int, others: Sequence[Run] = ()) -> Fit:
    """The run adapted to a task again, to be drawn."""
    case = seen.cases[index]
    task = _sample(case.part, case.key)
    beside = tuple(adapt(other, task) for other in others)
    return Fit(case, float(seen.scores[index]), task, adapt(run, task), beside)


@eqx.filter_jit
def _sample(tasks: TaskDraw, key: PRNGKeyArray) -> Task:
    return tasks.sample(key)


def typical(seen: Look, level: int, cluster: int, count: int) -> list[int]:
    """Of the tasks that are in a cluster more than in others, those nearest to their mean embedding.

    Of a cluster that holds most of none, the tasks with the largest share.
    """
    share = seen.shares[level]
    members = np.flatnonzero(share.argmax(1) == cluster)
    if members.size == 0 or seen.embeddings is None:
        return np.argsort(-share[:, cluster], kind="stable")[:count].tolist()
    own = seen.embeddings[members]
    far = np.square(own - own.mean(0, keepdims=True)).sum(1)
    return members[np.argsort(far, kind="stable")[:count]].tolist()


def spread_out(seen: Look, count: int) -> list[int]:
    """The first tasks of each family, as evenly as `count` allows, those alike in their clusters together."""
    families = np.unique(seen.family)
    each = max(1, count // len(families))
    chosen = [i for f in families[:count] for i in np.flatnonzero(seen.family == f)[:each].tolist()]
    share = seen.shares[0]
    return sorted(chosen, key=lambda i: (seen.family[i], share[i].argmax(), -share[i].max(), i))

"""Data of a report: the scores, embeddings and assignments of a run on test tasks."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from metagrove.errors import InputError
from metagrove.evaluation.agreement import level_shares
from metagrove.learner import Info, Predictor
from metagrove.losses import LossFn, Metric, metric_of
from metagrove.outer import probe, task_keys
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.run import Run, draws_of
from metagrove.show.figures import adapt
from metagrove.sources.source import Source, TaskDraw
from metagrove.task import Task
from metagrove.training.scores import Clustering, Scores, clustering, test_parts


@dataclasses.dataclass(frozen=True)
class Case:
    """A test task: its name, and the key with which it is drawn."""

    name: str
    family: int
    part: TaskDraw
    key: PRNGKeyArray


@dataclasses.dataclass(frozen=True)
class TaskResults:
    """A run on test tasks, one row per task; `assignments` is p^{k→k'} of every level, empty without clusters."""

    scores: np.ndarray
    family: np.ndarray
    embeddings: np.ndarray | None
    assignments: tuple[np.ndarray, ...]
    cases: tuple[Case, ...]
    metric: Metric

    @property
    def shares(self) -> tuple[np.ndarray, ...]:
        """Share of each task in each cluster of every level: s^1 = p^{0→·}, s^{l+1} = Σ_k s^l_k p^{k→·}."""
        return level_shares(self.assignments)

    @property
    def flows(self) -> tuple[np.ndarray, ...]:
        """Mean of s^l_k p^{k→k'} over tasks, between each level and the next."""
        pairs = zip(self.shares, self.assignments[1:], strict=False)
        return tuple(np.einsum("nk,nkl->kl", share, assignment) / len(share) for share, assignment in pairs)

    @property
    def agreement(self) -> Clustering | None:
        """Agreement of clusters and families, if there are several of both."""
        if not self.assignments or self.shares[0].shape[1] < 2 or len(np.unique(self.family)) < 2:
            return None
        return clustering(Scores(self.scores[:, None], self.family, self.shares[0]))

    def best_first(self) -> np.ndarray:
        """Return the indices of the tasks, best first; scores that are not finite come last."""
        badness = -self.scores if self.metric.higher_is_better else self.scores
        return np.argsort(np.where(np.isfinite(badness), badness, np.inf), kind="stable")


def collect_results(run: Run, *, num_tasks: int, seed: int) -> TaskResults:
    """Adapt to the test tasks of `Run.scores` and collect their scores, embeddings and assignments.

    For a source that repeats tasks, a row is the mean over the draws of a task, and its case is one of them.
    """
    source = run.config.source
    parts = test_parts(source, seed)
    sizes = draws_of(num_tasks, len(parts), again=source.repeats_tasks)
    if min(sizes) < 2:
        raise InputError(f"--num-tasks must be at least {2 * len(parts)} for this run, got {num_tasks}")
    found = [_results_of(run, part, key, size) for (part, key), size in zip(parts, sizes, strict=True)]
    shown = [
        [closest_to_mean(each[0])] if source.repeats_tasks else range(n) for each, n in zip(found, sizes, strict=True)
    ]
    keys = [(part, jax.random.fold_in(key, i)) for (part, key), some in zip(parts, shown, strict=True) for i in some]
    found = [mean_draw(each) for each in found] if source.repeats_tasks else found
    scores, family, embeddings, assignments = jax.tree.map(joined, *found)
    names = task_names(family, source)
    cases = [Case(name, int(f), *key) for name, f, key in zip(names, family, keys, strict=True)]
    metric = metric_of(run.config.learner.loss)
    return TaskResults(scores, family, embeddings, assignments, tuple(cases), metric)


def joined(*parts: np.ndarray) -> np.ndarray:
    """Concatenate arrays, in double precision."""
    together = np.concatenate(parts)
    return together if together.dtype.kind == "i" else together.astype(np.float64)


def closest_to_mean(scores: np.ndarray) -> int:
    """Return the index of the draw whose score is closest to the mean."""
    return int(np.argmin(np.nan_to_num(np.abs(scores - scores.mean()), nan=np.inf)))


def mean_draw(draws: Any) -> Any:
    """Average the draws of one task."""
    return jax.tree.map(lambda each: each[:1] if each.dtype.kind == "i" else each.mean(0, keepdims=True), draws)


def _results_of(run: Run, part: TaskDraw, key: PRNGKeyArray, num_tasks: int) -> Any:
    learner, keep = run.config.learner, KeepResults(metric_of(run.config.learner.loss).score)
    keys, size = task_keys(key, num_tasks), run.config.training.task_chunk_size
    return probe(learner, run.meta, part, keys, keep, steps=run.inner_steps, task_chunk_size=size)


@dataclasses.dataclass(frozen=True)
class KeepResults:
    """Callback for `outer.probe` that returns the score, family, embedding and assignments of a task."""

    score: LossFn

    def __call__(self, task: Task, predictor: Predictor, info: Info) -> tuple[Any, ...]:
        last = self.score(predictor(task.query.x, task.query.mask), task.query.y, task.query.mask)
        return last, task.family, info.task_embedding, info.assignments


def task_names(family: np.ndarray, source: Source) -> list[str]:
    """Return the names of tasks, or if they have none, numbers within their family: line 1, line 2."""
    if source.repeats_tasks and (names := source.task_names("test")):
        return list(names)
    so_far = np.zeros(len(source.family_names), int)
    found = []
    for one in family:
        so_far[one] += 1
        found.append(f"{source.family_names[one]} {so_far[one]}")
    return found


@dataclasses.dataclass(frozen=True)
class Fit:
    """A task, and the fits of the run and of the runs it is compared with."""

    case: Case
    score: float
    task: Task
    adapted: FittedTask
    others: tuple[FittedTask, ...] = ()


def fit(run: Run, results: TaskResults, index: int, others: Sequence[Run] = ()) -> Fit:
    """Adapt the runs to a task again, for a drawing."""
    case = results.cases[index]
    task = _sample(case.part, case.key)
    beside = tuple(adapt(other, task) for other in others)
    return Fit(case, float(results.scores[index]), task, adapt(run, task), beside)


@eqx.filter_jit
def _sample(tasks: TaskDraw, key: PRNGKeyArray) -> Task:
    return tasks.sample(key)


def typical(results: TaskResults, level: int, cluster: int, count: int, without: Collection[int] = ()) -> list[int]:
    """Return the members of a cluster that are closest to their mean embedding, of the half with the largest shares.

    Args:
        results: The run on test tasks.
        level: Level of the cluster, from 0.
        cluster: Index of the cluster.
        count: Most tasks to return.
        without: Tasks that are typical of another node already.

    Returns:
        Indices of tasks whose largest share is in this cluster; empty if there is none.
    """
    share = results.shares[level]
    members = np.array([i for i in np.flatnonzero(share.argmax(1) == cluster) if i not in without], int)
    if members.size == 0:
        return []
    if results.embeddings is None:
        return members[np.argsort(-share[members, cluster], kind="stable")[:count]].tolist()
    members = members[share[members, cluster] >= np.median(share[members, cluster])]  # members with the largest shares
    own = results.embeddings[members]
    far = np.square(own - own.mean(0, keepdims=True)).sum(1)
    return members[np.argsort(far, kind="stable")[:count]].tolist()


def spread_out(results: TaskResults, count: int) -> list[int]:
    """Choose the first tasks of each family, as evenly as `count` allows, sorted by their strongest cluster."""
    families = np.unique(results.family)
    each = max(1, count // len(families))
    chosen = [i for f in families[:count] for i in np.flatnonzero(results.family == f)[:each].tolist()]
    share = results.shares[0]
    return sorted(chosen, key=lambda i: (results.family[i], share[i].argmax(), -share[i].max(), i))

"""Candidates for serving: the run, other trained learners and fitted baselines, and their predictions for draws."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from metagrove import files
from metagrove.baselines.blend import Blend, BlendMeta, blend_weights, blending_helps
from metagrove.baselines.data import Data, Draws, Rows, task_accuracies, task_losses
from metagrove.baselines.fit import Entry, baselines_for
from metagrove.config.config import Config
from metagrove.errors import MetagroveError
from metagrove.learner import Learner, Meta
from metagrove.outer import over_tasks
from metagrove.serve.run import Run, load
from metagrove.serve.served import FAILED, baseline_folder, save_fitted_run
from metagrove.task import Examples
from metagrove.training.loop import train

__all__ = ["Candidate", "Entry", "TaskScores", "predict_draws", "score_draws"]

Note = Callable[[str], None]
CHUNK = 64
"""Tasks in one compiled call."""
COMMAND = "metagrove baselines"
LABELS = {"hsml": "HSML", "maml": "MAML", "grove": "Grove", "blend": "blend"}
STOPPED = "stopped"
"""In place of an error, if the user interrupted the training."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A learner that may be served, or the reason why there is none."""

    name: str
    label: str
    run: Run | None
    variant: str = ""
    """Settings selected on validation tasks."""
    seconds: float = float("nan")
    error: str = ""


@dataclasses.dataclass(frozen=True)
class TaskScores:
    """Scores of each task, the mean over its draws."""

    loss: np.ndarray
    """Squared error, or log loss."""
    accuracy: np.ndarray | None = None
    """Of a classifier, in percent."""

    def by_metric(self) -> np.ndarray:
        """Scores by the metric of the run."""
        return self.loss if self.accuracy is None else self.accuracy


def label_of(name: str, *, classifies: bool = False) -> str:
    """Display name of a learner or baseline."""
    known = baselines_for(classifies=classifies)
    return known[name].label if name in known else LABELS.get(name, name)


def trained(run: Run, configs: Mapping[str, Config], note: Note) -> Iterator[Candidate]:
    """Train other learners on the same tasks, or load them; a failure is recorded and not repeated."""
    for name, config in configs.items():
        folder = baseline_folder(run.folder, name)
        if (folder / FAILED).exists():
            yield failed(folder, label_of(name))
            continue
        note(f"training {label_of(name)} for comparison")
        try:
            finished = train(config, folder, resume=(folder / "run.json").exists(), command=COMMAND)
        except MetagroveError as error:
            write_failed(folder, str(error))
            yield failed(folder, label_of(name))
            continue
        if not finished:
            yield Candidate(name, label_of(name), None, error=STOPPED)
            return
        yield Candidate(name, label_of(name), load(folder, source=config.source), seconds=seconds_of(folder))


def fitted(run: Run, data: Data, note: Note) -> Iterator[Candidate]:
    """Fit every baseline, or load it; a failure is recorded and not repeated."""
    for name, entry in baselines_for(classifies=data.classifies).items():
        folder = baseline_folder(run.folder, name)
        if not (folder / "run.json").exists() and not (folder / FAILED).exists():
            note(f"fitting {entry.label}")
            began = time.monotonic()
            try:
                found = entry.fit(data)
            except (MetagroveError, ValueError, np.linalg.LinAlgError) as error:
                write_failed(folder, str(error))
            else:
                how = {"seconds": time.monotonic() - began, "command": COMMAND, "variant": found.variant}
                save_fitted_run(folder, run.config.source, found.learner, found.meta, **how)
        if (folder / FAILED).exists():
            yield failed(folder, entry.label)
            continue
        fit = load(folder, source=run.config.source)
        yield Candidate(name, entry.label, fit, fit.about.get("variant", ""), seconds_of(folder))


def write_failed(folder: Path, error: str) -> None:
    """Record that a baseline failed, so that it is not tried again."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / FAILED, {"format": files.FORMAT, "error": error})


def failed(folder: Path, label: str) -> Candidate:
    """A baseline that could not be fitted."""
    return Candidate(folder.name, label, None, error=str(files.read_json(folder / FAILED).get("error")))


def seconds_of(folder: Path) -> float:
    """Time of training or fitting."""
    last = folder / "last.json"
    seconds = files.read_json(last if last.exists() else folder / "best.json").get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else float("nan")


def blended(
    run: Run, found: Mapping[str, Run], predictions: Mapping[str, np.ndarray], validation: Draws
) -> Candidate | None:
    """The blend of candidates with the least loss on validation tasks; None if it is no better than a single one."""
    _, query = validation.joined()
    weights = blend_weights(predictions, query, classifies=run.classifies)
    task = np.repeat(np.arange(len(validation.family)), validation.support.mask.shape[1])
    if len(weights) < 2 or not blending_helps(predictions, query, task, classifies=run.classifies):
        return None
    members = [found[name] for name in weights]
    learner = Blend(
        loss=run.config.learner.loss,
        members=tuple(one.config.learner for one in members),
        steps=tuple(one.inner_steps for one in members),
    )
    meta = BlendMeta(tuple(one.meta for one in members), jnp.asarray(list(weights.values()), float))
    words = ", ".join(f"{label_of(n, classifies=run.classifies)} {100 * w:.0f} %" for n, w in weights.items())
    folder = baseline_folder(run.folder, "blend")
    save_fitted_run(folder, run.config.source, learner, meta, seconds=0.0, command=COMMAND, variant=words)
    return Candidate("blend", "blend", load(folder, source=run.config.source), words, 0.0)


def predict_draws(run: Run, draws: Draws) -> np.ndarray:
    """Return the predictions of a run for the query rows of drawn tasks, shape (tasks * draws, n, y)."""
    support, query = draws.joined()
    count = len(support.x)
    found = []
    for start in range(0, count, CHUNK):
        chosen = np.minimum(np.arange(start, start + CHUNK), count - 1)
        rows = Examples(*(jnp.asarray(part[chosen]) for part in single(support)))
        x, mask = (jnp.asarray(part[chosen]) for part in (query.x.astype(np.float32), query.mask))
        found.append(np.asarray(_predict(run.config.learner, run.meta, run.inner_steps, rows, x, mask)))
    return np.concatenate(found)[:count].astype(np.float64)


def single(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in single precision."""
    return rows.x.astype(np.float32), rows.y.astype(np.float32), rows.mask


@eqx.filter_jit
def _predict(learner: Learner, meta: Meta, steps: int, support: Examples, x: Array, mask: Array) -> Array:
    def one(support: Examples, x: Array, mask: Array) -> Array:
        return learner.adapt(meta, support, steps=steps)[0](x, mask)

    return over_tasks(one, support, x, mask)


def score_draws(prediction: np.ndarray, draws: Draws, *, classifies: bool) -> TaskScores:
    """Scores of each task, averaged over its draws."""
    _, query = draws.joined()
    shape = draws.support.mask.shape[:2]

    def by_task(values: np.ndarray) -> np.ndarray:
        return values.reshape(shape).mean(1)

    accuracy = by_task(task_accuracies(prediction, query)) if classifies else None
    return TaskScores(by_task(task_losses(prediction, query, classifies=classifies)), accuracy)

"""Baselines of a run: MAML and scikit-learn models on the same test tasks, with paired differences.

baselines.json in the run folder holds {"metric", "num_tasks", "num_draws", "seed", "rows", "best", "advice"}; the first
row is the run itself. A row has {"name", "label", "variant", "value", "value_ci95", "by_family": {family: {"value",
"value_ci95"}}, "minus_run": {"difference", "ci95", "by_family"} (none for the run), "seconds", "folder" (of a run)}.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from metagrove import files
from metagrove.config.config import Config
from metagrove.evaluate.sklearn_models import BASELINES, best_model, draw_tasks, score
from metagrove.evaluate.summaries import learner_name
from metagrove.losses import best_of
from metagrove.serve.run import Run, load
from metagrove.sources.tables import Tables
from metagrove.train.loop import train
from metagrove.train.scores import ci95, paired_difference

FILE = "baselines.json"
CHOICE_DRAWS = 2
"""Draws of each validation task on which the settings of a baseline are selected; few, since each needs a fit."""
LABELS = {"hsml": "HSML", "maml": "MAML"}
Note = Callable[[str], None]


def measure(run: Run, rivals: dict[str, Config], *, num_draws: int, seed: int, note: Note) -> dict[str, Any] | None:
    """Train the rivals, fit the baselines, score all on the test tasks and write baselines.json.

    Returns:
        The content of baselines.json, or None if training was interrupted.
    """
    source = run.config.source
    assert isinstance(source, Tables)
    scored: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    scored[learner_name(run)] = (own_scores(run, num_draws, seed), {"seconds": seconds_of(run)})
    for name, config in rivals.items():
        note(f"training {label_of(name)} for comparison")
        rival = train_or_resume(config, run.folder / "baselines" / name)
        if rival is None:
            return None
        details = {"seconds": seconds_of(rival), "folder": f"baselines/{name}"}
        scored[name] = (own_scores(rival, num_draws, seed), details)
    tasks = draw_tasks(source, "test", num_draws=num_draws, seed=seed)
    validation = draw_tasks(source, "validation", num_draws=min(num_draws, CHOICE_DRAWS), seed=seed)
    for name, baseline in BASELINES.items():
        note(f"fitting {baseline.label}")
        began = time.monotonic()
        variant, predict = best_model(source, baseline, validation)
        values = score(source, tasks, predict)
        scored[name] = (values, {"variant": variant, "seconds": time.monotonic() - began})
    result = make_result(scored, tasks.family, source.family_names, metric=run.metric)
    result |= {"num_draws": num_draws, "seed": seed}
    files.write_json(run.folder / FILE, {"format": files.FORMAT, **nan_to_none(result)})
    return result


def read_baselines(folder: Path) -> dict[str, Any] | None:
    """Read the baselines of a run, or return None if it has none."""
    return files.read_json(folder / FILE) if (folder / FILE).exists() else None


def own_scores(run: Run, num_draws: int, seed: int) -> np.ndarray:
    """Compute the mean score of each test task."""
    source = run.config.source
    num_tasks = num_draws * len(source.test_parts())
    return run.scores(num_tasks=num_tasks, seed=seed, steps=run.inner_steps, every_step=False).by_step[:, -1]


def seconds_of(run: Run) -> float:
    """Return the training time of a run in seconds."""
    return float(files.read_json(run.folder / "last.json")["seconds"])


def train_or_resume(config: Config, folder: Path) -> Run | None:
    """Train the run of a rival, resuming it if it exists; return None if training was interrupted."""
    there = (folder / "run.json").exists()
    return load(folder) if train(config, folder, resume=there, command="metagrove train own --baselines") else None


def nan_to_none(data: Any) -> Any:
    """Replace NaN by None in JSON data, e.g. the confidence interval of a single task."""
    if isinstance(data, dict):
        return {key: nan_to_none(value) for key, value in data.items()}
    if isinstance(data, list):
        return [nan_to_none(value) for value in data]
    return None if isinstance(data, float) and math.isnan(data) else data


def label_of(name: str) -> str:
    """Return the display name of a row."""
    return BASELINES[name].label if name in BASELINES else LABELS.get(name, name)


def make_result(
    scored: dict[str, tuple[np.ndarray, dict[str, Any]]], family: np.ndarray, families: tuple[str, ...], *, metric: str
) -> dict[str, Any]:
    """Make the content of baselines.json; the first row is the run itself."""
    (run_scores, _), *_ = scored.values()
    parts = {name: family == i for i, name in enumerate(families) if (family == i).any()}
    rows = []
    for name, (values, details) in scored.items():
        by_family = {part: mean_and_ci(values[chosen]) for part, chosen in parts.items()}
        row = {"name": name, "label": label_of(name), "variant": "", **details, **mean_and_ci(values)}
        row["by_family"] = by_family
        if values is not run_scores:
            each = {part: paired_difference(values[chosen], run_scores[chosen]) for part, chosen in parts.items()}
            row["minus_run"] = {**paired_difference(values, run_scores), "by_family": each}
        rows.append(row)
    best = best_of(rows, lambda row: row["value"], metric)
    of_best = paired_difference(run_scores, scored[best["name"]][0])
    return {
        "metric": metric,
        "num_tasks": len(family),
        "rows": rows,
        "best": best["name"],
        "advice": advice(rows, best, of_best, metric),
    }


def mean_and_ci(values: np.ndarray) -> dict[str, float]:
    """Compute the mean over tasks and its 95 % confidence interval."""
    return {"value": float(values.mean()), "value_ci95": float(ci95(values))}


def advice(rows: list[dict[str, Any]], best: dict[str, Any], to_best: dict[str, float], metric: str) -> str:
    """Recommend in one sentence which model to use."""
    run = rows[0]
    scores = f"{metric} {best['value']:.3g}"
    if best is run:
        next_best = best_of(rows[1:], lambda row: row["value"], metric)
        gap = next_best["minus_run"]
        lead = f"Use {run['label']}: it is best ({scores})"
        if abs(gap["difference"]) > gap["ci95"]:
            return f"{lead}; next is {next_best['label']}, {gap['difference']:+.3g} ± {gap['ci95']:.2g}."
        return f"{lead}, though {next_best['label']} may be as good ({gap['difference']:+.3g} ± {gap['ci95']:.2g})."
    gap = f"{to_best['difference']:+.3g} ± {to_best['ci95']:.2g}"
    if abs(to_best["difference"]) > to_best["ci95"]:
        return f"Use {best['label']}: it is best ({scores}), and {run['label']} is behind by {gap}."
    return f"{best['label']} is best ({scores}), and {run['label']} may be as good ({gap}): use the simpler one."

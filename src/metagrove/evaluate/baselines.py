"""The yardsticks beside a run: MAML and scikit-learn's models on the same test tasks, with paired differences.

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
from metagrove.evaluate.sklearn_models import YARDSTICKS, best_model, draw_tasks, score
from metagrove.evaluate.summaries import learner_name
from metagrove.losses import best_of
from metagrove.serve.run import Run, load
from metagrove.sources.tables import Tables
from metagrove.train.loop import train
from metagrove.train.scores import ci95, paired_difference

FILE = "baselines.json"
CHOICE_DRAWS = 2
"""Draws of each validation task by which a yardstick's settings are chosen: a fit for each task takes its time."""
LABELS = {"hsml": "HSML", "maml": "MAML"}
Note = Callable[[str], None]


def measure(run: Run, rivals: dict[str, Config], *, num_draws: int, seed: int, note: Note) -> dict[str, Any] | None:
    """Train the rivals, fit the yardsticks, score all on the test tasks, write baselines.json; None if stopped."""
    source = run.config.source
    assert isinstance(source, Tables)
    scored: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    scored[learner_name(run)] = (own_scores(run, num_draws, seed), {"seconds": seconds_of(run)})
    for name, config in rivals.items():
        note(f"training {label_of(name)} beside it")
        rival = trained(config, run.folder / "baselines" / name)
        if rival is None:
            return None
        told = {"seconds": seconds_of(rival), "folder": f"baselines/{name}"}
        scored[name] = (own_scores(rival, num_draws, seed), told)
    tasks = draw_tasks(source, "test", num_draws=num_draws, seed=seed)
    validation = draw_tasks(source, "validation", num_draws=min(num_draws, CHOICE_DRAWS), seed=seed)
    for name, yardstick in YARDSTICKS.items():
        note(f"fitting {yardstick.label}")
        began = time.monotonic()
        variant, predict = best_model(source, yardstick, validation)
        values = score(source, tasks, predict)
        scored[name] = (values, {"variant": variant, "seconds": time.monotonic() - began})
    result = tabled(scored, tasks.family, source.family_names, metric=run.metric)
    result |= {"num_draws": num_draws, "seed": seed}
    files.write_json(run.folder / FILE, {"format": files.FORMAT, **known(result)})
    return result


def read_baselines(folder: Path) -> dict[str, Any] | None:
    """What was measured beside a run, if anything."""
    return files.read_json(folder / FILE) if (folder / FILE).exists() else None


def own_scores(run: Run, num_draws: int, seed: int) -> np.ndarray:
    """Each test task's mean score."""
    source = run.config.source
    num_tasks = num_draws * len(source.test_parts())
    return run.scores(num_tasks=num_tasks, seed=seed, steps=run.inner_steps, every_step=False).by_step[:, -1]


def seconds_of(run: Run) -> float:
    """How long the run trained."""
    return float(files.read_json(run.folder / "last.json")["seconds"])


def trained(config: Config, folder: Path) -> Run | None:
    """A rival's run, going on with it if it is there; None if a person stopped it."""
    there = (folder / "run.json").exists()
    return load(folder) if train(config, folder, resume=there, command="metagrove train own --baselines") else None


def known(data: Any) -> Any:
    """Plain data with None for a number that nobody knows: a single task has no CI."""
    if isinstance(data, dict):
        return {key: known(value) for key, value in data.items()}
    if isinstance(data, list):
        return [known(value) for value in data]
    return None if isinstance(data, float) and math.isnan(data) else data


def label_of(name: str) -> str:
    """A person's word for a row."""
    return YARDSTICKS[name].label if name in YARDSTICKS else LABELS.get(name, name)


def tabled(
    scored: dict[str, tuple[np.ndarray, dict[str, Any]]], family: np.ndarray, families: tuple[str, ...], *, metric: str
) -> dict[str, Any]:
    """Plain data: a row for each, the first one's first."""
    (run_scores, _), *_ = scored.values()
    parts = {name: family == i for i, name in enumerate(families) if (family == i).any()}
    rows = []
    for name, (values, told) in scored.items():
        by_family = {part: stated(values[chosen]) for part, chosen in parts.items()}
        row = {"name": name, "label": label_of(name), "variant": "", **told, **stated(values), "by_family": by_family}
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


def stated(values: np.ndarray) -> dict[str, float]:
    """Mean over tasks, and its CI."""
    return {"value": float(values.mean()), "value_ci95": float(ci95(values))}


def advice(rows: list[dict[str, Any]], best: dict[str, Any], to_best: dict[str, float], metric: str) -> str:
    """Which to use, in a sentence."""
    run = rows[0]
    scores = f"{metric} {best['value']:.3g}"
    if best is run:
        next_best = best_of(rows[1:], lambda row: row["value"], metric)
        gap = next_best["minus_run"]
        lead = f"Use {run['label']}: it does best ({scores})"
        if abs(gap["difference"]) > gap["ci95"]:
            return f"{lead}; next is {next_best['label']}, {gap['difference']:+.3g} ± {gap['ci95']:.2g}."
        return f"{lead}, though {next_best['label']} may be as good ({gap['difference']:+.3g} ± {gap['ci95']:.2g})."
    gap = f"{to_best['difference']:+.3g} ± {to_best['ci95']:.2g}"
    if abs(to_best["difference"]) > to_best["ci95"]:
        return f"Use {best['label']}: it does best ({scores}), and {run['label']} is behind by {gap}."
    return f"{best['label']} does best ({scores}), and {run['label']} may be as good ({gap}): use the simpler one."

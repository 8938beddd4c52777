"""`metagrove reproduce grouped-tables`: all methods on eight real sets of many small groups, five splits of each.

The served method is that of `metagrove train own` with its default settings; other learners, trained with the same net
and budget, and other packages are scored on the same draws. Errors are relative to the mean of the support rows:
√(mean squared error / that of the mean); for classes log loss / that of the support's rate. All test groups have equal
weight.
"""

import dataclasses
import fnmatch
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metagrove import files
from metagrove.baselines.data import baseline_data, draw_tasks
from metagrove.config.presets import default_learner
from metagrove.errors import InputError, shortened
from metagrove.evaluation.baselines import BaselineRow, Baselines, read_baselines
from metagrove.evaluation.candidates import STOPPED, predict_draws, score_draws, trained
from metagrove.evaluation.row_scores import score_rows
from metagrove.files import Json
from metagrove.own.training import NUM_DRAWS, Job, own_config, print_note, run_job
from metagrove.paper.grouped_data import SETS, write_set
from metagrove.paper.grouped_peers import peers_for
from metagrove.serve.run import Run
from metagrove.training.folders import provenance

__all__ = ["NAME", "GroupedBudget", "reproduce_grouped_tables"]

NAME = "grouped-tables"
ABOUT = "all methods on eight real sets of many small groups: which kind of data needs which method"
RUNS = Path("runs") / NAME


@dataclasses.dataclass(frozen=True)
class GroupedBudget:
    """Budget: number of splits, other learners than HSML, and changes to the defaults of `train own`."""

    splits: int
    also: tuple[str, ...]
    settings: Json = dataclasses.field(default_factory=dict)


BUDGETS = {
    "paper": GroupedBudget(5, ("maml",)),
    "small": GroupedBudget(1, ()),
    "quick": GroupedBudget(1, (), {"steps": 100, "validate_every": 50, "validation_tasks": 50}),
}


def reproduce_grouped_tables(*, budget: str = "paper", only: str = "*", train: bool = True, out: Path) -> Json | None:
    """Run the benchmark, resuming it if it was interrupted, and write its result.

    Args:
        budget: "paper", "small" or "quick".
        only: Only the sets, or SET-sSPLIT, whose name matches this pattern; the result has all stored splits.
        train: Train what is missing; otherwise the result has the stored splits only.
        out: Folder of the result file.

    Returns:
        The content of the result file, or None if training was interrupted.
    """
    how = BUDGETS[budget]
    full_name = NAME + ("" if budget == "paper" else f"-{budget}")
    for split, name in ((split, name) for split in range(how.splits) for name in SETS):
        folder = RUNS.parent / full_name / f"{name}-s{split}"
        wanted = any(fnmatch.fnmatchcase(word, only) for word in (name, folder.name))
        if train and wanted and not is_measured(folder, how):
            if measure_split(name, split, folder, how) is None:
                return None
            jax.clear_caches()  # compiled programs of many splits would exceed the system's limit of memory maps
    result = collect(RUNS.parent / full_name, budget)
    out.mkdir(parents=True, exist_ok=True)
    files.write_json(out / f"{full_name}.json", {"format": files.FORMAT, **result})
    return result


def is_measured(folder: Path, how: GroupedBudget) -> bool:
    """Whether a split has a result with all learners of the budget."""
    path = folder / "result.json"
    return path.exists() and set(how.also) <= set(files.read_json(path)["rows"])


def measure_split(name: str, split: int, folder: Path, how: GroupedBudget) -> Json | None:
    """Train and measure everything on one split of one set; None if it was interrupted."""
    began = time.monotonic()
    table = folder.parent / f"{name}.csv"
    write_set(name, table)
    config = own_config(SETS[name].settings(table, split), None, print_note).with_settings(**how.settings)
    resume = (folder / "run.json").exists()
    run = run_job(Job(config, folder, resume=resume, command=f"metagrove reproduce {NAME}"), print_note)
    if run is None or (others := learner_rows(run.alone(), how.also)) is None:
        return None
    measured = read_baselines(folder)
    assert measured is not None
    result = {**rows_of(measured), **others, **peer_rows(run)}
    found = {
        "set": name,
        "split": split,
        "metric": measured.metric,
        "served": measured.served,
        "recommended": measured.recommended,
        "seconds": time.monotonic() - began,
        "certainty": certainty(run),
        "rows": relative(result, classifies=run.classifies),
    }
    files.write_json(folder / "result.json", {"format": files.FORMAT, **found})
    return found


def rows_of(measured: Baselines) -> dict[str, Json]:
    """Losses of the run and its baselines on test and validation tasks."""

    def one(row: BaselineRow) -> Json:
        loss = row.value if row.log_loss is None else row.log_loss
        how = {"variant": row.variant, "seconds": row.seconds, "validation_loss": row.validation_loss}
        return {"error": row.error} if row.error else {"loss": loss, **{k: v for k, v in how.items() if is_given(v)}}

    return {row.name: one(row) for row in measured.rows}


def certainty(run: Run) -> dict[str, float]:
    """Coverage and width of the served method's 90 % intervals, or accuracy and calibration error of its classes."""
    scores = score_rows(run)
    assert scores is not None
    if scores.classes is not None:
        return {"accuracy": scores.classes.accuracy, "calibration_error": scores.classes.calibration_error}
    (target,) = (scores.targets or {}).values()
    assert target.interval is not None
    return {"coverage": target.interval.coverage, "width": target.interval.width, "rmse": target.rmse, "r2": target.r2}


def is_given(value: Any) -> bool:
    """Whether a value is not None, empty or NaN."""
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def learner_rows(run: Run, names: tuple[str, ...]) -> dict[str, Json] | None:
    """Losses of other learners of the same net and budget, which are not served; None if training was interrupted."""
    configs = {name: dataclasses.replace(run.config, learner=default_learner(name, run.config)) for name in names}
    test = draw_tasks(run.config.source, "test", num_draws=NUM_DRAWS, seed=0)
    found: dict[str, Json] = {}
    for one in trained(run, configs, print_note):
        if one.error == STOPPED:
            return None
        if one.run is None:
            found[one.name] = {"error": one.error}
            continue
        scores = score_draws(predict_draws(one.run, test), test, classifies=run.classifies)
        found[one.name] = {"loss": float(scores.loss.mean()), "seconds": one.seconds}
    return found


def peer_rows(run: Run) -> dict[str, Json]:
    """Losses of other packages on the same draws."""
    data = baseline_data(run.config.source, classifies=run.classifies)
    test = draw_tasks(run.config.source, "test", num_draws=NUM_DRAWS, seed=0)
    found: dict[str, Json] = {}
    for name, predict in peers_for(data).items():
        began = time.monotonic()
        try:
            prediction = predict(data, test)
        except Exception as error:  # another package failed: its row has the error
            found[name] = {"error": shortened(f"{type(error).__name__}: {error}", 200)}
            continue
        loss = float(score_draws(prediction, test, classifies=run.classifies).loss.mean())
        found[name] = {"loss": loss, "seconds": time.monotonic() - began}
    return found


def relative(rows: dict[str, Json], *, classifies: bool) -> dict[str, Json]:
    """Add to the rows their error relative to the mean (or rate) of the support rows."""
    base = rows["support-mean"]["loss"]

    def ratio(loss: float) -> float:
        return loss / base if classifies else math.sqrt(loss / base)

    return {name: {**row, "relative": ratio(row["loss"])} if "loss" in row else row for name, row in rows.items()}


def collect(folder: Path, budget: str) -> Json:
    """All stored splits, and the served method's error relative to that of the best method of each set."""
    found = [files.read_json(path) for path in sorted(folder.glob("*-s*/result.json"))]
    if not found:
        raise InputError(f"{folder} holds no results: run without --no-train")
    sets: dict[str, Json] = {}
    for name in (name for name in SETS if any(one["set"] == name for one in found)):
        splits = sorted((one for one in found if one["set"] == name), key=lambda one: one["split"])
        plain = [{key: value for key, value in one.items() if key not in ("format", "set")} for one in splits]
        sets[name] = {"about": SETS[name].about, **summary(plain), "splits": plain}
    command = f"metagrove reproduce {NAME}" + ("" if budget == "paper" else f" --budget {budget}")
    ratios = [one["served_over_best"] for one in sets.values()]
    return {
        "experiment": NAME,
        "about": ABOUT,
        "served_over_best": {"mean": float(np.mean(ratios)), "worst": float(np.max(ratios))},
        "sets": sets,
        "provenance": provenance(command),
    }


def summary(splits: Sequence[Json]) -> Json:
    """Means over splits of the relative errors of each method and of the served one, and its ratio to the best."""
    names = list(dict.fromkeys(name for one in splits for name in one["rows"]))
    means = {
        name: float(np.mean([one["rows"][name]["relative"] for one in splits]))
        for name in names
        if all("relative" in one["rows"].get(name, {}) for one in splits)
    }
    served = float(np.mean([one["rows"][one["served"]]["relative"] for one in splits]))
    best = min(means, key=lambda name: means[name])
    certain = {name: float(np.mean([one["certainty"][name] for one in splits])) for name in splits[0]["certainty"]}
    ratio = served / means[best]
    return {"relative": means, "served": served, "best": best, "served_over_best": ratio, "certainty": certain}

"""Evaluation of an experiment's runs on the same test tasks."""

import dataclasses
import io
import json
import statistics
import sys

import numpy as np

from metagrove import files
from metagrove.evaluation.hierarchy import HierarchyMeasures, measure_hierarchy
from metagrove.evaluation.summaries import stream_summary
from metagrove.learner import num_parameters
from metagrove.paper.experiments import Row
from metagrove.paper.results import DifferenceTo, RowResult, SeedResult
from metagrove.paper.trainings import ExperimentContext, last_of, run_of, search_record
from metagrove.serve.run import Run, load
from metagrove.sources.source import Source
from metagrove.training import folders
from metagrove.training.records import BlockRecord
from metagrove.training.scores import Scores, compare_scores, summarize
from metagrove.training.validate import validate

PAPER_TASKS = 4_000
SHOWN_STEPS = 10
"""Minimum number of inner steps after which a result has scores."""
IMAGE_HIERARCHY_TASKS = 400
"""Maximum number of test tasks on images for the measures of a hierarchy, which adapt twice to each."""


def evaluate_rows(rows: list[Row], context: ExperimentContext) -> list[RowResult]:
    """Evaluate all seeds of all rows; return their scores, mean and std, and the search records."""
    references = References()
    results = []
    for row in rows:
        print(f"evaluating {row.label}", file=sys.stderr)
        seeds = [evaluate_seed(row, seed, context, references) for seed in row.seeds]
        values = [one.evaluation.value for one in seeds]
        result = RowResult(
            label=row.label,
            preset=row.preset,
            paper=row.paper,
            mean_over_seeds=statistics.fmean(values),
            sd_over_seeds=statistics.stdev(values) if len(values) > 1 else None,
            search=search_record(row, context),
            seeds=seeds,
        )
        results.append(result)
    return results


def evaluate_seed(row: Row, seed: int, context: ExperimentContext, references: "References") -> SeedResult:
    """Evaluate one run on many tasks and, as in the paper, on the first 4,000 of them."""
    _, folder, _ = run_of(row, seed, context)
    stored, last, records = files.read_json(folder / "run.json"), last_of(folder), folders.read_metrics(folder)
    run, scores = scored(load(folder), row, context)
    families, step = run.config.source.family_names, run.inner_steps
    by_step, family = scores.by_step[:PAPER_TASKS], scores.family[:PAPER_TASKS]
    few = dataclasses.replace(scores, by_step=by_step, family=family, shares=None)
    return SeedResult(
        seed=seed,
        test_seed=context.experiment.test_seed,
        evaluation=summarize(scores, families, step=step, metric=run.metric),
        evaluation_4000=summarize(few, families, step=step, metric=run.metric),
        median=float(np.median(scores.after(step))),
        paired_difference=references.difference(run, row.label, seed, scores),
        scores=format_scores(scores, run) if context.experiment.keep_scores else None,
        data=run.config.source.checksums or None,
        stream=stream_summary(run, records),
        hierarchy=hierarchy_of(run, context),
        checkpoint=run.about,
        parameters=num_parameters(run.meta),
        meta_steps=last["step"],
        diverged=last["step"] < run.config.training.steps,
        training_seconds=last["seconds"],
        steps_per_second=last.get("steps_per_second"),
        peak_memory_mb=last.get("peak_memory_mb"),
        curve=[(r.step, r.validation.value) for r in records if r.validation is not None],
        final_training=final_training(records, run.config.training.validate_every),
        config=stored["config"],
        provenance=stored["provenance"],
    )


@dataclasses.dataclass(frozen=True)
class Reference:
    """A run with which others are compared."""

    label: str
    scores: Scores
    step: int


@dataclasses.dataclass(frozen=True)
class References:
    """The runs of the first row of each source, by seed."""

    of_source: dict[Source, dict[int, Reference]] = dataclasses.field(default_factory=dict)

    def difference(self, run: Run, label: str, seed: int, scores: Scores) -> DifferenceTo:
        """Compute the paired difference to the first row of the run's source, with the same seed if it has that."""
        by_seed = self.of_source.setdefault(run.config.source.as_at_test(), {})
        first = next(iter(by_seed.values()), None)
        if first is None or first.label == label:
            first = by_seed[seed] = Reference(label, scores, run.inner_steps)
        other = by_seed.get(seed, first)
        paired = compare_scores(scores, run.inner_steps, other.scores, other.step, run.config.source.family_names)
        return DifferenceTo(paired.difference, paired.ci95, paired.by_family, to=other.label)


def format_scores(scores: Scores, run: Run) -> dict[str, str]:
    """Format the score of each test task at the selected number of steps, by family, separated by spaces."""
    values, names = scores.after(run.inner_steps), run.config.source.family_names
    return {name: " ".join(f"{one:.5g}" for one in values[scores.family == i]) for i, name in enumerate(names)}


def final_training(records: list[BlockRecord], last_steps: int) -> dict[str, float]:
    """Compute the mean loss, and accuracy if recorded, of the last meta-steps; a record is the mean of a block.

    Empty for a run that has no meta-steps.
    """
    trained = [record for record in records if "loss" in record.means]  # a stream's step 0 has none
    last = [record for record in trained if record.step > trained[-1].step - last_steps]
    recorded = [name for name in ("loss", "accuracy") if last and all(name in record.means for record in last)]
    return {name: float(np.mean([record.means[name] for record in last])) for name in recorded}


def scored(run: Run, row: Row, context: ExperimentContext) -> tuple[Run, Scores]:
    """Select the number of inner steps at test time and score the run; both are cached in its folder."""
    experiment, num_tasks = context.experiment, min(context.experiment.tasks, context.budget.tasks)
    most = row.max_eval_inner_steps or experiment.max_eval_inner_steps
    identity = f"{run.about['sha256'][:12]}-{experiment.test_seed}-{num_tasks}-{most}"
    path = run.folder / f"scores-{identity}.npz"
    if path.exists():
        with np.load(path) as stored:
            shares = stored.get("shares")
            validation = json.loads(str(stored["validation"]))
            first_step = int(stored["first_step"]) if "first_step" in stored else 0
            scores = Scores(stored["by_step"].astype(np.float64), stored["family"], shares, first_step)
        return dataclasses.replace(run, about={**run.about, "validation": validation}), scores
    run = with_selected_steps(run, most)
    steps = max(run.inner_steps, SHOWN_STEPS) if experiment.every_step else run.inner_steps
    scores = run.scores(num_tasks=num_tasks, seed=experiment.test_seed, steps=steps, every_step=experiment.every_step)
    arrays = {"by_step": scores.by_step.astype(np.float32), "family": scores.family, "first_step": scores.first_step}
    arrays |= {} if scores.shares is None else {"shares": scores.shares}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, validation=json.dumps(run.about["validation"]), **arrays)
    files.write_atomically(path, buffer.getvalue())
    return run, scores


def hierarchy_of(run: Run, context: ExperimentContext) -> HierarchyMeasures | None:
    """Measure whether the clusters matter, on test tasks of the experiment; cached in the folder of the run."""
    num_tasks, test_seed = hierarchy_tasks(run, context), context.experiment.test_seed
    path = run.folder / f"hierarchy-{run.about['sha256'][:12]}-{test_seed}-{num_tasks}-{run.inner_steps}.json"
    if path.exists():
        return files.from_json(HierarchyMeasures, files.read_json(path))
    measures = measure_hierarchy(run, num_tasks=num_tasks, seed=test_seed)
    if measures is not None:
        files.write_json(path, {"format": files.FORMAT, **files.as_json(measures)})
    return measures


def hierarchy_tasks(run: Run, context: ExperimentContext) -> int:
    """Number of test tasks for the measures of a hierarchy."""
    most = IMAGE_HIERARCHY_TASKS if run.config.source.spec.is_image else PAPER_TASKS
    return min(context.experiment.tasks, context.budget.tasks, most)


def with_measures_of_release(row: Row, result: RowResult, context: ExperimentContext) -> RowResult:
    """Add the hierarchy measures of the released model to a row if its earlier result lacks them."""
    lacking = {one.checkpoint["sha256"]: one for one in result.seeds if one.hierarchy is None}
    name = row.release if context.size is None else f"{row.release}-{context.size}"
    if row.release is None or not lacking or name not in folders.shipped():
        return result
    run = load(name)
    seed = lacking.get(run.about["sha256"])
    if seed is None:
        return result
    measures = measure_hierarchy(run, num_tasks=hierarchy_tasks(run, context), seed=context.experiment.test_seed)
    seeds = [dataclasses.replace(one, hierarchy=measures) if one is seed else one for one in result.seeds]
    return dataclasses.replace(result, seeds=seeds)


def with_selected_steps(run: Run, most: int | None) -> Run:
    """Select the number of inner steps at test time from 0 to `most` on validation tasks."""
    if most is None:
        return run
    config = run.config.with_settings(max_eval_inner_steps=most)
    validation = files.as_json(validate(config, run.meta))
    return dataclasses.replace(run, about={**run.about, "validation": validation})

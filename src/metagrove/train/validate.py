"""A look at the validation tasks: what chooses checkpoints, inner steps, settings; test tasks never do."""

from typing import Any

from metagrove.config.config import Config
from metagrove.keys import key_for
from metagrove.learner import Meta
from metagrove.losses import metric_of
from metagrove.sources.stream import Stream
from metagrove.train.scores import Scores, best_step, ci95, clustering, only_families, score_tasks

VALIDATION_SEED = 0
"""The same validation tasks for every run, so that runs can be chosen by them."""


def validation_scores(config: Config, meta: Meta) -> Scores:
    """Every validation task's score after each number of inner steps; of a run that may grow its answers too."""
    training = config.training
    return score_tasks(
        config.learner,
        meta,
        config.source.split("validation"),
        key=key_for("validation", VALIDATION_SEED),
        num_tasks=training.validation_tasks,
        steps=training.max_eval_inner_steps,
        task_chunk_size=training.task_chunk_size,
        answers=training.growth.growth_window > 0,
    )


def validate(config: Config, meta: Meta, step: int | None = None) -> dict[str, Any]:
    """The validation tasks' mean after the best number of inner steps, and that number.

    In a stream the mean is over the families that have come by `step` (the end, if it is not given); each family's own
    mean is told for all of them.
    """
    everything, names = validation_scores(config, meta), config.source.family_names
    seen = everything
    if isinstance(config.source, Stream):
        steps = config.training.steps
        seen = only_families(everything, config.source.arrived(max(0, (steps if step is None else step) - 1), steps))
    chosen = best_step(seen, metric_of(config.learner.loss))
    values, agreement = seen.after(chosen), clustering(seen)
    summary = {"value": float(values.mean()), "ci95": float(ci95(values)), "steps": chosen}
    if len(names) > 1:
        means = {name: everything.after(chosen)[everything.family == i] for i, name in enumerate(names)}
        summary["by_family"] = {name: float(values.mean()) for name, values in means.items() if len(values)}
    if seen.shares is not None and agreement is not None:
        summary |= {"nmi": agreement["nmi"], "shares": [float(share) for share in seen.shares.mean(0)]}
    return summary


def describe(validation: dict[str, Any]) -> str:
    """One validation in words."""
    agreement = f", clusters against families: NMI {validation['nmi']:.2f}" if "nmi" in validation else ""
    return f"{validation['value']:.4f} ± {validation['ci95']:.4f} after {validation['steps']} inner steps{agreement}"

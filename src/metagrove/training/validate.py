"""Validation: it selects checkpoints, inner steps and settings, which test tasks never do."""

from metagrove.config.config import Config
from metagrove.keys import key_for
from metagrove.learner import Meta
from metagrove.losses import metric_of
from metagrove.training.records import ValidationRecord
from metagrove.training.scores import Scores, best_step, ci95, clustering, only_families, score_tasks

VALIDATION_SEED = 0
"""Seed of the validation tasks, the same for every run, so that runs can be compared by them."""


def validation_scores(config: Config, meta: Meta) -> Scores:
    """Every validation task's score after each number of inner steps; for a run that may grow, also predictions."""
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


def validate(config: Config, meta: Meta, step: int | None = None) -> ValidationRecord:
    """The validation tasks' mean after the best number of inner steps, and that number.

    In a stream the mean is over the families that have arrived by `step` (the end, if it is not given); each family's
    own mean is always included.
    """
    everything, names, steps = validation_scores(config, meta), config.source.family_names, config.training.steps
    seen, last = everything, max(0, (steps if step is None else step) - 1)
    if config.source.has_phases:
        seen = only_families(everything, config.source.arrived(last, steps))
    chosen = best_step(seen, metric_of(config.learner.loss))
    values, agreement = seen.after(chosen), clustering(seen)
    means = {name: everything.after(chosen)[everything.family == i] for i, name in enumerate(names)}
    return ValidationRecord(
        value=float(values.mean()),
        ci95=float(ci95(values)),
        steps=chosen,
        by_family={name: float(of.mean()) for name, of in means.items() if len(of)} if len(names) > 1 else None,
        nmi=None if agreement is None or len(names) < 2 else agreement.nmi,
        shares=None if seen.shares is None else [float(share) for share in seen.shares.mean(0)],
    )


def describe(validation: ValidationRecord) -> str:
    """Describe a validation in one line."""
    agreement = "" if validation.nmi is None else f", clusters against families: NMI {validation.nmi:.2f}"
    return f"{validation.value:.4f} ± {validation.ci95:.4f} after {validation.steps} inner steps{agreement}"

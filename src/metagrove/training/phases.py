"""The phase of training that a step belongs to: one before the first meta-step, or the meta-steps themselves.

A learner may be fitted before its first meta-step (`Learner.phases`), and before that its base net may be pretrained
(`training.pretraining`). Steps of such a fit have numbers below 0: a fit of 3,000 steps runs from step -3,000 to step
0, where the meta-steps of the query loss begin. So one number is the progress of a run, and `Training.steps` has the
same meaning for every learner.
"""

import bisect
import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, Int, PRNGKeyArray

from metagrove.config.config import Config, Growth, Training
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta, Phase
from metagrove.sources.source import TaskSchedule
from metagrove.training.pretraining import LOSS, Pretrainer, begin_pretraining


class State(eqx.Module):
    """The state between meta-steps."""

    meta: Meta
    opt_state: optax.OptState
    step: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the training with one loss."""

    learner: Learner
    """The learner, or its replacement in pretraining."""
    phase: Phase
    training: Training
    """The settings of the outer loop in it."""
    begin: int
    end: int
    fits: bool
    """Whether it comes before the first meta-step."""


def fits(learner: Learner, training: Training) -> tuple[Phase, ...]:
    """The phases before the first meta-step: pretraining first, then those of the learner."""
    pretraining = (Phase(training.pretrain_steps, loss=LOSS),) if training.pretrain_steps else ()
    return (*pretraining, *learner.phases())


def fit_ends(learner: Learner, training: Training) -> list[int]:
    """The step at which each phase before the first meta-step ends; the last of them is 0."""
    lengths = [phase.steps for phase in fits(learner, training)]
    return [end - sum(lengths) for end in itertools.accumulate(lengths)]


def first_step(learner: Learner, training: Training) -> int:
    """The number of a run's first step."""
    return -sum(phase.steps for phase in fits(learner, training))


def part_at(learner: Learner, training: Training, step: int) -> Part:
    """The part of the training that a step belongs to."""
    if step < 0:
        ends = fit_ends(learner, training)
        number = bisect.bisect(ends, step)
        phase = fits(learner, training)[number]
        own = Training(task_chunk_size=training.task_chunk_size, schedule="cosine", growth=Growth())
        own = dataclasses.replace(own, meta_batch=training.meta_batch, outer_lr=training.outer_lr, steps=phase.steps)
        trained = Pretrainer(learner=learner) if phase.loss == LOSS else learner
        return Part(trained, phase, with_own(own, phase), ends[number] - phase.steps, ends[number], fits=True)
    if not training.phases:
        return Part(learner, Phase(), training, 0, training.steps, fits=False)
    begins, phase = [0, *training.phase_ends()], training.phase_at(step)
    number = bisect.bisect(begins, step, hi=len(begins) - 1)
    return Part(learner, phase, with_own(training, phase), begins[number - 1], begins[number], fits=False)


def with_own(training: Training, phase: Phase) -> Training:
    """The settings with the phase's own learning rate and meta-batch, where it has them."""
    return dataclasses.replace(
        training,
        outer_lr=phase.outer_lr or training.outer_lr,
        meta_batch=phase.meta_batch or training.meta_batch,
    )


def init_state(config: Config, step: int = 0) -> State:
    """The state at the beginning of the part that `step` belongs to, a function of the seed.

    The states within a part have its structure and shapes.
    """
    return begin_part(config, init_meta(config), step)


def init_meta(config: Config) -> Meta:
    """The initial meta-parameters, drawn in one compiled program, which takes less time than one for each array.

    A user's learner whose `init` depends on the values that it draws cannot be compiled, and is called directly.
    """
    key = key_for("init", config.training.seed)

    def draw(key: PRNGKeyArray) -> Meta:
        return config.learner.init(config.source.spec, key=key)

    if isinstance(key, Tracer):  # only shapes are needed
        return draw(key)
    quickly = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None  # it runs once
    try:
        static = eqx.filter(eqx.filter_eval_shape(draw, key), lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct))
        arrays = jax.jit(lambda key: eqx.filter(draw(key), eqx.is_array), compiler_options=quickly)(key)
    except jax.errors.JAXTypeError:
        return draw(key)
    return eqx.combine(arrays, static)


def begin_part(config: Config, meta: Meta, step: int) -> State:
    """The state with which a part begins, given the meta-parameters so far."""
    part = part_at(config.learner, config.training, step)
    if isinstance(part.learner, Pretrainer):
        key = phase_key(config, part.begin, "begin")
        meta = begin_pretraining(config.learner, meta, config.source, key=key)
    elif part.fits:
        meta = config.learner.begin_phase(part.phase.loss, meta, key=phase_key(config, part.begin, "begin"))
    opt_state = eqx.filter_jit(part.training.optimizer().init)(eqx.filter(meta, eqx.is_inexact_array))
    return State(meta, opt_state, jnp.asarray(step, jnp.int32))


def end_fit(config: Config, state: State, tasks: TaskSchedule) -> tuple[Config, State]:
    """Return the state after a phase before the first meta-step; the learner may have other clusters."""
    step = int(state.step)
    part = part_at(config.learner, config.training, step - 1)
    first = tasks.at(jnp.zeros((), jnp.int32))
    now = (
        first,
        first if config.source.has_phases else config.source.split("validation"),
    )  # of families that have arrived
    key = phase_key(config, part.begin, "end")
    learner, meta = part.learner.end_phase(part.phase.loss, state.meta, *now, key=key)
    config = dataclasses.replace(config, learner=learner)
    return config, begin_part(config, meta, step)


def started(config: Config, tasks: TaskSchedule) -> State:
    """The start of a run after the learner's data-dependent initialisation."""
    meta = init_meta(config)
    now = tasks.at(jnp.zeros((), jnp.int32))
    meta = config.learner.data_dependent_init(meta, now, key=key_for("start", config.training.seed))
    return begin_part(config, meta, first_step(config.learner, config.training))


def phase_key(config: Config, begin: int, moment: str) -> Array:
    """The random key of the begin or the end of a phase before the first meta-step."""
    key = jax.random.fold_in(key_for("start", config.training.seed), 1 - begin)
    return jax.random.fold_in(key, moment == "end")

"""The quantities of the bounds on trained runs, over tasks: `metagrove reproduce theory`."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from metagrove import files
from metagrove.config.config import Config, Training
from metagrove.config.presets import preset
from metagrove.config.settings import replace_settings
from metagrove.hsml.learner import HSML, HSMLMeta
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta
from metagrove.outer import map_drawn, task_keys
from metagrove.paper.theory.convex import PolynomialBase, measure_convex
from metagrove.paper.theory.gates import decompose, variance_share
from metagrove.paper.theory.measure import Measurement, measure
from metagrove.paper.theory.records import ConvexRow, GateRow, TaskRow, TheoryResult
from metagrove.paper.theory.softplus import softplus_rows
from metagrove.paper.theory.summary import SCALE, convex_row, median, summarize
from metagrove.rivals.maml import MAML
from metagrove.serve.run import Run, load
from metagrove.serve.train import default_folder
from metagrove.sources.functions import Functions
from metagrove.training import folders
from metagrove.training.loop import train

KAPPAS, SHOTS, MIDDLE = (10.0, 30.0, 100.0), (5, 10, 20), 30.0
COMMAND = "metagrove reproduce theory"
FRESH = 1000
CONVEX_STEPS = 3000
"""Meta-steps of the runs with a polynomial as base net."""
RELEASED = {"HSML": "toy-5shot", "HSML (ours)": "toy-5shot-best"}
STEPS = {"paper": None, "studies": 20_000, "small": 10_000, "quick": 2_000, "smoke": 20}
"""Meta-steps of MAML, whose run is not a released model; None for those of the paper."""


def theory(out: Path, *, budget: str = "paper") -> TheoryResult:
    """Measure the quantities of section 5 and appendix A, and write results/theory.json.

    Args:
        out: Folder of the result file.
        budget: Determines the meta-steps of MAML and of the convex runs, and the number of tasks.

    Returns:
        The result.
    """
    num_tasks, shots = (4, SHOTS[:1]) if budget == "smoke" else (100, SHOTS)
    images = softplus_rows()
    maml = maml_run(STEPS[budget])
    runs = {f"MAML ({maml.config.training.steps:,} meta-steps)": maml}
    runs |= {name: load(model) for name, model in RELEASED.items()}
    others = [] if budget == "smoke" else [kappa for kappa in KAPPAS if kappa != MIDDLE]
    cells = [(n, MIDDLE) for n in shots] + [(SHOTS[0], kappa) for kappa in others]
    rows = [task_row(name, run, maml, n, kappa, num_tasks) for name, run in runs.items() for n, kappa in cells]
    result = TheoryResult(
        provenance=folders.provenance(COMMAND + ("" if budget == "paper" else f" --budget {budget}")),
        scale=SCALE,
        fresh_points=FRESH,
        rows=rows,
        gates=[gate_row(name, run, num_tasks) for name, run in runs.items() if run.config.learner.clusters],
        convex=convex_rows(min(STEPS[budget] or CONVEX_STEPS, CONVEX_STEPS), shots, num_tasks),
        softplus=images,
    )
    out.mkdir(parents=True, exist_ok=True)
    name = "theory" if budget == "paper" else f"theory-{budget}"
    files.write_json(out / f"{name}.json", {"format": files.FORMAT, **files.as_json(result)})
    return result


def maml_run(steps: int | None) -> Run:
    """MAML on functions, 5 points; trained if the run does not exist."""
    config = preset("toy-5shot", "maml")
    config = config if steps is None else config.with_settings(steps=steps, validate_every=min(steps, 1000))
    folder = default_folder("toy-5shot", config) if steps is None else Path("runs/theory") / f"maml-{steps}"
    train(config, folder, resume=(folder / "run.json").exists(), command=COMMAND)
    return load(folder)


def smooth(learner: Learner, meta: Meta, kappa: float, spec: Any) -> tuple[Learner, Meta]:
    """The learner with softplus(κx)/κ in place of ReLU in its base net, with the same meta-parameters."""
    learner = replace_settings(learner, {"softplus": kappa})
    structure = jax.tree.structure(eqx.filter_eval_shape(learner.init, spec, key=jax.random.key(0)))
    return learner, jax.tree.unflatten(structure, jax.tree.leaves(meta))


def measured(fn: Any, arguments: tuple[Any, ...], shots: int, num_tasks: int) -> Any:
    """`fn` of test tasks with `shots` support points and 1,000 fresh ones, as arrays with a row for each task."""
    tasks = Functions(shots=shots, queries=FRESH).split("test")
    keys = task_keys(key_for("test", 0), num_tasks)
    return map_drawn(eqx.Partial(fn, *arguments), tasks, keys, task_chunk_size=10)


def task_row(name: str, run: Run, maml: Run, shots: int, kappa: float, num_tasks: int) -> TaskRow:
    """Measure one run at one number of points and one κ, and summarise over tasks."""
    spec = run.config.source.spec
    learner, meta = smooth(run.config.learner, run.meta, kappa, spec)
    _, reference = smooth(maml.config.learner, maml.meta, kappa, spec)
    how = Measurement(run.inner_steps, SCALE, FRESH if kappa == MIDDLE else 0)
    found = measured(measure, (learner, meta, reference, how), shots, num_tasks)
    return summarize(name, shots, kappa, run, as_float64(found))


def as_float64(found: Any) -> Any:
    """Measured quantities in double precision."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)


def gate_row(name: str, run: Run, num_tasks: int) -> GateRow:
    """The linear form of a run's gate, and the share of its variance from the hierarchy."""
    meta = run.meta
    tasks, keys = run.config.source.split("test"), task_keys(key_for("test", 0), num_tasks)
    parts = map_drawn(eqx.Partial(decompose_task, meta), tasks, keys, task_chunk_size=10)
    form = meta.gate.layer.form
    errors = np.asarray(parts.error, np.float64)
    return GateRow(name, form, num_tasks, median(errors), float(np.quantile(errors, 0.9)), variance_share(parts))


def decompose_task(meta: HSMLMeta, task: Any) -> Any:
    """`decompose` of a task's support set."""
    return decompose(meta, task.support)


def convex_rows(steps: int, shots: tuple[int, ...], num_tasks: int) -> list[ConvexRow]:
    """Theorem 1 as stated, for MAML and HSML with a polynomial as base net, each trained briefly."""
    how = Training(steps=steps, validate_every=steps, log_every=min(steps, 100), outer_lr=0.003)
    common = {"net": PolynomialBase(), "inner_lr": 0.03}
    learners = {"MAML": MAML(**common), "HSML": HSML(**common)}
    runs = {name: trained(Config(Functions(), learner, how), name) for name, learner in learners.items()}
    reference = runs["MAML"].meta
    rows = []
    for name, run in runs.items():
        for n in shots:
            arguments = (run.config.learner, run.meta, reference)
            found = as_float64(measured(measure_convex, arguments, n, num_tasks))
            rows.append(convex_row(name, n, steps, found))
    return rows


def trained(config: Config, name: str) -> Run:
    """A short run, trained if it does not exist."""
    folder = Path("runs/theory") / f"{name.lower()}-convex-{config.training.steps}"
    train(config, folder, resume=(folder / "run.json").exists(), command=COMMAND)
    return load(folder, learner=config.learner)

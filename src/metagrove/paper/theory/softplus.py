"""Softplus in place of ReLU in Conv-4 (paper, section 5): accuracy and Hessian norm by κ, of trained runs."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from metagrove.files import read_json
from metagrove.keys import key_for
from metagrove.learner import Learner, Meta
from metagrove.outer import map_drawn, task_keys
from metagrove.paper.theory.curvature import reverse_hessian_vector, spectral_norm
from metagrove.paper.theory.records import SoftplusRow
from metagrove.serve.run import Run, load
from metagrove.task import Task

FOLDER = Path("runs/softplus")
"""The runs of `metagrove reproduce softplus`."""
NUM_TASKS = 10


def softplus_rows() -> list[SoftplusRow]:
    """The runs of the experiment `softplus` that are trained, in the order of κ."""
    folders = sorted(FOLDER.glob("*-s0"))
    rows = [softplus_row(run) for path in folders if (run := load_finished(path)) is not None]
    return sorted(rows, key=lambda row: row.kappa or float("inf"))


def load_finished(folder: Path) -> Run | None:
    """The run of a folder, if it is trained completely."""
    if not (folder / "best.json").exists():
        return None
    run = load(folder)
    return run if read_json(folder / "last.json")["step"] >= run.config.training.steps else None


def softplus_row(run: Run) -> SoftplusRow:
    """Accuracy and Hessian norm of a run."""
    tasks, keys = run.config.source.split("validation"), task_keys(key_for("test", 0), NUM_TASKS)
    norms = map_drawn(eqx.Partial(support_curvature, run.config.learner, run.meta), tasks, keys, task_chunk_size=1)
    scored = run.about["validation"]
    net: Any = getattr(run.config.learner, "net", None)
    kappa, steps = net.softplus, run.config.training.steps
    return SoftplusRow(
        run.folder.name, kappa, steps, scored["value"], scored["ci95"], float(np.median(np.asarray(norms)))
    )


def support_curvature(learner: Learner, meta: Meta, task: Task) -> Any:
    """‖∇²L(θ₀ₜ)‖₂ of the whole support set: with batch statistics it is not a sum over images."""
    _, info = learner.adapt(meta, task.support, steps=0)
    net = jax.tree.map(lambda leaf: leaf[0] if eqx.is_inexact_array(leaf) else leaf, info.path)
    kernels = eqx.tree_at(lambda n: n.context, net, None, is_leaf=lambda part: part is None)
    arrays, static = eqx.partition(kernels, eqx.is_inexact_array)
    params, unravel = ravel_pytree(arrays)

    def loss(params: jax.Array) -> jax.Array:
        return learner.loss(eqx.combine(unravel(params), static)(task.support.x), task.support.y, task.support.mask)

    return spectral_norm(lambda v: reverse_hessian_vector(loss, params, v), params.size)

"""What the gate of a trained HSML leans on: the single task, or the clusters that it belongs to.

    python benchmarks/gate_input.py RUN --out results/gate-input.json

Accuracy on the run's validation tasks as it is; with the mean embedding of its strongest cluster's tasks in place of g,
in the hierarchy and in the gate, so that all tasks of a cluster get one initialisation; and with zeros in place of g in
the gate.
"""

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from result import write_result

from metagrove import HSML, files, load
from metagrove.hsml.learner import HSMLMeta
from metagrove.keys import key_for
from metagrove.nets.gate import apply_gate
from metagrove.training.folders import provenance
from metagrove.training.scores import ci95, paired_difference, score_tasks
from metagrove.training.validate import VALIDATION_SEED

TASKS_FOR_MEANS = 400
INPUTS = {
    # name: (g as the hierarchy sees it, g as the gate sees it), from g and its cluster's mean
    "as trained": lambda g, mean: (g, g),
    "its cluster's mean in place of g": lambda g, mean: (mean, mean),
    "zeros in place of g": lambda g, mean: (g, jnp.zeros_like(g)),
}


class WithMeans(eqx.Module):
    """Θ, and the mean embedding of each first-level cluster's tasks."""

    meta: HSMLMeta
    means: Any


@dataclasses.dataclass(frozen=True)
class OtherInput(HSML):
    """HSML whose gate sees something else in place of g."""

    given: str = "as trained"

    def adapt(self, meta, support, *, key=None, steps=None):
        """As HSML does, with the initialisation tailored anew."""
        _, info = super().adapt(meta.meta, support, key=key, steps=0)
        inner, mean = meta.meta, meta.means[info.assignments[0][0].argmax()]
        below, beside = INPUTS[self.given](info.task_embedding, mean)
        root_repr, assignments = inner.cluster(below, None if inner.frame is None else inner.frame(below))
        gate_input = self.gate_input(beside, root_repr, assignments)
        adapted, path = self.fit(apply_gate(inner.net, inner.gate, gate_input), support, steps)
        return adapted, dataclasses.replace(info, path=path)


def cluster_means(run):
    """The mean embedding of training tasks, weighted by their share of each first-level cluster."""
    tasks = run.config.source.split("train")

    @eqx.filter_jit
    def embeddings(meta, keys):
        def one(key):
            _, info = run.config.learner.adapt(meta, tasks.sample(key).support, steps=0)
            return info.task_embedding, info.assignments[0][0]

        return jax.lax.map(one, keys)

    g, shares = embeddings(run.meta, jax.random.split(key_for("train", 1), TASKS_FOR_MEANS))
    return shares.T @ g / shares.sum(0)[:, None]


def measure(run, gate_input, means):
    """Every validation task's score after the number of inner steps that the run chose, and its family."""
    fields = {field.name: getattr(run.config.learner, field.name) for field in dataclasses.fields(run.config.learner)}
    scores = score_tasks(
        OtherInput(**fields, given=gate_input),
        WithMeans(run.meta, means),
        run.config.source.split("validation"),
        key=key_for("validation", VALIDATION_SEED),
        num_tasks=run.config.training.validation_tasks,
        steps=run.inner_steps,
        every_step=False,
        task_chunk_size=run.config.training.task_chunk_size,
    )
    return scores.after(run.inner_steps), scores.family


def summary(run, gate_input, values, family, as_trained):
    """Means, and the paired difference to the run as it is."""
    names = run.config.source.family_names
    return {
        "gate_input": gate_input,
        "value": float(values.mean()),
        "ci95": float(ci95(values)),
        "by_family": {name: float(values[family == i].mean()) for i, name in enumerate(names)},
        "minus_as_trained": files.as_json(paired_difference(values, as_trained)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    run = load(args.run)
    means = cluster_means(run)
    scores = {name: measure(run, name, means) for name in INPUTS}
    as_trained = scores["as trained"][0]
    result = {
        "about": "accuracy on validation tasks, in percent, with other inputs to the gate of a trained HSML",
        "provenance": provenance(shlex.join(["python", *sys.argv])),
        "rows": [summary(run, name, *found, as_trained) for name, found in scores.items()],
    }
    write_result(result, args.out)


if __name__ == "__main__":
    main()

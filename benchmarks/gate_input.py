"""What the gate of a trained HSML leans on: the single task, or the clusters that it belongs to.

    python benchmarks/gate_input.py RUN --out results/gate-input.json

Accuracy on the run's validation tasks as it is; with g replaced in the gate by the mean embedding of the task's
clusters, so that all tasks of a cluster get one initialisation; and with g replaced by zeros.
"""

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from metagrove import HSML, load
from metagrove.hsml.learner import HSMLMeta
from metagrove.nets.gate import tailor
from metagrove.run.evaluate import ci95, score_tasks
from metagrove.run.folders import provenance
from metagrove.run.randomness import stream
from metagrove.run.validate import VALIDATION_SEED

TASKS_FOR_MEANS = 400
INPUTS = {
    "as trained": lambda g, mean: g,
    "the clusters' mean in place of g": lambda g, mean: mean,
    "zeros in place of g": lambda g, mean: jnp.zeros_like(g),
}


class WithMeans(eqx.Module):
    """Θ, and the mean embedding of each first-level cluster's tasks."""

    meta: HSMLMeta
    means: Any


@dataclasses.dataclass(frozen=True)
class OtherInput(HSML):
    """HSML whose gate sees something else in place of g."""

    gate_input: str = "as trained"

    def adapt(self, meta, support, *, key=None, steps=None):
        """As HSML does, with the initialisation tailored anew."""
        _, info = super().adapt(meta.meta, support, key=key, steps=0)
        g, inner = info.task_embedding, meta.meta
        root_repr, shares = inner.cluster(g, None if inner.frame is None else inner.frame(g))
        seen = INPUTS[self.gate_input](g, shares[0][0] @ meta.means)
        adapted, path = self.fit(tailor(inner.net, inner.gate, jnp.concatenate([seen, root_repr])), support, steps)
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

    g, shares = embeddings(run.meta, jax.random.split(stream("train", 1), TASKS_FOR_MEANS))
    return shares.T @ g / shares.sum(0)[:, None]


def measure(run, gate_input, means):
    """Mean and CI over the validation tasks, after the number of inner steps that the run chose."""
    fields = {field.name: getattr(run.config.learner, field.name) for field in dataclasses.fields(run.config.learner)}
    scores = score_tasks(
        OtherInput(**fields, gate_input=gate_input),
        WithMeans(run.meta, means),
        run.config.source.split("validation"),
        key=stream("validation", VALIDATION_SEED),
        num_tasks=run.config.training.validation_tasks,
        steps=run.inner_steps,
        every_step=False,
        tasks_in_flight=run.config.training.tasks_in_flight,
    )
    values = scores.after(run.inner_steps)
    by_family = {name: values[scores.family == i].mean() for i, name in enumerate(run.config.source.family_names)}
    families = {name: float(value) for name, value in by_family.items()}
    return {"gate_input": gate_input, "value": float(values.mean()), "ci95": float(ci95(values)), "by_family": families}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    run = load(args.run)
    means = cluster_means(run)
    result = {
        "format": 1,
        "about": "accuracy on validation tasks, in percent, with other inputs to the gate of a trained HSML",
        "provenance": provenance(shlex.join(["python", *sys.argv])),
        "rows": [measure(run, name, means) for name in INPUTS],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

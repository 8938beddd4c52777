"""Self-check of a machine: a few meta-steps of each learner, compared with values stored on a CPU.

`metagrove selfcheck` compares; `python -m metagrove.training.selfcheck [NAME ...]` stores the values of this machine.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metagrove import files
from metagrove.config.config import Config
from metagrove.config.presets import preset
from metagrove.config.registry import LEARNER_GROUPS
from metagrove.sources.episodes import random_episodes
from metagrove.sources.source import Steady, TaskSchedule
from metagrove.training.block import run_block
from metagrove.training.folders import provenance
from metagrove.training.phases import first_step, init_state

__all__ = ["TOLERANCE", "Checked", "check_learners", "names", "record"]

STORED = Path(__file__).with_name("selfcheck.json")
"""Loss and gradient norm of each learner, written by `record` on a CPU."""
STEPS = 3
TOLERANCE = 1e-3
"""Tolerated relative difference: above that of rounding in another order, far below that of a wrong gradient."""
SIZE, CLASSES, IMAGES = 8, 4, 3
EPISODE = {"ways": 2, "shots": 1, "queries": 1}
ON_FUNCTIONS = {"meta_batch": 4, "task_blocks": 1}
ON_IMAGES = {"meta_batch": 2, "task_chunk_size": 2, "size": SIZE, **EPISODE}
SETTINGS: dict[str, dict[str, Any]] = {
    "hsml": {"hidden": (8,), "example_dim": 5, "task_dim": 6, "clusters": (3, 2, 1)},
    "grove": {"degree": 4, "fit_steps": 30, "fit_batch": 4},
    "mumomaml": {"hidden": (8,), "hidden_dim": 4, "encoder_layers": 1},
    "arml": {"hidden": (8,), "prototypes": 2, "vertices": 2, "example_dim": 5, "task_dim": 6},
    "bmaml": {"hidden": (8,), "particles": 3},
    "platipus": {"hidden": (8,), "samples": 2},
    "meta-lstm": {"hidden": (8,), "hidden_dim": 3},
    "snail": {"key_dims": (4, 3), "value_dims": (3, 2), "filters_per_block": 3, "dilations": (1, 2)},
    "neural-process": {"width": 8, "attention_layers": 1, "attention_heads": 2},
    "matching-net-fce": {"filters": 4, "blocks": 2, "feature_dim": 4, "read_steps": 1},
    "relation-net": {"filters": 4},
    "gnn": {"filters": 4, "blocks": 2, "feature_dim": 4, "edge_dims": (3,), "node_dim": 3, "graph_layers": 1},
}
"""Settings of learners with more parts than a base net."""


@dataclasses.dataclass(frozen=True)
class Checked:
    """A learner's values on this machine.

    Args:
        learner: Name of the learner.
        values: Mean loss and gradient norm of the first meta-steps.
        difference: Largest relative difference from the stored values.
        seconds: Time, compilation included.
    """

    learner: str
    values: dict[str, float]
    difference: float
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the tolerance; NaN is not."""
        return self.difference <= TOLERANCE


def names() -> tuple[str, ...]:
    """The learners that are checked: all of this package."""
    return tuple(name for group in LEARNER_GROUPS.values() for name in group)


def check_learners(chosen: Iterable[str], show: Callable[[Checked], None]) -> list[Checked]:
    """Train each learner for a few meta-steps and compare with the stored values.

    Args:
        chosen: Names of learners.
        show: Called with each learner when it is done.

    Returns:
        The values and differences, in the order of the names.
    """
    stored, found = files.read_json(STORED)["values"], []
    for name in chosen:
        began = time.monotonic()
        values = first_values(name)
        apart = [abs(values[key] - stored[name][key]) / max(abs(stored[name][key]), 1e-6) for key in stored[name]]
        found.append(Checked(name, values, float(np.max(apart)), time.monotonic() - began))
        show(found[-1])
    return found


def record(chosen: Iterable[str], command: str) -> None:
    """Store the values of this machine as the reference, for developers of a learner."""
    before = files.read_json(STORED)["values"] if STORED.exists() else {}
    values = before | {name: first_values(name) for name in chosen}
    content = {"format": files.FORMAT, "provenance": provenance(command), "values": dict(sorted(values.items()))}
    files.write_json(STORED, content)


def first_values(name: str) -> dict[str, float]:
    """Mean loss and gradient norm of a learner's first meta-steps, or of its fit before them."""
    config, tasks = tiny(name)
    state = init_state(config, begin := first_step(config.learner, config.training))
    with jax.default_matmul_precision("highest"):  # a GPU's usual float32 products are less exact than the tolerance
        stop = jnp.asarray(begin + STEPS, jnp.int32)
        _, block = run_block(config.learner, tasks, config.training, state, stop)
    return {key: float(block.means[key]) for key in ("loss", "gradient_norm")}


def tiny(name: str) -> tuple[Config, TaskSchedule]:
    """A small training of a learner: on functions, or on random images if it is for images alone."""
    if name in LEARNER_GROUPS["metric"]:
        settings = {**ON_IMAGES, **SETTINGS.get(name, {"filters": 4, "blocks": 2})}
        return preset("images-1shot", name).with_settings(**settings), Steady(
            random_episodes(CLASSES, IMAGES, SIZE, **EPISODE)
        )
    config = preset("toy-5shot", name).with_settings(**{**ON_FUNCTIONS, **SETTINGS.get(name, {"hidden": (8,)})})
    return config, config.source.schedule(config.training.steps)


if __name__ == "__main__":
    record(sys.argv[1:] or names(), "python -m metagrove.training.selfcheck")

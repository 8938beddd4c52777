"""How straight the path of a task is through the packages, from its source to a checkpoint."""

import functools
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import TINY
from own_runs import sensors, write_csv

import metagrove
from metagrove.own.training import own_config
from metagrove.tables.settings import TableData
from metagrove.training.loop import train

SOURCE = Path(metagrove.__file__).parent
CONTRACT = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
RANK = {name: -i for i, layer in enumerate(CONTRACT["contracts"][0]["layers"]) for name in layer.split(" | ")}


@functools.cache
def package_at(file):
    path = Path(file)
    return path.relative_to(SOURCE).with_suffix("").parts[0] if path.is_relative_to(SOURCE) else None


def callers(frame):
    """The packages that wait for a call, the nearest first."""
    while (frame := frame.f_back) is not None:
        if (package := package_at(frame.f_code.co_filename)) is not None:
            yield package


def carries_data(frame):
    """Whether one of the arguments of a call holds arrays, as tasks, predictors and columns of tables do."""
    code = frame.f_code
    arguments = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
    return any(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(arguments))


def back_steps(fn):
    """The pairs of packages (from, to) between which a task steps back while `fn` runs.

    A back-step is a call that carries data from a package to one above it in the order of packages, where the latter
    already waits further up the call stack: the task has left it and returns through a callback or an inherited
    method. What is compiled is traced once, so that each pair counts once, however many meta-steps are made.
    """
    found = set()

    def watch(frame, event, _):
        package = package_at(frame.f_code.co_filename) if event == "call" else None
        if package is None or frame.f_code.co_name == "<module>":
            return
        caller = next(callers(frame), package)
        if RANK[package] > RANK[caller] and (caller, package) not in found and package in callers(frame):
            sys.setprofile(None)
            if carries_data(frame):
                found.add((caller, package))
            sys.setprofile(watch)

    jax.clear_caches()
    sys.setprofile(watch)
    try:
        fn()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("what", ["functions", "tables"])
def test_a_task_steps_back_at_most_twice(what, tmp_path):
    """`Learner.meta_loss` calls the learner's own `adapt`, and `outer.probe` calls what validation keeps of a task."""
    few = {"steps": 2, "validate_every": 2, "log_every": 1, "meta_batch": 2, "validation_tasks": 4}

    def from_table():
        parts = [{"sensor": [f"{i}"] * 8, **sensors(8, i)} for i in range(20)]
        table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        path = write_csv(tmp_path / "sensors.csv", table)
        data = TableData(tasks=str(path), task_column="sensor", target=(list(table)[-1],), shots=4)
        config = own_config(data, None, lambda line: None).with_settings(**few, hidden=(8,), clusters=(2, 1))
        train(config, tmp_path / "run")

    fn = from_table if what == "tables" else lambda: train(TINY.with_settings(**few), tmp_path / "run")
    assert back_steps(fn) == {("learner", "hsml"), ("outer", "training")}

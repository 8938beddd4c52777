"""Training runs: they go on bit for bit, lose nothing, and stop with a reason."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading

import equinox as eqx
import filelock
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS, TINY

from metagrove import files, notes
from metagrove.config.config import Phase, check_config
from metagrove.errors import DivergedError, InputError, RunError
from metagrove.losses import metric_of, mse
from metagrove.sources.source import Steady
from metagrove.sources.stream import Stream
from metagrove.training import checkpoint, folders, progress
from metagrove.training import loop as train_module
from metagrove.training.block import run_block
from metagrove.training.loop import train, validations
from metagrove.training.phases import init_state
from metagrove.training.records import BestCheckpoint, BlockRecord, GrowthState, TrainingProgress
from metagrove.training.scores import Scores, best_step

PARTS = ("net", "embed", "cluster", "gate")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One tiny run of 40 steps."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train(TINY, folder)
    return folder


def tree_of(folder, name="last"):
    like = eqx.filter_eval_shape(init_state, TINY)
    return checkpoint.load(folder, name, like if name == "last" else like.meta)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def stop_after(monkeypatch, step):
    """As if Ctrl-C were pressed in the block that ends at `step`."""
    real = run_block

    def block(*args, **how):
        result = real(*args, **how)
        if int(result[0].step) == step:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(train_module, "run_block", block)


def test_what_a_run_leaves_behind(finished):
    about = files.read_json(finished / "run.json")
    assert about["config"]["learner"]["name"] == "hsml"
    assert set(about["provenance"]) == {"command", "versions", "hardware"}
    records = folders.read_metrics(finished)
    assert [r.step for r in records] == [10, 20, 30, 40]
    assert all(np.isfinite(r.means["loss"]) and r.means["reconstruction_loss"] > 0 for r in records)
    checks = {r.step: r.validation for r in records if r.validation}
    assert list(checks) == [20, 40]
    best = files.from_json(BestCheckpoint, files.read_json(finished / "best.json"))
    assert best.validation == checks[best.step]
    assert best.validation.value == min(check.value for check in checks.values())
    so_far = files.from_json(TrainingProgress, files.read_json(finished / "last.json"))
    assert (so_far.best, so_far.watch) == (best, GrowthState())
    assert min(so_far.seconds, so_far.steps_per_second, so_far.peak_memory_mb) > 0
    assert sorted(p.suffix for p in finished.glob("*-*")) == [".safetensors", ".safetensors"]


def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(finished, tmp_path, monkeypatch):
    stop_after(monkeypatch, 30)  # between two validations
    assert not train(TINY, tmp_path)
    assert files.read_json(tmp_path / "last.json")["step"] == 30
    monkeypatch.undo()
    (tmp_path / ".last.half").write_bytes(b"left by a process that was killed")
    assert train(TINY, tmp_path, resume=True)
    assert not (tmp_path / ".last.half").exists()
    assert_same(tree_of(tmp_path)[0], tree_of(finished)[0])
    assert_same(tree_of(tmp_path, "best")[0], tree_of(finished, "best")[0])
    assert folders.read_metrics(tmp_path) == folders.read_metrics(finished)


def test_blocks_begin_and_end_anywhere_in_what_is_drawn_at_once():
    config = TINY.with_settings(steps=230)

    def after(*stops):
        state = init_state(config)
        for stop in stops:
            state, _ = run_block(config.learner, config.source.schedule(230), config.training, state, jnp.array(stop))
        return state

    assert eqx.tree_equal(after(230), after(10, 99, 100, 130, 131, 230))


def test_where_blocks_end_does_not_matter(finished, tmp_path):
    config = TINY.with_settings(log_every=7)
    assert train(config, tmp_path)
    assert_same(tree_of(tmp_path)[0], tree_of(finished)[0])


def test_seeds_differ(finished, tmp_path):
    train(TINY.with_settings(seed=1, steps=10), tmp_path)
    assert folders.read_metrics(tmp_path)[0].means["loss"] != folders.read_metrics(finished)[0].means["loss"]


def test_another_seed_or_length_compiles_nothing_anew():
    traces = []

    def counted(prediction, y, mask):
        traces.append(y)
        return mse(prediction, y, mask)

    learner, stop = dataclasses.replace(LEARNERS["maml"], loss=counted), jnp.asarray(2, jnp.int32)
    stream, losses, counts = Stream(timetable=("0: line", "1/2: *")), [], []
    for settings in ({}, {"seed": 1}, {"steps": 60}, {"log_every": 1, "validate_every": 5, "validation_tasks": 3}):
        training = dataclasses.replace(TINY.training, **settings)
        state = init_state(dataclasses.replace(TINY, learner=learner))
        _, block = run_block(learner, stream.schedule(training.steps), training, state, stop)
        losses.append(float(block.means["loss"]))
        counts.append(len(traces))
    assert len(set(counts)) == 1
    assert losses[0] != losses[1]
    assert losses[0] == losses[3]


def test_a_callback_is_called_with_every_logged_block(tmp_path):
    seen = []
    assert train(TINY.with_settings(steps=20), tmp_path, callback=seen.append)
    assert [record.step for record in seen] == [10, 20]
    assert seen == folders.read_metrics(tmp_path)


@pytest.mark.parametrize("moment", ["weights", "json"])
def test_a_save_that_fails_halfway_loses_nothing(finished, tmp_path, monkeypatch, moment):
    stop_after(monkeypatch, 20)
    train(TINY, tmp_path)
    monkeypatch.undo()
    real, before = os.replace, tree_of(tmp_path)

    def full(source, target):
        if (str(target).endswith(".json")) == (moment == "json") and "last" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(RunError, match=r"No space left.*free some space.*saved before is intact"):
        train(TINY, tmp_path, resume=True)
    monkeypatch.undo()
    assert_same(tree_of(tmp_path)[0], before[0])
    assert not list(tmp_path.glob(".*.safetensors.*"))  # no half-written file is left
    assert train(TINY, tmp_path, resume=True)
    assert_same(tree_of(tmp_path)[0], tree_of(finished)[0])


def test_killed_without_warning_goes_on_from_the_last_checkpoint(finished, tmp_path, monkeypatch):
    real = folders.append_metrics

    def die(folder, record):
        line = real(folder, record)
        if record.step == 30:
            raise MemoryError  # nothing in the loop catches this, as nothing catches SIGKILL
        return line

    monkeypatch.setattr(folders, "append_metrics", die)
    with pytest.raises(MemoryError):
        train(TINY, tmp_path)
    monkeypatch.undo()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31, "lo')  # a line cut off by the crash
    train(TINY, tmp_path, resume=True)
    assert_same(tree_of(tmp_path)[0], tree_of(finished)[0])
    assert folders.read_metrics(tmp_path) == folders.read_metrics(finished)


def diverging(prediction, y, mask):
    return mse(prediction, y, mask) * jnp.where(jnp.abs(y).max() > 8, jnp.nan, 1.0)


def test_a_nan_stops_the_run_and_names_step_and_quantity(tmp_path):
    learner = dataclasses.replace(TINY.learner, loss=diverging)
    with pytest.raises(DivergedError, match=r"gradient_norm and loss is not finite at meta-step \d+: train again"):
        train(dataclasses.replace(TINY, learner=learner), tmp_path)


def test_a_nan_keeps_the_last_good_checkpoint(finished, tmp_path, monkeypatch):
    stop_after(monkeypatch, 20)
    train(TINY, tmp_path)
    monkeypatch.undo()
    real = run_block

    def poisoned(*args, **how):
        state, block = real(*args, **how)
        return state, eqx.tree_at(lambda b: b.finite["loss"], block, jnp.asarray(False))

    monkeypatch.setattr(train_module, "run_block", poisoned)
    before = tree_of(tmp_path)[0]
    with pytest.raises(DivergedError, match="loss is not finite"):
        train(TINY, tmp_path, resume=True)
    assert_same(tree_of(tmp_path)[0], before)


def test_validation_that_is_not_finite_stops_the_run():
    nan = Scores(np.full((2, 3), np.nan), np.zeros(2, int), None)
    with pytest.raises(DivergedError, match="validation error is not finite"):
        best_step(nan, metric_of(mse))
    late = Scores(np.array([[3.0, 2.0, np.inf], [3.0, 2.0, 1.0]]), np.zeros(2, int), None)
    assert best_step(late, metric_of(mse)) == 1


def test_state_before_a_nan_is_kept():
    config = dataclasses.replace(TINY, learner=dataclasses.replace(TINY.learner, loss=diverging))
    start = init_state(config)
    state, block = run_block(config.learner, Steady(config.source), config.training, start, jnp.asarray(40, jnp.int32))
    assert int(state.step) < 40
    assert not bool(block.finite["loss"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.meta))


def test_two_trainings_in_one_folder_are_refused(tmp_path):
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(RunError, match="another training is writing"):
        train(TINY, tmp_path)


def test_an_existing_run_is_not_overwritten(finished):
    with pytest.raises(InputError, match="already holds a run: continue it"):
        train(TINY, finished)


def test_resume_with_other_settings_is_refused(finished):
    with pytest.raises(InputError, match=r"inner_lr was 0\.001, now 0\.5"):
        train(TINY.with_settings(inner_lr=0.5), finished, resume=True)


def test_training_works_in_a_thread(tmp_path):
    thread = threading.Thread(target=train, args=(TINY, tmp_path))
    thread.start()
    thread.join()
    assert (tmp_path / "best.json").exists()


def corrupt(folder, tmp_path, change):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    change(copy)
    return copy


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def weights_of(folder):
    return folder / json.loads((folder / "last.json").read_text())["weights"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: weights_of(f).write_bytes(weights_of(f).read_bytes()[:-9]), "is damaged: it has .* bytes"),
        (lambda f: weights_of(f).unlink(), "cannot be read.*incomplete"),
        (lambda f: (f / "last.json").write_text('{"format": 1, "we'), "is not JSON.*truncated"),
        (lambda f: (f / "last.json").write_text("[]"), "not a file of metagrove"),
        (lambda f: (f / "last.json").write_text('{"format": 99}'), "format 99.*upgrade metagrove"),
        (lambda f: edit(f / "last.json", '"step": 40', '"step": 41'), "damaged or was edited"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_a_reason(finished, tmp_path, change, message):
    with pytest.raises(RunError, match=message):
        tree_of(corrupt(finished, tmp_path, change))


def test_a_checkpoint_of_other_shapes_is_refused(finished):
    other = eqx.filter_eval_shape(init_state, TINY.with_settings(clusters=(5, 2, 1)))
    with pytest.raises(RunError, match=r"does not fit.*centers \(3, 6\) instead of \(5, 6\)"):
        checkpoint.load(finished, "last", other)


def test_a_real_ctrl_c_leaves_cleanly_with_code_130(tmp_path):
    """The whole command in a process of its own, stopped by a signal, resumed to the end."""
    command = [
        sys.executable,
        "-m",
        "metagrove",
        "train",
        "toy-quick",
        "--learner",
        "maml",
        "--out",
        str(tmp_path / "r"),
    ]
    command += ["--steps", "100000", "--validation-tasks", "10", "--meta-batch", "2", "--inner-steps", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "validation" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "interrupted, progress is saved; resume with: metagrove train toy-quick" in rest
    assert "Traceback" not in rest
    assert files.read_json(tmp_path / "r" / "last.json")["step"] >= 1000


@pytest.mark.parametrize(("rate", "shown"), [(0.4, "0.40 steps/s  200 s left"), (130.6, "131 steps/s  1 s left")])
def test_progress_tells_slow_steps_from_none(rate, shown, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1.0)
    monkeypatch.setattr(progress, "duration", lambda seconds: f"{seconds:.0f} s")
    with progress.Progress(100, start=0) as bar:
        bar.show(BlockRecord(10, {"loss": 1.5}), steps_per_second=0.01)  # it compiled, which says nothing of the rest
        bar.show(BlockRecord(20, {"loss": 1.5}), steps_per_second=rate)
    err = capsys.readouterr().err.splitlines()
    assert err[0] == progress.COMPILING
    assert err[1].endswith("loss 1.5000  compiled, remaining time is known after the next block")
    assert err[2] == f"step 20/100  loss 1.5000  {shown}"


def test_notes_are_not_wrapped_and_can_be_left_out(capsys):
    line = "a long line " * 20
    bar = progress.Progress(1, start=1)
    bar.note(line)
    assert capsys.readouterr().err == f"{line}\n"
    try:
        notes.set_verbosity(quiet=True)
        progress.Progress(1, start=0).note(line)
        notes.note(line)
        assert capsys.readouterr().err == ""
    finally:
        notes.set_verbosity()


def test_training_stops_when_validations_are_no_longer_better(tmp_path, monkeypatch, capsys):
    """Validations of a worse and worse learner: the first is the best one."""
    real, values = train_module.validate, iter(range(1, 99))

    def worse(*args):
        return dataclasses.replace(real(*args), value=float(next(values)))

    monkeypatch.setattr(train_module, "validate", worse)
    config = TINY.with_settings(patience=1, steps=80)
    assert train(config, tmp_path)
    assert [r.step for r in folders.read_metrics(tmp_path)] == [10, 20, 30, 40]
    assert files.read_json(tmp_path / "best.json")["step"] == 20
    assert "stopped at step 40: no improvement in 1 validations" in capsys.readouterr().err
    assert train(config, tmp_path, resume=True)  # there is nothing left to do
    assert len(folders.read_metrics(tmp_path)) == 4
    with pytest.raises(InputError, match="patience must be from 0"):
        check_config(TINY.with_settings(patience=-1))


def test_a_file_whose_keys_are_numbers_can_be_read_again(tmp_path):
    files.write_json(tmp_path / "a.json", {"format": 1, "losses": {20: 1.0, 100: 2.0}})  # "100" is before "20"
    assert files.read_json(tmp_path / "a.json")["losses"] == {"20": 1.0, "100": 2.0}


def test_training_gives_the_numbers_of_version_0_1():
    """Means over the first 20 meta-steps and the size of all parameters, recorded with version 0.1."""
    config = TINY.with_settings(max_eval_inner_steps=10)
    state, block = run_block(
        config.learner, config.source.schedule(40), config.training, init_state(config), jnp.asarray(20, jnp.int32)
    )
    recorded = {"loss": 20.520412, "gradient_norm": 2.1754508, "reconstruction_loss": 8.889982}
    for name, value in recorded.items():
        assert float(block.means[name]) == pytest.approx(value, rel=1e-4)
    parameters = jax.tree.leaves(eqx.filter(state.meta, eqx.is_inexact_array))
    assert sum(float(jnp.abs(leaf).sum()) for leaf in parameters) == pytest.approx(341.81093, rel=1e-5)


def test_phases_train_what_they_name_by_their_loss():
    """First the embedding alone by reconstruction, then all but the embedding by the query loss (appendix H, A2a)."""
    phases = (Phase(3, ("embed",), "reconstruction"), Phase(0, ("net", "cluster", "gate")))
    config = TINY.with_settings(steps=6)
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, phases=phases, warmup_steps=0))
    check_config(config)
    assert config.training.phase_ends() == [3, 6]
    assert set(validations(config)) >= {3, 6}
    states = [init_state(config)]
    for stop in (3, 6):
        schedule = config.source.schedule(6)
        state, _ = run_block(config.learner, schedule, config.training, states[-1], jnp.asarray(stop, jnp.int32))
        states.append(state)

    def moved(first, second):
        parts = {name: (getattr(first.meta, name), getattr(second.meta, name)) for name in PARTS}
        return {name for name, (a, b) in parts.items() if not eqx.tree_equal(a, b)}

    assert moved(states[0], states[1]) == {"embed"}
    assert moved(states[1], states[2]) == {"net", "cluster", "gate"}


def test_phases_that_do_not_fit_are_refused():
    for phases, message in (((Phase(40), Phase()), "must end before"), ((Phase(0), Phase()), "at least one meta-step")):
        training = dataclasses.replace(TINY.training, phases=phases)
        with pytest.raises(InputError, match=message):
            check_config(dataclasses.replace(TINY, training=training))


def test_a_loss_that_the_learner_has_not_is_refused():
    maml, task = LEARNERS["maml"], TINY.source.sample(jax.random.key(0))
    with pytest.raises(InputError, match="MAML has no training loss 'reconstruction'"):
        maml.phase_loss("reconstruction", None, task, key=jax.random.key(0))

"""Training on several devices: the same numbers bit for bit, whatever their number."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS, TINY

from metagrove import devices
from metagrove.devices import shares
from metagrove.errors import InputError
from metagrove.losses import mse
from metagrove.training.block import run_block
from metagrove.training.loop import num_devices, train
from metagrove.training.phases import init_state

FIFTY_STEPS = """
import sys
sys.path.insert(0, sys.argv[1])
import jax
import jax.numpy as jnp
import conftest, test_devices
from metagrove.devices import task_mesh
for devices in (1, 2, 4):
    print(test_devices.checksum_after(50, task_mesh(devices)))
"""
SPREAD = TINY.with_settings(meta_batch=7, task_blocks=4, clip_norm=0.0)
"""Seven tasks in blocks of two: four blocks, the last one filled up."""


def diverging(prediction, y, mask):
    return mse(prediction, y, mask) * jnp.where(jnp.abs(y).max() > 8, jnp.nan, 1.0)


def checksum_after(steps, mesh, config=SPREAD):
    schedule, stop = config.source.schedule(config.training.steps), jnp.asarray(steps, jnp.int32)
    state, block = run_block(config.learner, schedule, config.training, init_state(config), stop, mesh=mesh)
    assert int(state.step) == steps
    leaves = [*jax.tree.leaves(state), *jax.tree.leaves(block)]
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def test_one_two_and_four_devices_give_the_same_bits_after_50_meta_steps():
    """Compiled as in use, with all optimisations: they are what makes a program round as its neighbours do."""
    clean = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    }
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", FIFTY_STEPS, str(here)],
        env={**clean, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "PYTHONPATH": str(here.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(set(done.stdout.split())) == 1, done.stdout


def test_blocks_change_a_step_by_rounding_alone():
    def after_a_step(config):
        schedule = config.source.schedule(config.training.steps)
        return run_block(config.learner, schedule, config.training, init_state(config), jnp.asarray(1, jnp.int32))

    (whole, seen), (spread, seen_spread) = (after_a_step(SPREAD.with_settings(task_blocks=n)) for n in (1, 4))
    for name, value in seen.means.items():
        np.testing.assert_allclose(seen_spread.means[name], value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), whole.opt_state, spread.opt_state)


def test_devices_share_the_blocks_in_order():
    assert [list(blocks) for blocks in shares(4, 1)] == [[0, 1, 2, 3]]
    assert [list(blocks) for blocks in shares(5, 2)] == [[0, 1, 2], [3, 4]]
    assert [list(blocks) for blocks in shares(2, 4)] == [[0], [1], [], []]


def test_more_devices_than_blocks_or_than_there_are_are_refused(tmp_path):
    assert num_devices(TINY.training, None) == 1  # one block
    with pytest.raises(InputError, match=r"devices must be at most 1.*meta-batch of 4.*raise --task-blocks"):
        train(TINY, tmp_path, devices=2)
    with pytest.raises(InputError, match=r"devices must be 1 to 1, the cpu devices there are, got 4"):
        train(SPREAD, tmp_path, devices=4)


def test_a_nan_stops_a_spread_run_and_keeps_the_state_before_it():
    """The same meta-step as in one block, though calls run ahead of what is known."""
    config = SPREAD.with_settings(task_blocks=2)
    learner = LEARNERS["maml"].__class__(net=LEARNERS["maml"].net, inner_steps=2, loss=diverging)
    states = []
    for blocks in (1, 2):
        training = config.with_settings(task_blocks=blocks).training
        start = init_state(config.__class__(config.source, learner, training))
        state, block = run_block(learner, config.source.schedule(40), training, start, jnp.asarray(40, jnp.int32))
        assert not bool(block.finite["loss"])
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.meta))
        states.append(int(state.step))
    assert states[0] == states[1] < 40


@pytest.mark.parametrize(
    ("plugins", "platforms", "set_here"), [(None, "", True), ("cuda", "", False), ("cuda", "cpu", True)]
)
def test_a_flag_that_gpus_do_not_support_is_set_on_a_cpu_alone(plugins, platforms, set_here, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: plugins)
    devices.configure_cpu()
    assert (devices.FEW_PASSES in os.environ["XLA_FLAGS"]) == set_here
    assert devices.ONE_THREAD in os.environ["XLA_FLAGS"]

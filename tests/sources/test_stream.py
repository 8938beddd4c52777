"""A stream: which tasks come when, decided by its timetable and the key alone."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove import Functions, Source, Spec, Task
from metagrove.config.encoding import from_json, to_json
from metagrove.config.presets import PRESETS
from metagrove.errors import InputError
from metagrove.evaluation.transfer import transfer
from metagrove.sources.stream import Mix, Stream, read_phase
from metagrove.task import unpadded
from metagrove.training.records import BlockRecord, ValidationRecord

STEPS = 70
STREAM = Stream()
DRAW = eqx.filter_jit(
    lambda flow, step, seed: jax.vmap(flow.at(step).sample)(jax.random.split(jax.random.key(seed), 400)).family
)


def families_at(flow, step, seed=0):
    return np.asarray(DRAW(flow, jnp.asarray(step), seed))


def test_families_arrive_at_their_step_and_not_before():
    flow = STREAM.schedule(STEPS)
    assert STREAM.begins(STEPS) == [0, 15, 30]
    assert [set(families_at(flow, step)) for step in (0, 14, 15, 29, 30, 69)] == [
        {0, 1},
        {0, 1},
        {0, 1, 2},
        {0, 1, 2},
        {0, 1, 2, 3},
        {0, 1, 2, 3},
    ]


def test_the_mix_follows_the_weights():
    flow = Stream(timetable=("0: sinusoid line*3",)).schedule(STEPS)
    lines = np.concatenate([families_at(flow, 0, seed) for seed in range(5)]).mean()
    assert abs(lines - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 2000)


def test_a_task_of_a_full_mix_is_decided_by_its_key_alone():
    flow = STREAM.schedule(STEPS)
    key = jax.random.key(3)
    first, again = flow.at(jnp.asarray(60)).sample(key), Mix(flow.tasks, jnp.ones(4)).sample(key)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, again))


def test_training_tasks_without_a_step_are_those_of_the_last_phase():
    stream = Stream(timetable=("0: sinusoid", "1/2: line"))
    keys = jax.random.split(jax.random.key(0), 50)
    assert set(np.asarray(jax.vmap(stream.split("train").sample)(keys).family)) == {1}


def test_a_stream_says_what_it_is_and_any_other_source_has_one_phase():
    stream, plain = Stream(timetable=("0: line", "1/2: cubic")), Functions()
    assert (stream.has_phases, plain.has_phases) == (True, False)
    assert (stream.begins(10), plain.begins(10)) == ([0, 5], [0])
    assert [stream.families_in(phase) for phase in (0, 1)] == [("line",), ("cubic",)]
    assert plain.families_in(0) == plain.family_names
    assert [stream.phase_at(step, 10) for step in (4, 5)] == [0, 1]
    assert (plain.phase_at(9, 10), plain.arrived(0, 10)) == (0, [0, 1, 2, 3])
    assert plain.schedule(10).at(jnp.asarray(3)) is plain
    x = jnp.linspace(-1.0, 1.0, 3)[:, None]
    np.testing.assert_array_equal(stream.curve(jax.random.key(1), x), plain.curve(jax.random.key(1), x))


def test_what_a_source_says_of_itself_by_default():
    coins = Coins()
    assert (coins.schema, coins.rows("train"), coins.task_names("train"), coins.checksums) == (None, None, (), {})
    assert coins.curve(jax.random.key(0), jnp.zeros((1, 1))) is None
    with pytest.raises(InputError, match="the tasks of Coins have no names"):
        coins.task("test", 0)


def test_validation_and_test_tasks_are_those_of_the_source():
    assert STREAM.split("validation") == Functions().split("validation")
    assert STREAM.parts("test") == Functions().parts("test")


@dataclasses.dataclass(frozen=True)
class Coins(Source):
    """A person's own source with two kinds of task, the second drawn once in ten."""

    @property
    def spec(self):
        return Spec(x_shape=(1,), y_dim=1)

    @property
    def family_names(self):
        return ("often", "rarely")

    def sample(self, key):
        family = jax.random.bernoulli(key, 0.1).astype(jnp.int32)
        rows = jnp.full((2, 1), family.astype(jnp.float32))
        return Task(unpadded(rows, rows), unpadded(rows, rows), family)


def test_any_source_can_be_put_in_a_stream():
    flow = Stream(Coins(), ("0: rarely", "1/2: often")).schedule(STEPS)
    assert set(families_at(flow, 0)) == {1}
    assert set(families_at(flow, 35)) == {0}


def test_a_phase_without_tasks_is_refused_and_not_waited_for():
    @dataclasses.dataclass(frozen=True)
    class OnlyOften(Coins):
        def sample(self, key):
            return dataclasses.replace(super().sample(key), family=jnp.zeros((), jnp.int32))

    with pytest.raises(InputError, match=r"no training task of a family in timetable line '1/2: rarely'"):
        Stream(OnlyOften(), ("0: often", "1/2: rarely")).schedule(STEPS)


@pytest.mark.parametrize(
    ("line", "start", "weights"),
    [
        ("0: line", 0, {"line": 1.0}),
        ("3/14: line cubic*2.5", 15, {"line": 1.0, "cubic": 2.5}),
        ("25: *", 25, {"line": 1.0, "cubic": 1.0}),
        ("0: line*2 *", 0, {"line": 2.0, "cubic": 1.0}),
        ("0.5: *", 35, {"line": 1.0, "cubic": 1.0}),
    ],
)
def test_lines_of_a_timetable(line, start, weights):
    phase = read_phase(line, ("line", "cubic"))
    assert phase.begins(70) == start
    assert phase.weights == weights


@pytest.mark.parametrize(
    "line", ["line", "0:", "x: line", "-3: line", "3/2: line", "0: line*0", "1/0: line", "0: line*1.2.3"]
)
def test_a_line_that_cannot_be_read_is_shown_how(line):
    with pytest.raises(InputError, match=r"timetable has a line .*: write it like '0: line'"):
        read_phase(line, ("line", "cubic"))


@pytest.mark.parametrize(
    ("timetable", "message"),
    [
        (("0: sinusoid", "5: cuboid"), "names cuboid; the source has sinusoid, line, quadratic, cubic"),
        (("5: sinusoid",), "the first of them starting at 0"),
        ((), "the first of them starting at 0"),
    ],
)
def test_timetables_that_do_not_fit_are_problems(timetable, message):
    assert message in Stream(timetable=timetable).validation_errors()[0]


def test_starts_must_rise_and_end_before_training_does():
    with pytest.raises(InputError, match=r"increasing starts below --steps 70, got \[0, 90\]"):
        Stream(timetable=("0: line", "90: *")).begins(70)
    with pytest.raises(InputError, match="increasing"):
        Stream(timetable=("0: line", "9: cubic", "9: *")).begins(70)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("continual")])
def test_configs_survive_json(name):
    config = PRESETS[name].config
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_arrivals_count_the_first_time():
    stream = Stream(timetable=("0: line", "1/2: cubic", "3/4: line cubic"))
    assert stream.arrivals() == {"line": 0, "cubic": 1}
    assert stream.arrived(0, 100) == [1]
    assert stream.arrived(50, 100) == [1, 3]


def test_transfer_by_hand():
    """Errors of line (arrives first) and cubic (arrives second) at the start and at the ends of three phases."""
    stream = Stream(timetable=("0: line", "1/3: cubic", "2/3: line cubic"))
    seen = {0: (9.0, 8.0), 30: (1.0, 7.0), 60: (4.0, 2.0), 90: (3.0, 2.5)}
    records = [BlockRecord(7, {"loss": 1.0})] + [
        BlockRecord(step, validation=ValidationRecord(1.0, 0.1, 1, by_family={"line": line, "cubic": cubic}))
        for step, (line, cubic) in seen.items()
    ]
    got = transfer(records, stream, 90, higher_is_better=False)
    assert got is not None
    assert got.by_family["backward"] == {"line": -2.0, "cubic": -0.5}  # worse at the end than when they arrived
    assert got.by_family["forward"] == {"cubic": 1.0}  # 8 at the start, 7 before it came
    assert got.by_family["forgetting"] == {"line": 2.0, "cubic": 0.5}
    assert (got.backward, got.forward, got.forgetting) == (-1.25, 1.0, 1.25)
    assert transfer(records[:-1], stream, 90, higher_is_better=False) is None
    better = transfer(records, stream, 90, higher_is_better=True)
    assert better is not None
    assert better.by_family["forgetting"] == {"line": 1.0, "cubic": -0.5}  # 4 was its best, 3 is left

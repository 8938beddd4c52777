"""Runs from Python: train, load, adapt, predict; a person's own net, loss and source; bad input."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, hsml

import metagrove as mg
from metagrove.config.config import check_config
from metagrove.config.encoding import from_json, to_json
from metagrove.config.presets import PRESETS, preset
from metagrove.errors import InputError, RunError
from metagrove.serve.rows import padded_size
from metagrove.sources.source import Source
from metagrove.task import Spec, Task, unpadded
from metagrove.training.validate import validate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return mg.train(TINY, out=tmp_path_factory.mktemp("runs") / "tiny")


X = np.array([-3.0, -1.0, 0.5, 2.0, 4.0])


def test_adapt_and_predict(run):
    adapted = run.adapt(X, 2 * X + 1)
    assert adapted.predict([0.0, 1.0, 2.0]).shape == (3, 1)
    assert [level.shape for level in adapted.assignments] == [(1, 3), (3, 2), (2, 1)]
    assert adapted.assignments[0].sum() == pytest.approx(1.0)
    assert adapted.task_embedding.shape == (6,)


def test_loading_gives_the_same_answers(run):
    again = mg.load(run.folder)
    assert again.config == run.config
    np.testing.assert_array_equal(again.adapt(X, X).predict(X), run.adapt(X, X).predict(X))


def test_order_and_number_of_rows_asked_for_do_not_matter(run):
    adapted, other = run.adapt(X, X**2), run.adapt(X[::-1], X[::-1] ** 2)
    np.testing.assert_allclose(adapted.predict(X), other.predict(X), rtol=1e-4)
    np.testing.assert_allclose(adapted.predict(X[:1]), adapted.predict(X)[:1], rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 7, 20])
def test_any_number_of_rows(run, rows):
    x = np.linspace(-5, 5, rows)
    assert np.isfinite(run.adapt(x, x).predict(x)).all()


def test_row_counts_share_compiled_sizes():
    assert [padded_size(n) for n in (1, 4, 5, 8, 9, 100)] == [4, 4, 8, 8, 16, 128]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([], [], "x is empty"),
        ([1.0, 2.0], [1.0], "same number of rows, got 2 and 1"),
        ([1.0, np.nan], [1.0, 2.0], r"x must be finite, row 1 is \[nan\]"),
        ([1.0, 2.0], [1.0, np.inf], "y must be finite, row 1"),
        ([1.0, 1e300], [1.0, 2.0], "x must be finite, row 1"),
        ([[1.0, 2.0]], [1.0], r"x must have shape \(n, 1\), got \(1, 2\)"),
        ([1.0], [[[1.0]]], r"y must have shape \(n, 1\)"),
        (["a"], [1.0], "x must be numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_support_is_refused(run, x, y, message):
    with pytest.raises(InputError, match=message):
        run.adapt(x, y)


def test_bad_inputs_to_predict_are_refused(run):
    with pytest.raises(InputError, match=r"x must have shape \(n, 1\)"):
        run.adapt(X, X).predict([[1.0, 2.0]])


def test_missing_run():
    with pytest.raises(RunError, match="is not a run folder"):
        mg.load("no/such/run")


@pytest.mark.parametrize("name", ["toy-5shot", "toy-10shot", "toy-5shot-best", "toy-10shot-best"])
def test_released_models_do_what_they_say(name):
    """The validation score that a model's file states is made again from the file."""
    run = mg.load(f"models/{name}")
    again = validate(run.config, run.meta)
    assert again.value == pytest.approx(run.about["validation"]["value"], rel=0.02)
    assert again.steps == pytest.approx(run.inner_steps, abs=1)
    assert sum(file.stat().st_size for file in run.folder.iterdir()) < 3.2e6
    assert run.adapt(X, 2 * X + 1).predict([0.0])[0, 0] == pytest.approx(1.0, abs=0.5)


def test_the_released_image_model_tells_patterns_apart():
    """Stripes along and across, squares, a bright half and noise: one image of each, then others in other colours."""
    run = mg.load("images-1shot-32")
    place = np.arange(32)
    along = np.repeat(place[:, None] // 4 % 2, 32, axis=1)
    patterns = [along, along.T, along ^ along.T, np.repeat(place[:, None] < 16, 32, axis=1)]

    def images(seed):
        rng = np.random.default_rng(seed)
        all_patterns = [*patterns, rng.integers(0, 2, (32, 32))]
        colours = rng.uniform(0.6, 1.0, (5, 1, 1, 3))
        return (np.stack(all_patterns)[..., None] * colours).astype(np.float32)

    adapted = run.adapt(images(0), [0, 1, 2, 3, 4])
    right = [adapted.classify(images(seed)) == np.arange(5) for seed in range(1, 5)]
    assert np.mean(right) > 0.7  # chance is .2
    assert sum(file.stat().st_size for file in run.folder.iterdir()) < 7e6


@pytest.mark.parametrize("name", PRESETS)
def test_configs_survive_json(name):
    own = preset(name)
    others = ("maml",) if own.training.steps and own.source.train_spec == own.source.spec else ()
    for learner in (None, *others):
        config = preset(name, learner)
        check_config(config)
        assert from_json(to_json(config)) == config


def test_all_problems_of_a_config_are_reported_at_once():
    config = TINY.with_settings(hidden=(0,), steps=0, clusters=(4, 2), families=("line", "spiral"), inner_lr=-1.0)
    with pytest.raises(InputError) as caught:
        check_config(config)
    assert str(caught.value) == (
        "steps must be at least 1, got 0; families must be among sinusoid, line, quadratic, "
        "parabola, cubic, got 'spiral'; "
        "inner_lr must be 0 or more, got -1.0; "
        "clusters must be positive numbers ending in 1 (the root), got (4, 2): try (4, 2, 1); "
        "hidden must be positive numbers, got (0,)"
    )


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(InputError, match="no setting is called 'inner_lrs': did you mean 'inner_lr'"):
        TINY.with_settings(inner_lrs=0.1)


def test_a_config_of_a_newer_version_is_refused():
    data = to_json(TINY)
    data["learner"]["telepathy"] = True
    with pytest.raises(InputError, match=r"telepathy.*newer metagrove"):
        from_json(data)


def own_net(spec, *, key):
    return mg.per_example(eqx.nn.MLP(spec.x_shape[0], spec.y_dim, width_size=6, depth=1, key=key))


def own_loss(prediction, y, mask):
    return jnp.where(mask[:, None], jnp.abs(prediction - y), 0).sum() / mask.sum()


class WithTable(eqx.Module):
    """A net with arrays that are not trained, as a module of somebody else's may have."""

    weight: jax.Array
    table: jax.Array

    def __call__(self, x, mask=None):
        return x @ self.weight + self.table.sum()


def test_a_net_with_whole_numbers_in_it(tmp_path):
    def net(spec, *, key):
        return WithTable(jax.random.normal(key, (spec.x_shape[0], spec.y_dim)), jnp.arange(3))

    learner = mg.MAML(net=net, inner_steps=1)
    run = mg.train(dataclasses.replace(TINY, learner=learner).with_settings(steps=10), out=tmp_path / "own")
    np.testing.assert_array_equal(run.meta.table, [0, 1, 2])


@dataclasses.dataclass(frozen=True)
class Planes(Source):
    """Two inputs; support sets of three rows."""

    @property
    def spec(self):
        return Spec(x_shape=(2,), y_dim=1)

    def sample(self, key):
        slope_key, x_key = jax.random.split(key)
        slope, x = jax.random.normal(slope_key, (2, 1)), jax.random.normal(x_key, (8, 2))
        return Task(unpadded(x[:3], x[:3] @ slope), unpadded(x[3:], x[3:] @ slope), jnp.zeros((), int))


def test_own_net_loss_and_source(tmp_path):
    learner = hsml(net=own_net, loss=own_loss, embed="attention", attention_heads=2)
    run = mg.train(dataclasses.replace(TINY, source=Planes(), learner=learner), out=tmp_path / "own")
    assert run.adapt(np.eye(2), [1.0, 2.0]).predict([[1.0, 1.0]]).shape == (1, 1)
    with pytest.raises(InputError, match=r"made with its own source \(Planes\): pass it"):
        mg.load(tmp_path / "own")
    with pytest.raises(InputError, match="made with its own learner"):
        mg.load(tmp_path / "own", source=Planes())
    again = mg.load(tmp_path / "own", source=Planes(), learner=learner)
    np.testing.assert_array_equal(
        again.adapt(np.eye(2), [1.0, 2.0]).predict(np.eye(2)), run.adapt(np.eye(2), [1.0, 2.0]).predict(np.eye(2))
    )

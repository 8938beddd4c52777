"""The paper's four families, from inside the compiled step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove import Functions

SAMPLE = jax.jit(jax.vmap(Functions(shots=10, queries=5).sample))
TASKS = SAMPLE(jax.random.split(jax.random.key(0), 4000))
X = np.concatenate([TASKS.support.x, TASKS.query.x], axis=1)[..., 0]
Y = np.concatenate([TASKS.support.y, TASKS.query.y], axis=1)[..., 0]


def of_family(index):
    chosen = np.array(TASKS.family) == index
    return X[chosen], Y[chosen]


def test_families_are_equally_likely_and_x_is_uniform():
    counts = np.bincount(np.array(TASKS.family))
    assert len(counts) == 4
    assert abs(counts - 1000).max() < 120  # sd 27
    assert X.min() >= -5
    assert X.max() <= 5
    assert abs(X.mean()) < 0.1
    assert X.std() == pytest.approx(10 / np.sqrt(12), rel=0.02)


@pytest.mark.parametrize(
    ("index", "ranges"),
    [
        (1, [(-3, 3), (-3, 3)]),
        (2, [(-0.2, 0.2), (-2, 2), (-3, 3)]),
        (3, [(-0.1, 0.1), (-0.2, 0.2), (-2, 2), (-3, 3)]),
    ],
)
def test_polynomials_have_their_degree_and_the_papers_ranges(index, ranges):
    x, y = of_family(index)
    coefficients = np.array([np.polyfit(xs, ys, len(ranges) - 1) for xs, ys in zip(x, y, strict=True)])
    for column, (low, high) in zip(coefficients.T, ranges, strict=True):
        assert column.min() > low - 0.02
        assert column.max() < high + 0.02
        assert column.std() == pytest.approx((high - low) / np.sqrt(12), rel=0.08)
    fitted = np.array([np.polyval(c, xs) for c, xs in zip(coefficients, x, strict=True)])
    np.testing.assert_allclose(fitted, y, atol=1e-2)  # no noise


def test_sinusoids_have_a_vertical_offset_and_no_phase():
    source = Functions(families=("sinusoid",))
    keys = jax.random.split(jax.random.key(1), 2000)
    at = jnp.array([[0.0], [1.3], [-1.3]])
    offset, right, left = np.array(jax.vmap(lambda key: source.curve(key, at))(keys))[..., 0].T
    assert offset.min() > -0.01
    assert offset.max() < 2 * np.pi + 0.01
    assert offset.mean() == pytest.approx(np.pi, rel=0.05)
    np.testing.assert_allclose(right - offset, offset - left, atol=1e-4)  # odd around x = 0
    assert (right - offset).max() < 5.0
    assert (right - offset).min() > 0.1 * np.sin(0.8 * 1.3) - 1e-4


def test_curve_is_the_function_behind_the_task():
    source, key = Functions(), jax.random.key(3)
    task = source.sample(key)
    np.testing.assert_allclose(source.curve(key, task.query.x), task.query.y, rtol=1e-5, atol=1e-6)


def test_tasks_of_different_sizes():
    tasks = jax.vmap(Functions(shots=6, min_shots=3).sample)(jax.random.split(jax.random.key(0), 400))
    sizes = np.array(tasks.support.mask.sum(1))
    assert set(sizes) == {3, 4, 5, 6}
    assert tasks.query.mask.all()


def test_bad_settings_are_all_named_at_once():
    problems = Functions(families=("line", "spiral"), shots=0, queries=10, min_shots=3).validation_errors()
    assert len(problems) == 3
    assert "spiral" in problems[0]


def test_noise_changes_y_alone():
    keys = jax.random.split(jax.random.key(0), 4000)
    noisy = jax.jit(jax.vmap(Functions(shots=10, queries=5, noise=0.5).sample))(keys)
    assert np.array_equal(noisy.support.x, TASKS.support.x)
    parts = ((noisy.support.y, TASKS.support.y), (noisy.query.y, TASKS.query.y))
    noise = np.concatenate([(one - plain).ravel() for one, plain in parts])
    assert noise.std() == pytest.approx(0.5, rel=0.02)
    assert abs(noise.mean()) < 0.01
    assert Functions(noise=-1.0).validation_errors() == ["noise must be 0 or more, got -1.0"]

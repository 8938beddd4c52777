"""The mixture against plain loops in double precision, its predictions, its masks, and awkward tasks."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from metagrove.mixture.fit import draw_mixture, scale_to
from metagrove.mixture.predictor import predictor_of
from metagrove.mixture.prior import Mixture
from metagrove.nets.basis import BasisSettings, LinearBasis
from metagrove.task import Examples, pad_rows, unpadded


def some_rows(num=7, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    return unpadded(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((num, 2), (num, outputs))))


def some_mixture(clusters=3, outputs=1, rank=2, noise=0.3, **changes):
    rng = np.random.default_rng(1)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    mixture = Mixture(
        basis=LinearBasis(draw(2), jnp.array([2.0, 0.5])),
        mean=draw(clusters, 3, outputs),
        factor=draw(clusters, 3, outputs, rank),
        logits=draw(clusters),
        log_noise=jnp.log(noise * jnp.arange(1.0, outputs + 1)),
        y_shift=draw(outputs),
        y_scale=jnp.arange(2.0, outputs + 2),
    )
    return dataclasses.replace(mixture, **changes)


def dense_moments(mixture, x, cluster):
    """Mean and covariance of y at x in one cluster without noise, rows and outputs in one axis, by loops."""
    m = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), mixture)
    num, outputs = len(x), len(m.y_scale)
    phi = np.column_stack([np.ones(num), (np.asarray(x, float) - m.basis.shift) / m.basis.scale])
    mean = np.zeros(num * outputs)
    lines = np.zeros((num * outputs, m.factor.shape[-1]))
    for i in range(num):
        for o in range(outputs):
            mean[i * outputs + o] = m.y_shift[o] + m.y_scale[o] * (phi[i] @ m.mean[cluster, :, o])
            lines[i * outputs + o] = m.y_scale[o] * (phi[i] @ m.factor[cluster, :, o])
    return mean, lines @ lines.T


def dense_posterior(mixture, rows, x):
    """Evidence, probabilities, and mean and std of a new y at x, by conditioning dense Gaussians."""
    noise = np.asarray(mixture.noise, float)
    num, new = len(rows.x), len(x)
    everywhere = np.concatenate([rows.x, x])
    variance = np.tile(noise**2, num)
    evidence, means, variances = [], [], []
    for k in range(mixture.num_clusters):
        mean, covariance = dense_moments(mixture, everywhere, k)
        cut = num * len(noise)
        seen = covariance[:cut, :cut] + np.diag(variance)
        gap = np.asarray(rows.y, float).ravel() - mean[:cut]
        evidence.append(multivariate_normal(np.zeros(cut), seen).logpdf(gap))
        gain = np.linalg.solve(seen, covariance[:cut, cut:]).T
        means.append(mean[cut:] + gain @ gap)
        variances.append(np.diag(covariance[cut:, cut:] - gain @ covariance[:cut, cut:]))
    joint = np.array(evidence) + np.asarray(mixture.logits, float)
    p = np.exp(joint - np.logaddexp.reduce(joint))
    mean = p @ np.array(means)
    std = np.sqrt(p @ (np.array(variances) + (np.array(means) - mean) ** 2) + np.tile(noise**2, new))
    return np.array(evidence), p, mean.reshape(new, -1), std.reshape(new, -1)


@eqx.filter_jit
def predict(mixture, rows, x):
    posterior = mixture.posterior(rows)
    return posterior, mean_and_std(posterior, x)


def mean_and_std(posterior, x):
    predictor = predictor_of(posterior)
    return predictor(x), predictor.std(x)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("noise", [0.3, 0.01])
def test_equals_dense_double_precision(outputs, noise):
    mixture, rows, x = some_mixture(outputs=outputs, noise=noise), some_rows(outputs=outputs), some_rows(4, seed=5).x
    evidence, p, mean, std = dense_posterior(mixture, rows, np.asarray(x))
    posterior, (got_mean, got_std) = predict(mixture, rows, x)
    np.testing.assert_allclose(posterior.log_evidence, evidence, rtol=1e-3, atol=0.01)
    np.testing.assert_allclose(posterior.probabilities, p, atol=1e-2)
    np.testing.assert_allclose(got_mean, mean, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(got_std, std, rtol=1e-2, atol=1e-3)


def test_padding_changes_nothing():
    mixture, rows = some_mixture(), some_rows()
    padded = pad_rows(rows, 11)
    padded = Examples(padded.x + jnp.where(padded.mask, 0, 99.0)[:, None], padded.y, padded.mask)
    got, want = (jax.tree.leaves(predict(mixture, one, rows.x)) for one in (padded, rows))
    for got_leaf, want_leaf in zip(got, want, strict=True):
        np.testing.assert_allclose(got_leaf, want_leaf, rtol=1e-4, atol=1e-5)


def test_without_rows_the_posterior_is_the_prior():
    mixture = some_mixture()
    nothing = Examples(jnp.zeros((3, 2)), jnp.zeros((3, 1)), jnp.zeros(3, bool))
    posterior, _ = predict(mixture, nothing, nothing.x)
    np.testing.assert_allclose(posterior.log_evidence, 0, atol=1e-6)
    np.testing.assert_allclose(posterior.probabilities, jax.nn.softmax(mixture.logits), rtol=1e-5)
    np.testing.assert_allclose(posterior.coordinates, 0, atol=1e-6)


def test_mapped_over_tasks_equals_one_call_each():
    mixture = some_mixture()
    each = [some_rows(seed=seed) for seed in range(3)]
    mapped = jax.vmap(lambda one: predict(mixture, one, one.x))(jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))
    for i, one in enumerate(each):
        np.testing.assert_allclose(mapped[1][0][i], predict(mixture, one, one.x)[1][0], rtol=1e-3, atol=1e-4)


def test_noise_is_given_in_the_units_of_y():
    mixture = some_mixture(outputs=2).with_noise(0.05)
    np.testing.assert_allclose(mixture.noise, 0.05, rtol=1e-5)


AWKWARD = {
    "one row": (np.zeros((1, 2)), np.ones((1, 1))),
    "constant targets": (np.arange(10.0).reshape(5, 2), np.full((5, 1), 3.0)),
    "duplicate rows": (np.ones((6, 2)), np.ones((6, 1))),
    "duplicate inputs that disagree": (np.ones((2, 2)), np.array([[-5.0], [5.0]])),
    "huge targets": (np.arange(10.0).reshape(5, 2), 1e6 * np.arange(5.0)[:, None]),
    "huge inputs": (1e6 * np.arange(10.0).reshape(5, 2), np.arange(5.0)[:, None]),
}


@eqx.filter_jit
def everything(mixture, rows):
    mixture = mixture.with_noise(0.01)
    posterior = mixture.posterior(rows)
    grads = eqx.filter_grad(lambda mixture: mixture.log_marginal(rows))(mixture)
    return grads, posterior, mean_and_std(posterior, rows.x)


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("kind", ["chebyshev", "learned"])
def test_awkward_tasks_never_give_a_nan(name, kind):
    """Through a mixture made for such tasks alone, and through one made for others."""
    rows = pad_rows(unpadded(*(jnp.asarray(values, jnp.float32) for values in AWKWARD[name])), 7)
    settings, key = BasisSettings(kind, hidden=(4,), features=3), jax.random.key(0)
    drawn = draw_mixture(settings(np.eye(2), key=key), 1, 2, 3, key=key)
    for made_for in (rows, some_rows()):
        made = scale_to(drawn, settings, jax.tree.map(lambda leaf: leaf[None], made_for), key=key)
        results = everything(made, rows)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
        assert (results[-1][1] > 0).all()

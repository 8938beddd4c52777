"""Other packages on the same draws, if they are installed: statsmodels' MixedLM and GPBoost.

Neither predicts for a new group. MixedLM's estimates are conditioned on the support by `mixture.em`;
GPBoost is fitted anew with the support rows of all test tasks among its data, once for each draw.
"""

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from metagrove.baselines.data import Data, Draws, Rows
from metagrove.mixture import em

__all__ = ["PEERS"]

MOST_GROUPS = 300
"""Maximum number of training groups for MixedLM, whose fit is slow."""


def mixed_lm(data: Data, test: Draws) -> np.ndarray:
    """A linear mixed model with random intercept and slopes, (tasks * draws, n, 1)."""
    from statsmodels.regression.mixed_linear_model import MixedLM  # pyright: ignore[reportMissingImports]

    train = Rows(data.train.x[:MOST_GROUPS], data.train.y[:MOST_GROUPS], data.train.mask[:MOST_GROUPS])
    x, y = train.flat()
    groups = np.broadcast_to(np.arange(len(train.x))[:, None], train.mask.shape)[train.mask]
    design = with_intercept(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = MixedLM(y[:, 0], design, groups=groups, exog_re=design).fit(reml=False, method="lbfgs")
    prior = em.Prior(
        np.asarray(found.fe_params)[None], np.asarray(found.cov_re)[None], np.zeros(1), np.sqrt([float(found.scale)])
    )
    support, query = test.joined()
    weights = em.expect(prior, em.statistics_of(with_intercept(support.x), support.y, support.mask)).blended()
    return np.einsum("tnf,tf->tn", with_intercept(query.x), weights)[..., None]


def with_intercept(x: np.ndarray) -> np.ndarray:
    """[1, x] without linearly dependent columns, such as the last of a one-hot code."""
    return np.concatenate([np.ones_like(x[..., :1]), x[..., independent(x)]], -1)


def independent(x: np.ndarray) -> list[int]:
    """Indices of the columns that are linearly independent of a constant and the columns before them."""
    chosen: list[int] = []
    flat = x.reshape(-1, x.shape[-1])
    flat = flat[np.abs(flat).sum(1) > 0]
    for i in range(flat.shape[1]):
        basis = np.column_stack([np.ones(len(flat)), flat[:, [*chosen, i]]])
        if np.linalg.matrix_rank(basis) == basis.shape[1]:
            chosen.append(i)
    return chosen


def gpboost(data: Data, test: Draws) -> np.ndarray:
    """Boosted trees with a random intercept for each group, (tasks * draws, n, y)."""
    import gpboost as gpb  # pyright: ignore[reportMissingImports]

    x, y = data.train.flat()
    group = np.broadcast_to(np.arange(len(data.train.x))[:, None], data.train.mask.shape)[data.train.mask]
    num_tasks, num_draws = test.support.mask.shape[:2]
    names = len(data.train.x) + np.arange(num_tasks)[:, None]
    found = []
    for draw in range(num_draws):
        support, query = (
            Rows(rows.x[:, draw], rows.y[:, draw], rows.mask[:, draw]) for rows in (test.support, test.query)
        )
        new_x, new_y = support.flat()
        new_group = np.broadcast_to(names, support.mask.shape)[support.mask]
        labels = target(np.concatenate([y, new_y]), data)
        likelihood = "bernoulli_logit" if data.classifies else "gaussian"
        model = gpb.GPModel(group_data=np.concatenate([group, new_group]), likelihood=likelihood)
        rows = gpb.Dataset(np.concatenate([x, new_x]), labels)
        how = {"learning_rate": 0.05, "max_depth": 4, "min_data_in_leaf": 10, "verbose": -1, "num_threads": 1}
        booster = gpb.train(params=how, train_set=rows, gp_model=model, num_boost_round=100)
        flat = query.x.reshape(-1, query.x.shape[-1])
        query_group = np.broadcast_to(names, query.mask.shape).reshape(-1)
        output = booster.predict(data=flat, group_data_pred=query_group, predict_var=False, pred_latent=False)
        values = np.asarray(output["response_mean"]).reshape(query.mask.shape)
        found.append(as_prediction(values, data))
    return np.stack(found, 1).reshape(num_tasks * num_draws, *found[0].shape[1:])


def target(y: np.ndarray, data: Data) -> np.ndarray:
    """Values, or 1 for the second of two classes."""
    return y[:, 1] if data.classifies else y[:, 0]


def as_prediction(values: np.ndarray, data: Data) -> np.ndarray:
    """Values, or log-probabilities of two classes."""
    if not data.classifies:
        return values[..., None]
    p = np.clip(values, 1e-6, 1 - 1e-6)
    return np.log(np.stack([1 - p, p], -1))


Peer = Callable[[Data, Draws], Any]
PEERS: Mapping[str, tuple[str, Peer, bool]] = {
    # name: the package, what predicts, and whether it can classify
    "MixedLM": ("statsmodels", mixed_lm, False),
    "GPBoost": ("gpboost", gpboost, True),
}


def peers_for(data: Data) -> dict[str, Peer]:
    """The installed packages that support the targets of these data."""
    return {
        name: predict
        for name, (package, predict, classifies) in PEERS.items()
        if importlib.util.find_spec(package) and (classifies or not data.classifies)
    }

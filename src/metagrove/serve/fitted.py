"""A run fitted to one task of a person's own: it predicts in their units, and is kept in a folder of two files.

adapted.json          learner, columns, what was said of the task, checksums
adapted-….safetensors the predictor's arrays

No prediction depends on the other rows that are asked for: each row goes through the net alone, and a net that
normalises by statistics of a set always takes those of the support.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from metagrove import files
from metagrove.config.config import Config
from metagrove.config.encoding import learner_from_json, to_json
from metagrove.errors import InputError, RunError
from metagrove.learner import Learner, Predictor
from metagrove.nets.conv4 import Conv4
from metagrove.serve.rows import pad
from metagrove.tables.schema import Schema
from metagrove.task import Examples, Spec
from metagrove.train import checkpoint

ROWS_AT_ONCE, PICTURES_AT_ONCE = 1024, 16
"""Rows are always looked at so many at a time, filled up with zeros: one shape, compiled once."""


@dataclasses.dataclass(frozen=True)
class Fitted:
    """See the module's docstring."""

    learner: dict[str, Any]
    """Its settings as plain data."""
    spec: Spec
    schema: Schema
    """The columns; of images, the target alone, whose names are the task's classes."""
    predictor: Predictor
    support_size: int
    """Rows of the support with its padding."""
    about: dict[str, Any]
    """The task: its rows, clusters, the known tasks most like it; see `adapting`."""
    ignored: tuple[str, ...] | None = ()
    """Columns that may stand in a file and are not read; None if that is any."""

    def encoded(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """What the net says of encoded inputs, and its spread if it knows one."""
        size = PICTURES_AT_ONCE if len(self.spec.x_shape) > 1 else ROWS_AT_ONCE
        methods = ("__call__", "spread") if hasattr(self.predictor, "spread") else ("__call__",)
        found = [
            np.concatenate([self._piece(method, x[i : i + size], size) for i in starts(x, size)]) for method in methods
        ]
        return found[0], found[1] if len(found) > 1 else None

    def _piece(self, method: str, x: np.ndarray, size: int) -> np.ndarray:
        return np.asarray(_rows_alone(self.predictor, jnp.asarray(pad(x, size)), method))[: len(x)]

    def columns(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Predictions of encoded inputs in the person's units: TARGET and TARGET_sd, or TARGET and TARGET=LABEL."""
        values, spread = self.encoded(x)
        if self.schema.classifies:
            values = among(values[:, : len(self.schema.labels)])
        found = self.schema.decode_targets(values)
        if spread is None:
            return found
        names = [f"{name}_sd" for name in found if not self.schema.classifies or name != self.schema.targets[0].name]
        return found | dict(zip(names, self.schema.decode_std(spread[:, : len(names)]).T, strict=True))

    def predict(self, table: Any) -> dict[str, np.ndarray]:
        """The same of a table: a DataFrame, or a mapping of columns."""
        from metagrove.tables.read import from_frame

        read = from_frame(table)
        return self.columns(self.schema.encode_inputs(read.columns, read.where, read.rows.tolist()))

    def save(self, folder: str | Path) -> None:
        """Write both files; an older fit there is replaced in one move."""
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.save_error(path, error) from error
        checkpoint.save(path, "adapted", self.predictor, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """All but the arrays, as plain data."""
        return {
            "learner": self.learner,
            "spec": {"x_shape": list(self.spec.x_shape), "y_dim": self.spec.y_dim},
            "schema": self.schema.to_json(),
            "support_size": self.support_size,
            "about": self.about,
            "ignored": self.ignored,
        }


def load_fitted(folder: str | Path, *, learner: Learner | None = None) -> Fitted:
    """What `save` wrote. A fit of a person's own learner or net needs it passed."""
    path = Path(folder)
    if not (path / "adapted.json").exists():
        raise RunError(
            f"{path} holds no adapted task (it has no adapted.json): make one with `metagrove adapt RUN --support "
            f"FILE --out {path}`, or give --support as well"
        )
    about = files.read_json(path / "adapted.json")
    try:
        spec = Spec(tuple(about["spec"]["x_shape"]), about["spec"]["y_dim"])
        schema, size, made_with = Schema.from_json(about["schema"]), int(about["support_size"]), about["learner"]
        ignored = None if about["ignored"] is None else tuple(about["ignored"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{path / 'adapted.json'} lacks {error}: adapt again") from error
    like = blank(learner or learner_from_json(made_with, file_format=about["format"]), spec, size)
    predictor, about = checkpoint.load(path, "adapted", like)
    return Fitted(made_with, spec, schema, predictor, size, about["about"], ignored)


def blank(learner: Learner, spec: Spec, support_size: int) -> Predictor:
    """The shapes of a predictor."""

    def adapted(key: jax.Array) -> Predictor:
        x, y = jnp.zeros((support_size, *spec.x_shape)), jnp.zeros((support_size, spec.y_dim))
        support = Examples(x, y, jnp.ones(support_size, bool))
        return bind_support_statistics(learner.adapt(learner.init(spec, key=key), support, steps=0)[0], support)

    return eqx.filter_eval_shape(adapted, jax.random.key(0))


def fitted(
    config: Config,
    schema: Schema,
    predictor: Predictor,
    support: Examples,
    about: Mapping[str, Any],
    ignored: tuple[str, ...] | None,
) -> Fitted:
    """A predictor and the support it was adapted to, ready to be used and kept."""
    alone = bind_support_statistics(predictor, support)
    numbers = jax.tree.leaves(eqx.filter(alone, eqx.is_inexact_array))
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in numbers):
        raise InputError(
            "adapting to these rows led to numbers that are not finite: they lie too far from the training tasks', or "
            "the inner steps are too large; look for a slip in the rows, or give --steps 0"
        )
    learner = to_json(config)["learner"]
    return Fitted(learner, config.source.spec, schema, alone, len(support.mask), dict(about), ignored)


def bind_support_statistics(predictor: Predictor, support: Examples) -> Predictor:
    """The predictor with each convolutional net in it bound to the support's statistics."""

    def bind(part: Any) -> Any:
        if not is_conv4(part):
            return part
        copies = part.biases[0].shape[:-1]  # nets stacked along a first axis, BMAML's, get a support each
        each = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, copies + leaf.shape), support)
        return eqx.tree_at(lambda net: net.context, part, each, is_leaf=lambda leaf: leaf is None)

    return jax.tree.map(bind, predictor, is_leaf=is_conv4)


def is_conv4(part: Any) -> bool:
    """Is this a net that normalises by statistics of a set?"""
    return isinstance(part, Conv4)


def among(log_probabilities: np.ndarray) -> np.ndarray:
    """Log-probabilities given that it is one of these classes."""
    shifted = log_probabilities - log_probabilities.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def starts(x: np.ndarray, size: int) -> range:
    """Where the pieces of `size` rows begin."""
    return range(0, len(x), size)


@eqx.filter_jit
def _rows_alone(predictor: Predictor, x: jax.Array, method: str) -> jax.Array:
    fn = getattr(predictor, method)
    if any(map(is_conv4, jax.tree.leaves(predictor, is_leaf=is_conv4))):  # bound to the support, and shares it
        return fn(x, jnp.ones(len(x), bool))
    return jax.vmap(lambda row: fn(row[None], jnp.ones(1, bool))[0])(x)

"""Export of a fitted task as plain layers, for use without this package; docs/export.md has a reader in NumPy.

model.json           columns, layers in order (names of arrays, activation), meaning of the outputs
model-….safetensors  the arrays

A predictor defines how its modulations are folded into the weights, so that only layers x W + b remain (`as_layers`).
"""

from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from metagrove import files
from metagrove.files import Json
from metagrove.nets.predictors import PlainLayers, plain_layers
from metagrove.serve.fitted_task import FittedTask
from metagrove.training import checkpoint

__all__ = ["export"]

PARTS = ("weight", "bias")


def export(fitted: FittedTask, folder: str | Path) -> None:
    """Export a fitted task as plain layers, which need no metagrove to predict.

    Args:
        fitted: The fitted task.
        folder: Folder to write model.json and its arrays to.

    Raises:
        InputError: If the predictor cannot be written as plain layers.
        RunError: If the folder cannot be written.

    Example:
        >>> import metagrove as mg
        >>> mg.export(mg.load_fitted("my-task"), "exported")  # doctest: +SKIP
    """
    folder = Path(folder)
    plain: PlainLayers = jax.device_get(eqx.filter_jit(plain_layers)(fitted.predictor))
    arrays = {
        f"layers.{i}.{part}": array
        for i, both in enumerate(plain.layers)
        for part, array in zip(PARTS, both, strict=True)
    }
    if plain.std is not None:
        arrays |= {f"std.{part}": array for part, array in zip(PARTS, plain.std, strict=True)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.save_error(folder, error) from error
    checkpoint.save(folder, "model", arrays, description(fitted, plain))


def description(fitted: FittedTask, plain: PlainLayers) -> Json:
    """The content of model.json without the record of the arrays."""
    columns = fitted.schema.to_json()
    activations = (*(plain.activations or ("relu",) * (len(plain.layers) - 1)), "none")
    variance = {part: f"std.{part}" for part in PARTS} | {"noise": np.asarray(plain.noise).tolist()}
    return {
        "inputs": columns["inputs"],
        "targets": columns["targets"],
        "image": list(fitted.spec.x_shape) if fitted.spec.is_image else None,
        "layers": [
            {
                "kind": "dense" if weight.ndim <= 2 + bool(plain.members) else "conv",
                **{part: f"layers.{i}.{part}" for part in PARTS},
                "shape": list(weight.shape),
                "activation": activation,
            }
            for i, ((weight, _), activation) in enumerate(zip(plain.layers, activations, strict=True))
        ],
        "output": "log_softmax" if plain.classifies else "values",
        "members": plain.members,
        "noise_variance": float(plain.noise_variance),
        "calibration": files.as_json(fitted.calibration),
        "std": None if plain.std is None else variance,
        "about": fitted.about,
    }

"""An adapted task as plain layers, for use without this package: docs/export.md has a reader in NumPy.

model.json           columns, layers in order (names of arrays, activation), what the last one's numbers mean
model-….safetensors  the arrays

Whatever a method wraps around its net is multiplied out, so that only layers x W + b remain:
MT-Net's transforms (W T, b T), MUMOMAML's modulation (a scale and a shift of each unit), the neural process's encoding
of the support (a part of the first bias), ProtoNet's distances (-‖f - c‖² = 2 f·c - ‖c‖² - ‖f‖², whose last term the
softmax does not see), and normalisation by the support's statistics (a scale and a shift of each channel).
"""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from metagrove import files
from metagrove.errors import InputError
from metagrove.nets.conv4 import EPSILON, Conv4, affine, convolve
from metagrove.nets.max_pool import max_pool
from metagrove.nets.mlp import MLP
from metagrove.rivals.bmaml import Particles
from metagrove.rivals.mt_net import Transformed
from metagrove.rivals.mumomaml import Modulated
from metagrove.rivals.neural_process import Conditioned
from metagrove.rivals.protonet import NEVER, Prototypes
from metagrove.serve.fitted import Fitted
from metagrove.train import checkpoint

PARTS = ("weight", "bias")
Layer = tuple[np.ndarray, np.ndarray]
"""A matrix (or 3×3 kernel) and a bias."""


@dataclasses.dataclass(frozen=True)
class Plain:
    """Layers with ReLU between them; convolutions come first, each followed by 2×2 max pooling."""

    layers: tuple[Layer, ...]
    classifies: bool
    """The last layer's numbers go through a log-softmax."""
    members: int = 0
    """If set, every array has a first axis of so many nets, whose answers are averaged."""
    noise_variance: float = 0.0
    """Added to the variance between members to give that of a new value."""


def export(fitted: Fitted, folder: str | Path) -> None:
    """Write the layers and all it takes to use them."""
    folder = Path(folder)
    plain = plain_layers(fitted.predictor)
    arrays = {
        f"layers.{i}.{part}": array
        for i, both in enumerate(plain.layers)
        for part, array in zip(PARTS, both, strict=True)
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.save_error(folder, error) from error
    checkpoint.save(folder, "model", arrays, description(fitted, plain))


def description(fitted: Fitted, plain: Plain) -> dict[str, Any]:
    """Everything but the arrays."""
    columns, last = fitted.schema.to_json(), len(plain.layers) - 1
    return {
        "inputs": columns["inputs"],
        "targets": columns["targets"],
        "image": list(fitted.spec.x_shape) if len(fitted.spec.x_shape) == 3 else None,
        "layers": [
            {
                "kind": "dense" if weight.ndim <= 2 + bool(plain.members) else "conv",
                **{part: f"layers.{i}.{part}" for part in PARTS},
                "shape": list(weight.shape),
                "activation": "none" if i == last else "relu",
            }
            for i, (weight, _) in enumerate(plain.layers)
        ],
        "output": "log_softmax" if plain.classifies else "values",
        "members": plain.members,
        "noise_variance": plain.noise_variance,
        "about": fitted.about,
    }


def plain_layers(predictor: Any) -> Plain:
    """Multiply a predictor out."""
    match predictor:
        case MLP():
            return Plain(pairs(predictor), predictor.classifies)
        case Conv4():
            head = np.asarray(predictor.head_weight), np.asarray(predictor.head_bias)
            return Plain((*conv_layers(predictor), head), classifies=True)
        case Transformed(net=MLP() as net):
            transforms = [np.asarray(t) for t in predictor.transforms] or map(np.eye, net.layer_sizes)
            layers = tuple((w @ t, b @ t) for (w, b), t in zip(pairs(net), transforms, strict=True))
            return Plain(layers, net.classifies)
        case Modulated(net=MLP() as net):
            return Plain(modulated(net, predictor), net.classifies)
        case Conditioned():
            return Plain(conditioned(predictor), predictor.decoder.classifies)
        case Prototypes(net=MLP() | Conv4() as net):
            features = pairs(net) if isinstance(net, MLP) else conv_layers(net)
            return Plain((*features, prototype_head(predictor)), classifies=True)
        case Particles(nets=MLP() as net):
            return particle_layers(predictor, net)
        case _:
            raise InputError(
                f"{type(predictor).__name__} cannot be written as plain layers: export serves the package's nets for "
                "tables, and Conv4 by all methods but BMAML and matching networks"
            )


def pairs(net: MLP) -> tuple[Layer, ...]:
    """The layers of a net; one without a head has those below it."""
    both = zip(net.weights, net.biases, strict=True)
    return tuple((np.asarray(w), np.asarray(b)) for w, b in both if w is not None)


def modulated(net: MLP, predictor: Modulated) -> tuple[Layer, ...]:
    """Each hidden layer with its code multiplied in."""
    *hidden, head = pairs(net)
    layers = []
    for (weight, bias), code in zip(hidden, map(np.asarray, predictor.codes), strict=True):
        scale, shift = scale_and_shift(code, predictor.form)
        layers.append((weight * scale, bias * scale + shift))
    return (*layers, head)


def scale_and_shift(code: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    """What a code does to each unit."""
    if form == "film":
        gamma, beta = np.split(code, 2)
        return 1 + gamma, beta
    scale = jax.nn.sigmoid(code) if form == "sigmoid" else jax.nn.softmax(code)
    return np.asarray(scale), np.zeros_like(code)


def conditioned(predictor: Conditioned) -> tuple[Layer, ...]:
    """The decoder, what it was told of the support moved into its first bias."""
    (weight, bias), *later = pairs(predictor.decoder)
    told = np.asarray(predictor.representation)
    x_dim = len(weight) - len(told)
    return ((weight[:x_dim] * predictor.input_scale, bias + told @ weight[x_dim:]), *later)


def prototype_head(predictor: Prototypes) -> Layer:
    """2 cᵀ and -‖c‖²; a class that the support does not have is never said."""
    known, centers = np.asarray(predictor.known), np.asarray(predictor.centers)
    weight, bias = np.where(known, 2 * centers.T, 0), np.where(known, -np.square(centers).sum(1), NEVER)
    return weight.astype(np.float32), bias.astype(np.float32)


def particle_layers(predictor: Particles, nets: MLP) -> Plain:
    """All members' layers; biases have an axis for rows, so that x W + b serves one net and many."""
    layers = tuple((weight, bias[:, None]) for weight, bias in pairs(nets))
    noise = 0.0 if predictor.classifies else float(np.exp(-np.asarray(predictor.log_noise_precision)).mean())
    return Plain(layers, predictor.classifies, len(layers[0][0]), noise)


def conv_layers(net: Conv4) -> tuple[Layer, ...]:
    """The blocks of a net that is bound to its support, normalisation multiplied into kernel and bias."""
    return jax.device_get(_conv_layers(net))


@eqx.filter_jit
def _conv_layers(net: Conv4) -> tuple[Any, ...]:
    assert net.context is not None
    layers, x = [], net.context.x
    for number, (kernel, bias) in enumerate(zip(net.kernels, net.biases, strict=True)):
        values, mean, variance = convolve(x, kernel, net.context.mask, pixels=number == 0)
        scale = jax.lax.rsqrt(variance + EPSILON)
        shift = bias - mean * scale
        layers.append((kernel * scale[None, None, None], shift))
        x = jax.nn.relu(affine(max_pool(values), scale, shift))
    return tuple(layers)

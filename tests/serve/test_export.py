"""Export: plain layers that say what the predictor says, read without this package as docs/export.md shows."""

import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metagrove.errors import InputError, RunError
from metagrove.files import read_json
from metagrove.mixture.predictor import BasisPredictor
from metagrove.nets.basis import BASES, BasisSettings
from metagrove.nets.basis_layers import feature_layers
from metagrove.nets.conv4 import Conv4Net
from metagrove.nets.layers import without_head
from metagrove.nets.mlp import MLP
from metagrove.nets.modulation import Modulated
from metagrove.nets.predictors import bind_support, plain_layers
from metagrove.rivals.bmaml import Particles
from metagrove.rivals.matching_net import Matched
from metagrove.rivals.mt_net import Transformed
from metagrove.rivals.neural_process import Conditioned
from metagrove.rivals.protonet import Prototypes
from metagrove.serve.export import export
from metagrove.serve.fitted_task import FittedTask
from metagrove.tables.schema import Column, Schema
from metagrove.task import Spec, unpadded
from metagrove.training.checkpoint import load_arrays

KEYS = jax.random.split(jax.random.key(0), 12)
NUMBERS = (Column("a b", "number", 3.0, 2.0), Column("größe", "number", -1.0, 0.5))
COLOUR = Column("colour", "category", categories=("red", "grün", "blue"))
VALUES = Schema((*NUMBERS, COLOUR), (Column("y", "number", 5.0, 10.0), Column("z", "number", -2.0, 0.1)))
CLASSES = Schema((*NUMBERS, COLOUR), (Column("kind", "category", categories=("no", "yes")),))
TABLE = {
    "a b": np.array([1.0, 4.0, 3.0, 9.0]),
    "größe": np.array([-1.0, 0.0, -2.0, 0.3]),
    "colour": np.array(["red", "blue", "grün", "red"]),
}


def mlp(classifies=False, key=KEYS[0]):
    return MLP((5, 7, 6, 2), 0.6, classifies=classifies, key=key)


def particles(classifies):
    nets = eqx.filter_vmap(lambda key: mlp(classifies, key))(KEYS[:3])
    return Particles(nets, jnp.array([0.0, 1.0, 2.0]), jnp.zeros(3), classifies)


def modulated(form):
    sizes = (14, 12) if form == "film" else (7, 6)
    return Modulated(mlp(), tuple(jax.random.normal(KEYS[2], (size,)) for size in sizes), form)


def grove(kind):
    rows = np.asarray(jax.random.normal(KEYS[7], (30, 5)))
    basis = BasisSettings(kind, degree=3, knots=4, hidden=(6,), features=4)(rows, key=KEYS[8])
    weight = jax.random.normal(KEYS[9], (basis.num_features, 2))
    root = jax.random.normal(KEYS[10], (3, basis.num_features, 2))
    return BasisPredictor(basis, weight, root, jnp.array([0.1, 0.3]), jnp.array([2.0, -1.0]), jnp.array([1.5, 0.5]))


PREDICTORS = {
    "net": mlp(),
    "classifier": mlp(classifies=True),
    "mt-net": Transformed(mlp(), tuple(jax.random.normal(KEYS[3], (size, size)) for size in (7, 6, 2))),
    "mt-net without transforms": Transformed(mlp(), ()),
    "film": modulated("film"),
    "sigmoid": modulated("sigmoid"),
    "softmax": modulated("softmax"),
    "neural process": Conditioned(MLP((9, 6, 2), 0.6, key=KEYS[4]), jax.random.normal(KEYS[5], (4,)), 0.2),
    "protonet": Prototypes(
        without_head(mlp(), "it"), jax.random.normal(KEYS[6], (2, 6)), known=jnp.array([True, True])
    ),
    "protonet, one class unknown": Prototypes(
        without_head(mlp(), "it"), jax.random.normal(KEYS[6], (2, 6)), known=jnp.array([True, False])
    ),
    **{f"grove, {kind}": grove(kind) for kind in BASES},
    "bmaml": particles(classifies=False),
    "bmaml classifier": particles(classifies=True),
}


def fitted(predictor, schema):
    return FittedTask({}, schema.spec, schema, predictor, 4, {"run": "made up"})


@pytest.fixture(scope="module")
def documented():
    """The reader of docs/export.md, by itself."""
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    block = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)[1]
    code, _ = block.split("new = ")
    names = {}
    exec(compile(code, "export.md", "exec"), names)
    assert "metagrove" not in code
    return code, names["predict"], names["ACTIVATIONS"]


def test_the_reader_is_short(documented):
    body = documented[0].split("def predict")[1].split("\n\n\n")[0]
    assert len(body.splitlines()) <= 20


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_documented_reader_says_what_the_predictor_says(name, documented, tmp_path):
    predictor = PREDICTORS[name]
    classifies = plain_layers(predictor).classifies
    task = fitted(predictor, CLASSES if classifies else VALUES)
    export(task, tmp_path / "model")
    expected = np.asarray(eqx.filter_jit(predictor)(jnp.asarray(task.schema.encode_inputs(TABLE, "here"))))
    expected = np.exp(expected) if classifies else expected * [[10.0, 0.1]] + [[5.0, -2.0]]
    np.testing.assert_allclose(documented[1](tmp_path / "model", TABLE), expected, rtol=1e-4, atol=1e-6)


def test_variance_of_a_new_value(tmp_path):
    task = fitted(PREDICTORS["bmaml"], VALUES)
    export(task, tmp_path)
    arrays, model = load_arrays(tmp_path, "model")
    x = rows = task.schema.encode_inputs(TABLE, "here")
    for i, layer in enumerate(model["layers"]):
        x = x @ arrays[f"layers.{i}.weight"] + arrays[f"layers.{i}.bias"]
        x = np.maximum(x, 0) if layer["activation"] == "relu" else x
    std = task.predictor.std(jnp.asarray(rows))
    np.testing.assert_allclose(np.sqrt(x.var(0) + model["noise_variance"]), std, rtol=1e-4)


def test_variance_of_a_new_value_of_grove(tmp_path, documented):
    task = fitted(PREDICTORS["grove, spline"], VALUES)
    export(task, tmp_path)
    arrays, model = load_arrays(tmp_path, "model")
    x = rows = task.schema.encode_inputs(TABLE, "here")
    for layer in model["layers"][:-1]:
        x = documented[2][layer["activation"]](x @ arrays[layer["weight"]] + arrays[layer["bias"]])
    values = x @ arrays[model["std"]["weight"]] + arrays[model["std"]["bias"]]
    variance = np.square(values).reshape(len(x), -1, 2).sum(1) + np.square(model["std"]["noise"])
    np.testing.assert_allclose(np.sqrt(variance), task.predictor.std(jnp.asarray(rows)), rtol=1e-4)


def numpy_conv4(model, arrays, images):
    """The convolutional layers as docs/export.md describes them."""
    x = images
    for layer in model["layers"]:
        weight, bias = arrays[layer["weight"]], arrays[layer["bias"]]
        if layer["kind"] == "conv":
            n, h, w, _ = x.shape
            around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            shifted = [around[:, i : i + h, j : j + w] @ weight[i, j] for i in range(3) for j in range(3)]
            x = np.maximum(sum(shifted) + bias, 0)[:, : h // 2 * 2, : w // 2 * 2]
            x = x.reshape(n, h // 2, 2, w // 2, 2, -1).max((2, 4))
        else:
            x = x.reshape(len(x), -1) @ weight + bias
    return x


@pytest.mark.parametrize("wrap", ["net", "protonet"])
def test_convolutions_with_the_supports_statistics(wrap, tmp_path):
    blocks = 1 if wrap == "protonet" else 2
    spec = Spec((9, 9, 3), 2)
    net = Conv4Net(filters=4, blocks=blocks)(spec, key=KEYS[7])
    support = unpadded(jax.random.uniform(KEYS[8], (4, 9, 9, 3)), jnp.eye(2)[jnp.array([0, 1, 0, 1])])
    if wrap == "protonet":
        net = Prototypes(without_head(net, "it"), jax.random.normal(KEYS[6], (2, 64)), jnp.array([True, True]))
    predictor = bind_support(net, support, "support")
    classes = Schema((), (Column("class", "category", categories=("cat", "dog")),))
    export(FittedTask({}, spec, classes, predictor, 4, {}), tmp_path)
    arrays, model = load_arrays(tmp_path, "model")
    assert [layer["kind"] for layer in model["layers"]] == ["conv"] * blocks + ["dense"]
    assert model["image"] == [9, 9, 3]
    images = np.asarray(jax.random.uniform(KEYS[9], (3, 9, 9, 3)))
    logits = numpy_conv4(model, arrays, images)
    ours = np.asarray(eqx.filter_jit(predictor)(jnp.asarray(images)))
    np.testing.assert_allclose(logits - logits[:, :1], ours - ours[:, :1], rtol=1e-3, atol=1e-4)


def test_what_has_no_plain_layers_is_refused():
    matched = Matched(mlp(), jnp.zeros((3, 6)), jnp.zeros((3, 2)), jnp.ones(3, bool), 10.0)
    with pytest.raises(InputError, match="Matched cannot be written as plain layers"):
        plain_layers(matched)


def test_a_model_is_sealed(tmp_path):
    export(fitted(mlp(), VALUES), tmp_path)
    assert read_json(tmp_path / "model.json")["layers"][0] == {
        "kind": "dense",
        "weight": "layers.0.weight",
        "bias": "layers.0.bias",
        "shape": [5, 7],
        "activation": "relu",
    }
    (weights,) = tmp_path.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(RunError, match="is damaged: it has"):
        load_arrays(tmp_path, "model")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written"):
        export(fitted(mlp(), VALUES), tmp_path / "file" / "model")


def test_features_without_layers_are_refused_in_words():
    with pytest.raises(InputError, match="object cannot be exported as layers"):
        feature_layers(object())

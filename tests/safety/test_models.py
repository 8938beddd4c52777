"""Models from strangers: every one is refused in words or is the same model."""

import json
import os
import resource
import shutil
import time

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from conftest import TINY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strangers import at, edited, nested, seal, with_weights, without

import metagrove as mg
from metagrove.config.config import Phase, check_config
from metagrove.config.presets import PRESETS
from metagrove.config.validate import setting_errors
from metagrove.errors import MetagroveError, quoted, visible
from metagrove.training import checkpoint
from metagrove.training.folders import shipped
from metagrove.training.loop import train

LEARNER = "config.learner"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "good"
    assert train(TINY.with_settings(steps=20), folder)
    return folder


BAD_RUNS = {
    "no config": (without("config"), "config is missing"),
    "config is null": (at("config", None), "config is missing"),
    "config is a list": (at("config", []), r"config must be an object, got a list"),
    "no learner": (without(LEARNER), r"config.learner must be an object with a name"),
    "learner is a list": (at(LEARNER, ["hsml"]), r"config.learner must be an object with a name.*got a list"),
    "learner without name": (without(f"{LEARNER}.name"), r"config.learner.name must be the name"),
    "unknown learner": (at(f"{LEARNER}.name", "hsmll"), r"config.learner.name: no learner.*mean 'hsml'"),
    "unknown loss": (at(f"{LEARNER}.loss", "l1"), r"config.learner.loss: no loss is called 'l1'"),
    "loss is a number": (at(f"{LEARNER}.loss", 3), r"config.learner.loss must be the name of a loss, got 3"),
    "net is text": (at(f"{LEARNER}.net", "mlp"), r"config.learner.net must be an object"),
    "net of another kind": (at(f"{LEARNER}.net.name", "gru"), r"config.learner.net.name: no net is called 'gru'"),
    "source is null": (at("config.source", None), r"config.source must be an object"),
    "no training": (without("config.training"), r"config.training must be an object with settings"),
    "unknown setting": (at(f"{LEARNER}.inner_step", 3), r"no setting is called 'inner_step'.*mean 'inner_steps'"),
    "text as number": (at(f"{LEARNER}.inner_lr", "fast"), r"config.learner.inner_lr must be a number, got 'fast'"),
    "float as count": (at(f"{LEARNER}.inner_steps", 2.5), r"inner_steps must be a whole number, got 2.5"),
    "bool as count": (at(f"{LEARNER}.inner_steps", True), r"inner_steps must be a whole number, got true"),
    "count as bool": (at(f"{LEARNER}.first_order", 1), r"first_order must be true or false, got 1"),
    "null as tuple": (at(f"{LEARNER}.cluster.clusters", None), r"cluster.clusters must be a list, got null"),
    "dict as tuple": (at(f"{LEARNER}.cluster.clusters", {}), r"cluster.clusters must be a list, got an object"),
    "text in a tuple": (at(f"{LEARNER}.net.hidden", [8, "8"]), r"net.hidden\[1\] must be a whole number, got '8'"),
    "1,000 layers": (at(f"{LEARNER}.net.hidden", [8] * 1000), r"net.hidden must have at most 64 entries"),
    "unknown choice": (at(f"{LEARNER}.embed.cell", "rnn"), r"embed.cell must be one of gru, lstm, got 'rnn'"),
    "10^12 shots": (at("config.source.shots", 10**12), r"source.shots must be from 0 to 100,000"),
    "10^9 inner steps": (at(f"{LEARNER}.inner_steps", 10**9), r"inner_steps must be from 0 to 10,000"),
    "-3 inner steps": (at(f"{LEARNER}.inner_steps", -3), r"inner_steps must be from 0 to 10,000, got -3"),
    "10^4000 steps": (
        at("config.training.steps", 10**4000),
        r"training.steps must be.*got a whole number of 1\d+ bits",
    ),
    "10^400 as rate": (at(f"{LEARNER}.inner_lr", 10**400), r"inner_lr must be a finite number"),
    "long text": (at(f"{LEARNER}.inner_lr", "x" * 10**6), r"got 'x+… \(1,000,000 characters\)"),
    "phases of text": (at("config.training.phases", "all"), r"training.phases must be a list"),
    "training with a name": (at("config.training.name", "x"), r"config.training.name: no setting is called 'name'"),
    "60 wrong entries": (at(f"{LEARNER}.net.hidden", ["a"] * 60), r"and 50 more"),
    "growth is a list": (at("config.training.growth", [1]), r"training.growth must be an object"),
    "provenance is text": (at("provenance", "me"), r"provenance must be an object"),
    "format is text": (at("format", "2"), "has no format number"),
    "format is true": (at("format", True), "has no format number"),
    "format of tomorrow": (at("format", 99), "upgrade metagrove"),
    "own learner": (at(LEARNER, {"custom": "Evil"}), r"made with its own learner \(Evil\)"),
}
BAD_BESTS = {
    "no weights": (without("weights"), "weights is missing"),
    "weights are a number": (at("weights", 3), "weights must be text, got 3"),
    "NUL in the path": (at("weights", "best\0.safetensors"), r"expected a file of this folder"),
    "absolute path": (at("weights", "/dev/zero"), r"expected a file of this folder"),
    "path outside": (at("weights", "../good/best.safetensors"), r"expected a file of this folder"),
    "no checksum": (without("sha256"), "sha256 is missing"),
    "wrong size": (at("bytes", 10), "is damaged: it has .* bytes, expected 10"),
    "no validation": (without("validation"), "validation is missing"),
    "validation is a list": (at("validation", [1]), "validation must be an object, got a list"),
    "no inner steps": (without("validation.steps"), "validation.steps is missing"),
    "10^9 inner steps": (at("validation.steps", 10**9), "validation.steps must be from 0 to 10,000"),
    "-1 inner steps": (at("validation.steps", -1), "validation.steps must be from 0"),
    "clusters are text": (at("clusters", "3"), "clusters must be a list"),
    "10^12 clusters": (at("clusters", [10**12, 1]), "clusters must be at most 64 numbers from 1"),
    "other levels": (at("clusters", [3, 1]), "clusters on 2 levels"),
    "other clusters": (at("clusters", [4, 2, 1]), "does not fit the run's settings"),
    "step is text": (at("step", "last"), "step must be a whole number"),
}


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        *(pytest.param("run.json", *case, id=f"run: {name}") for name, case in BAD_RUNS.items()),
        *(pytest.param("best.json", *case, id=f"best: {name}") for name, case in BAD_BESTS.items()),
    ],
)
def test_a_bad_file_is_refused_in_words(model, tmp_path, file, change, words):
    with pytest.raises(MetagroveError, match=words) as caught:
        mg.load(edited(model, tmp_path, file, change))
    assert len(str(caught.value)) < 700 + len(str(tmp_path))


def test_all_problems_of_a_config_are_named_at_once(model, tmp_path):
    def change(data):
        data["config"]["learner"] |= {"inner_lr": "fast", "inner_steps": -3, "loss": "l1"}
        data["config"]["source"]["shots"] = None
        data["config"]["training"]["growth"] = {"growth_t": []}

    with pytest.raises(MetagroveError) as caught:
        mg.load(edited(model, tmp_path, "run.json", change))
    problems = str(caught.value).split("; ")
    assert [line.split(" ")[0].rstrip(":") for line in problems] == [
        "config.source.shots",
        "config.learner.loss",
        "config.learner.inner_lr",
        "config.learner.inner_steps",
        "config.training.growth.growth_t",
    ]


@pytest.mark.parametrize("file", ["run.json", "best.json"])
@pytest.mark.parametrize("depth", [100, 900, 10_000, 1_000_000])
def test_deep_nesting_is_refused(model, tmp_path, file, depth):
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).write_text(nested(depth))
    with pytest.raises(MetagroveError, match="nested more than 64 deep"):
        mg.load(tmp_path)


def arrays_of(model):
    return checkpoint.load_arrays(model, "best")[0]


@pytest.mark.parametrize(
    ("convert", "words"),
    [
        (lambda a: (100 * a).astype(np.int32), r"is int32, expected float32"),
        (lambda a: a > 0, r"is bool, expected float32"),
        (lambda a: np.full_like(a, np.nan), r"has values that are not finite"),
        (lambda a: np.where(a == a.max(), np.inf, a).astype(np.float32), r"has values that are not finite"),
        (lambda a: np.full(a.shape, 1e300), r"has values that are not finite"),
        (lambda a: a[..., None], r"instead of"),
    ],
)
def test_weights_that_are_no_weights_are_refused(model, tmp_path, convert, words):
    arrays = arrays_of(model)
    name = max(arrays, key=lambda one: arrays[one].size)
    content = safetensors.numpy.save({**arrays, name: convert(arrays[name])})
    with pytest.raises(MetagroveError, match=rf"does not fit the run's settings: {name}.*{words}"):
        mg.load(with_weights(model, tmp_path, content))


def save_as(arrays, dtype, code):
    """A safetensors file of arrays of a type that the NumPy interface does not write."""
    header, data = {}, b""
    for name, array in arrays.items():
        part = np.asarray(array).astype(dtype).tobytes()
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(("dtype", "code"), [(jnp.bfloat16, "BF16"), (np.float16, "F16"), (np.float64, "F64")])
def test_other_floating_point_types_are_converted(model, tmp_path, dtype, code):
    arrays = arrays_of(model)
    run = mg.load(with_weights(model, tmp_path, save_as(arrays, dtype, code)))
    for name, leaf in checkpoint.named_leaves(run.meta).items():
        assert leaf.dtype == jnp.float32
        np.testing.assert_array_equal(leaf, arrays[name].astype(dtype).astype(np.float32))


def test_weights_of_8_bits_are_refused_in_words(model, tmp_path):
    content = save_as(arrays_of(model), jnp.float8_e4m3fn, "F8_E4M3")
    with pytest.raises(MetagroveError, match=r"has arrays of a type that is not read: '.* F8_E4M3'"):
        mg.load(with_weights(model, tmp_path, content))


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0[[[[[[[[", (2**60).to_bytes(8, "little")])
def test_files_that_are_not_safetensors_are_refused(model, tmp_path, content):
    with pytest.raises(MetagroveError, match="is not a safetensors file"):
        mg.load(with_weights(model, tmp_path, content))


def weights_of(folder):
    return folder / json.loads((folder / "best.json").read_text())["weights"]


@pytest.mark.parametrize("file", ["run.json", "best.json", "weights"])
@pytest.mark.parametrize("what", ["fifo", "device", "outside", "folder", "huge"])
def test_only_plain_files_of_the_folder_are_opened(model, tmp_path, file, what):
    folder = tmp_path / "run"
    shutil.copytree(model, folder)
    path = weights_of(folder) if file == "weights" else folder / file
    path.rename(tmp_path / "real")
    match what:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "outside":
            path.symlink_to(tmp_path / "real")
        case "folder":
            path.mkdir()
        case "huge":
            with path.open("wb") as sparse:
                sparse.truncate(10**11)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MetagroveError):
        mg.load(folder)
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


def test_a_link_within_the_folder_is_followed(model, tmp_path):
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    path = weights_of(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to("elsewhere")
    assert mg.load(tmp_path).inner_steps == mg.load(model).inner_steps


@pytest.mark.parametrize("name", ["../../good", "x" * 100_000, "\0", ".."])
def test_a_served_baseline_is_a_folder_of_the_run(model, tmp_path, name):
    shutil.copytree(model, tmp_path / "run")
    seal(tmp_path / "run" / "served.json", {"format": 2, "name": name, "label": "x"})
    with pytest.raises(MetagroveError, match="has no learner"):
        mg.load(tmp_path / "run").using()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (at("step", 10**18), "step must be from 0 to 20"),
        (at("step", -1), "step must be from 0 to 20"),
        (at("step", 10), "is of step 10, its arrays of step 20"),
        (at("clusters", [10**12, 1]), "clusters must be at most 64 numbers from 1"),
        (at("clusters", [0, 2, 1]), "clusters must be at most 64 numbers from 1"),
        (at("clusters", [3] * 100), "clusters must be at most 64 numbers from 1"),
        (at("clusters", [4, 2, 1]), "does not fit the run's settings"),
        (at("not_better", -5), "not_better must be from 0 to 20"),
        (at("marks", [{"lines": 3, "sha256": ""}, {"lines": 2, "sha256": ""}]), "marks must have increasing numbers"),
        (at("watch.blocks", [[1.0]]), "watch.blocks and watch.before must have"),
        (at("watch.before", [[0, 1.0]]), "watch.blocks and watch.before must have"),
    ],
)
def test_a_checkpoint_from_a_stranger_is_not_resumed(model, tmp_path, change, words):
    with pytest.raises(MetagroveError, match=words):
        train(TINY.with_settings(steps=20), edited(model, tmp_path, "last.json", change), resume=True)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 10**9, 10**12, -(2**63), 10**400])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["hsml", "maml", "mse", "cross_entropy", "mlp", "conv4", "none", "\0", "../x", "[/red]"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def paths_in(data, before=()):
    """The paths of all nodes of plain data."""
    yield before
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from paths_in(value, (*before, key))


@settings(
    max_examples=int(os.environ.get("METAGROVE_FUZZ", "60")),
    deadline=5000,
    database=None,
    derandomize="METAGROVE_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), file=st.sampled_from(["run.json", "best.json"]))
def test_any_value_in_any_place_is_an_error_in_words_or_a_model(model, tmp_path_factory, data, file):
    stored = json.loads((model / file).read_text())
    places = [path for path in paths_in(stored) if path and path != ("checksum",)]
    *parents, last = data.draw(st.sampled_from(places))

    def change(found):
        for key in parents:
            found = found[key]
        found[last] = data.draw(JSON)

    folder = tmp_path_factory.mktemp("fuzz")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run, message = None, ""
    try:
        run = mg.load(edited(model, folder, file, change))
    except MetagroveError as error:
        message = str(error)
    shutil.rmtree(folder)
    assert len(message) < 2000
    if run is not None:
        loaded, good = checkpoint.named_leaves(run.meta), arrays_of(model)
        assert loaded.keys() == good.keys()
        assert all(np.array_equal(loaded[name], good[name]) for name in good)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024


def test_released_models_and_presets_pass_the_same_checks():
    for name in shipped():
        assert mg.load(name).folder.name == name
    for entry in PRESETS.values():
        check_config(entry.config)


def test_python_settings_are_checked_against_the_same_types():
    with pytest.raises(MetagroveError, match=r"learner.inner_steps must be from 0 to 10,000, got -3"):
        check_config(mg.Config(mg.Functions(), mg.MAML(inner_steps=-3)))
    assert setting_errors(Phase, {"steps": "10", "trains": 3}, "training") == [
        "training.steps must be a whole number, got '10'",
        "training.trains must be a list, got 3",
    ]


def test_quotes_are_short_and_control_characters_visible():
    assert quoted("a" * 120_000) == f"'{'a' * 79}… (120,000 characters)"
    assert quoted("x") == "'x'"
    assert visible("a\x1b]0;title\x07b\u202ec\ud800") == "a\\x1b]0;title\\x07b\\u202ec\\ud800"
    assert visible("größer\n日本語\t±") == "größer\n日本語\t±"

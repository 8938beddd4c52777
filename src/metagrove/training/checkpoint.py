"""Checkpoints: arrays in safetensors, the rest in JSON that names the array file and its checksum.

The array file gets a new name each time and the JSON file is replaced last, in one atomic move: a process killed at
any moment leaves the old checkpoint or the new one, never half of one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from metagrove.config.migrate import array_names_of_format_1
from metagrove.devices import is_first_process
from metagrove.errors import RunError
from metagrove.files import FORMAT, Json, read_json, write_atomically, write_json


def save(folder: Path, name: str, tree: Any, about: Json) -> None:
    """Write `name`.json and its arrays into `folder`; on any failure what was there before is still whole.

    Of several processes that train together, the first writes.
    """
    if not is_first_process():
        return
    arrays = safetensors.numpy.save({key: np.asarray(leaf, order="C") for key, leaf in named_leaves(tree).items()})
    checksum = hashlib.sha256(arrays).hexdigest()
    weights = f"{name}-{checksum[:12]}.safetensors"
    write_atomically(folder / weights, arrays)
    write_json(folder / f"{name}.json", {"format": FORMAT, "weights": weights, "sha256": checksum, **about})
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != weights:
            old.unlink(missing_ok=True)


def load(folder: Path, name: str, like: Any) -> tuple[Any, Json]:
    """The tree, in the structure of `like` (arrays or their shapes), and what was said about it."""
    arrays, about = load_arrays(folder, name)
    arrays = renamed(arrays, like, about["format"])
    return fill(like, arrays, folder / about["weights"]), about


def load_arrays(folder: Path, name: str) -> tuple[dict[str, np.ndarray], Json]:
    """The arrays under their dotted names, and what was said about them."""
    about = read_json(folder / f"{name}.json")
    path = folder / str(about.get("weights"))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}): the run is incomplete, copy it again") from error
    checksum = hashlib.sha256(data).hexdigest()
    if checksum != about.get("sha256"):
        raise RunError(
            f"{path} is damaged: its checksum is {checksum[:12]}…, expected {str(about.get('sha256'))[:12]}…; "
            "copy it again or retrain"
        )
    try:
        return safetensors.numpy.load(data), about
    except safetensors.SafetensorError as error:
        raise RunError(f"{path} is not a safetensors file ({error}): copy it again or retrain") from error


def renamed(arrays: Mapping[str, np.ndarray], like: Any, file_format: int) -> Mapping[str, np.ndarray]:
    """The arrays of an older format under their present names."""
    if file_format >= FORMAT:
        return arrays
    old_names = {array_names_of_format_1(name): name for name in named_leaves(like)}
    return {old_names.get(name, name): array for name, array in arrays.items()}


def named_leaves(tree: Any) -> dict[str, Any]:
    """The arrays of a tree under dotted names, e.g. cluster.levels.0.centers; other leaves are settings, not state."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name_of(path): leaf for path, leaf in leaves if hasattr(leaf, "shape")}


def name_of(path: Any) -> str:
    """A leaf's dotted name."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def fill(like: Any, arrays: Mapping[str, np.ndarray], file: Path) -> Any:
    """`like` with its arrays replaced by those of the same name, every name and shape accounted for."""
    wanted = named_leaves(like)
    wrong = sorted(set(wanted) ^ set(arrays)) + [
        f"{name} {arrays[name].shape} instead of {tuple(leaf.shape)}"
        for name, leaf in wanted.items()
        if name in arrays and arrays[name].shape != tuple(leaf.shape)
    ]
    if wrong:
        raise RunError(f"{file} does not fit the run's settings: {', '.join(wrong[:3])}")

    def replace(path: Any, leaf: Any) -> Any:
        return jnp.asarray(arrays[name_of(path)], leaf.dtype) if hasattr(leaf, "shape") else leaf

    return jax.tree_util.tree_map_with_path(replace, like)

"""Checkpoints: arrays in safetensors, the rest in JSON that names the array file and its checksum.

The array file gets a new name each time and the JSON file is replaced last, in one atomic move: a process killed at
any moment leaves the old checkpoint or the new one, never half of one.
"""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from metagrove.errors import RunError

FORMAT = 1
"""Raised when a file written by this version can no longer be read by the one before."""


def save(folder: Path, name: str, tree: Any, about: Mapping[str, Any]) -> None:
    """Write `name`.json and its arrays into `folder`; on any failure what was there before is still whole."""
    arrays = safetensors.numpy.save({key: np.asarray(leaf) for key, leaf in named_leaves(tree).items()})
    checksum = hashlib.sha256(arrays).hexdigest()
    weights = f"{name}-{checksum[:12]}.safetensors"
    write_atomically(folder / weights, arrays)
    write_json(folder / f"{name}.json", {"format": FORMAT, "weights": weights, "sha256": checksum, **about})
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != weights:
            old.unlink(missing_ok=True)


def load(folder: Path, name: str, like: Any) -> tuple[Any, dict[str, Any]]:
    """The tree, in the structure of `like` (arrays or their shapes), and what was said about it."""
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
        arrays = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise RunError(f"{path} is not a safetensors file ({error}): copy it again or retrain") from error
    return fill(like, arrays, path), about


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of this package, refused if it is missing, damaged or from a newer version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(
            f"{path} does not exist: is {path.parent} a run folder? `metagrove list` shows the shipped ones"
        ) from error
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RunError(f"{path} is not JSON ({error}): it is truncated or was edited") from error
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise RunError(f"{path} is not a file of metagrove: it has no format number")
    if data["format"] > FORMAT:
        raise RunError(f"{path} has format {data['format']}, this metagrove reads up to {FORMAT}: upgrade metagrove")
    if data.pop("checksum", None) != checksum_of(data):
        raise RunError(f"{path} is damaged or was edited: its checksum does not fit; copy it again or retrain")
    return data


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a JSON file in one move, with a checksum of its own content."""
    sealed = {**data, "checksum": checksum_of(data)}
    write_atomically(path, (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode())


def checksum_of(data: Mapping[str, Any]) -> str:
    """SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file beside `path`, flush it to disk, and move it there."""
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise save_error(path, error) from error


def save_error(path: Path, error: OSError) -> RunError:
    """Why a file could not be written, and what to do about it."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    mend = "free some space and try again" if error.errno in full else "choose a folder that can be written to"
    return RunError(f"{path} could not be written ({error.strerror}): {mend}; what was saved before is whole")


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

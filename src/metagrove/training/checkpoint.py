"""Checkpoints: arrays in safetensors, the rest in JSON that names the array file and its checksum.

The array file gets a new name each time and the JSON file is replaced last, in one atomic move: a process killed at
any moment leaves the old checkpoint or the new one, never half of one.
"""

import contextlib
import hashlib
import math
import re
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
from metagrove.errors import RunError, quoted, shortened
from metagrove.files import FORMAT, Json, read_json, read_plain, read_record, write_atomically, write_json
from metagrove.training.records import WeightsRecord

BITS = (8, 16, 32, 64)
DTYPES = {
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16, "BOOL": np.bool_},
    **{f"{letter}{bits}": np.dtype(f"{kind}{bits}") for letter, kind in (("I", "int"), ("U", "uint")) for bits in BITS},
}
"""Types of arrays in safetensors files."""
WIDEST = 8
"""Maximum number of bytes of a number."""
MAX_HEADER_BYTES = 1 << 24
HEX = re.compile("[0-9a-f]{64}")


def save(folder: Path, name: str, tree: Any, about: Json) -> None:
    """Write `name`.json and its arrays into `folder`; on any failure the previous checkpoint is intact.

    If several processes train together, the first one writes.
    """
    if not is_first_process():
        return
    arrays = safetensors.numpy.save({key: np.asarray(leaf, order="C") for key, leaf in named_leaves(tree).items()})
    checksum = hashlib.sha256(arrays).hexdigest()
    weights = f"{name}-{checksum[:12]}.safetensors"
    write_atomically(folder / weights, arrays)
    head = {"format": FORMAT, "weights": weights, "sha256": checksum, "bytes": len(arrays)}
    write_json(folder / f"{name}.json", {**head, **about})
    remove_superseded(folder, name, weights)


def remove_superseded(folder: Path, name: str, weights: str) -> None:
    """Remove the arrays of earlier checkpoints, if those of the present one are there.

    A file that cannot be removed stays until the next checkpoint or resume.
    """
    if not is_first_process() or not (folder / weights).is_file():
        return
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != weights:
            with contextlib.suppress(OSError):
                old.unlink(missing_ok=True)


def load(folder: Path, name: str, like: Any) -> tuple[Any, Json]:
    """The tree, in the structure of `like` (arrays or their shapes), and its record.

    Raises:
        RunError: The files are missing or damaged, or the arrays have other names, shapes or types than `like` or are
            not finite.
    """
    expected = sum(WIDEST * math.prod(leaf.shape) for leaf in named_leaves(like).values())
    arrays, about = load_arrays(folder, name, most_bytes=expected + MAX_HEADER_BYTES)
    arrays = renamed(arrays, like, about["format"])
    return fill(like, arrays, folder / about["weights"]), about


def load_arrays(folder: Path, name: str, most_bytes: int = 1 << 30) -> tuple[dict[str, np.ndarray], Json]:
    """The arrays by dotted name, and their record; the size of the file is limited."""
    record = read_record(WeightsRecord, folder / f"{name}.json", needs=("weights", "sha256"))
    if record.weights != f"{name}-{record.sha256[:12]}.safetensors" or not HEX.fullmatch(record.sha256):
        raise RunError(
            f"{folder / name}.json names its weights {quoted(record.weights)}, expected a file of this folder, "
            f"{name}-CHECKSUM.safetensors: copy the run again"
        )
    path = folder / record.weights
    try:
        data = read_plain(path, most=most_bytes, size=record.bytes)
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}): the run is incomplete, copy it again") from error
    checksum = hashlib.sha256(data).hexdigest()
    if checksum != record.sha256:
        raise RunError(
            f"{path} is damaged: its checksum is {checksum[:12]}…, expected {record.sha256[:12]}…; "
            "copy it again or retrain"
        )
    return decode_arrays(data, path), read_json(folder / f"{name}.json")


def decode_arrays(data: bytes, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file; half precision (F16, BF16) is supported, types of 8 bits raise an error."""
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise RunError(f"{path} is not a safetensors file ({error}): copy it again or retrain") from error
    if unknown := sorted({f"{name} {one['dtype']}" for name, one in found if one["dtype"] not in DTYPES}):
        raise RunError(f"{path} has arrays of a type that is not read: {', '.join(map(quoted, unknown[:3]))}")
    return {name: np.frombuffer(one["data"], DTYPES[one["dtype"]]).reshape(one["shape"]) for name, one in found}


def renamed(arrays: Mapping[str, np.ndarray], like: Any, file_format: int) -> Mapping[str, np.ndarray]:
    """Rename the arrays of an older format to their current names."""
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
    """`like` with its arrays replaced by those of the same name, after a check of every name, shape and type."""
    wanted = named_leaves(like)
    errors = sorted(set(wanted) ^ set(arrays))
    for name, leaf in wanted.items():
        if name in arrays:
            errors += array_errors(name, arrays[name], leaf)
    if errors:
        more = f" and {len(errors) - 3} more" if len(errors) > 3 else ""
        raise RunError(
            f"{file} does not fit the run's settings: {', '.join(shortened(one, 200) for one in errors[:3])}{more}"
        )

    def replace(path: Any, leaf: Any) -> Any:
        return jnp.asarray(arrays[name_of(path)], leaf.dtype) if hasattr(leaf, "shape") else leaf

    return jax.tree_util.tree_map_with_path(replace, like)


def array_errors(name: str, array: np.ndarray, leaf: Any) -> list[str]:
    """List why an array cannot replace a leaf."""
    if array.shape != tuple(leaf.shape):
        return [f"{name} {array.shape} instead of {tuple(leaf.shape)}"]
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    if not any(jnp.issubdtype(array.dtype, kind) and jnp.issubdtype(leaf.dtype, kind) for kind in kinds):
        return [f"{name} is {array.dtype}, expected {leaf.dtype}"]
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        with np.errstate(over="ignore", invalid="ignore"):
            return [] if np.isfinite(array.astype(leaf.dtype)).all() else [f"{name} has values that are not finite"]
    return []

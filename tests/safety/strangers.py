"""Model folders from strangers: a good one, and ways to make it bad with checksums that fit."""

import json
import shutil
from hashlib import sha256

from metagrove.files import checksum_of


def seal(path, data):
    """Write JSON with the checksum that a loader expects."""
    data = {key: value for key, value in data.items() if key != "checksum"}
    path.write_text(json.dumps({**data, "checksum": checksum_of(data)}))


def edited(model, folder, file, change):
    """A copy of a model whose JSON file is changed by a function, in place or by what it returns."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    data = json.loads((folder / file).read_text())
    data = change(data) or data
    seal(folder / file, data)
    return folder


def with_weights(model, folder, content):
    """A copy of a model with another file of weights, and all checksums right."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    digest = sha256(content).hexdigest()
    name = f"best-{digest[:12]}.safetensors"
    (folder / name).write_bytes(content)
    best = json.loads((folder / "best.json").read_text())
    seal(folder / "best.json", {**best, "weights": name, "sha256": digest, "bytes": len(content)})
    return folder


def at(path, value):
    """A change that sets the entry at a path, e.g. config.learner.inner_steps."""

    def change(data):
        *parents, last = path.split(".")
        for key in parents:
            data = data[key]
        data[last] = value

    return change


def without(path):
    """A change that removes the entry at a path."""

    def change(data):
        *parents, last = path.split(".")
        for key in parents:
            data = data[key]
        del data[last]

    return change


def nested(depth):
    """Lists in lists."""
    text = "[" * depth + "]" * depth
    return f'{{"format": 2, "config": {text}, "weights": {text}}}'

"""Mean and standard deviation of columns, whose values are in memory or in files.

Both are sums over blocks of a fixed number of values, so that they have the same bits wherever the values are.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

BLOCK = 2**20
"""Values of a block."""


class Values:
    """The values of columns, in the order in which they were added; NaN is a missing value.

    Args:
        folder: Folder of a file for each column; without it, values are kept in memory.
    """

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self.arrays: dict[str, list[np.ndarray]] = {}
        self.paths: dict[str, Path] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        """Append values to a column."""
        if self.folder is None:
            self.arrays.setdefault(name, []).append(values)
            return
        path = self.paths.setdefault(name, self.folder / f"column-{len(self.paths):05d}.f64")
        with path.open("ab") as file:
            file.write(values.astype(np.float64).tobytes())

    def mean_and_std(self, name: str) -> tuple[float, float] | None:
        """The mean and the standard deviation of a column; None if it has no value."""
        count = sum(len(block) for block in self._blocks(name))
        if not count:
            return None
        mean = sum(float(block.sum()) for block in self._blocks(name)) / count
        return mean, float(np.sqrt(sum(float(np.square(block - mean).sum()) for block in self._blocks(name)) / count))

    def _blocks(self, name: str) -> Iterator[np.ndarray]:
        if self.folder is None:
            whole = np.concatenate(self.arrays[name])
            blocks = (whole[start : start + BLOCK] for start in range(0, len(whole), BLOCK))
        else:
            blocks = blocks_of_file(self.paths[name])
        for block in blocks:
            yield block[~np.isnan(block)]


def blocks_of_file(path: Path) -> Iterator[np.ndarray]:
    """The values of a file, a block at a time."""
    with path.open("rb") as file:
        while len(block := np.fromfile(file, np.float64, BLOCK)):
            yield block

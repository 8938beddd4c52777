"""Calibration of predictions: intervals of values and the temperature of probabilities, stored as calibration.json.

An interval is prediction ± quantile · scale(x), where the scale is one of

    constant     1
    distance     1 + w d(x), with the distance d to the nearest support row
    std          the standard deviation that the learner provides in closed form

and the quantile belongs to the number of support rows. `calibrate` decides on both with validation tasks.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Literal

import numpy as np

from metagrove import files
from metagrove.errors import InputError, RunError
from metagrove.files import OMIT_NONE

__all__ = ["COVERAGE", "LEVELS", "Calibration", "TaskCalibration", "distance_to_support", "read_calibration"]

FILE = "calibration.json"
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Coverages with stored quantiles."""
COVERAGE = 0.9
"""Coverage of the intervals of `predict`."""
LARGEST = 1e9
"""Upper bound of a temperature or a weight."""
Scale = Literal["constant", "distance", "std"]


@dataclasses.dataclass(frozen=True)
class TaskCalibration:
    """Calibration of one fitted task, from that of its run."""

    scale: Scale = "constant"
    distance_weight: float = 0.0
    quantiles: dict[str, list[float]] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """By coverage, the quantile of each target in the net's units; None for a classifier."""
    temperature: float = 1.0
    support: list[list[float]] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """The encoded support inputs, if the scale needs them."""

    def misfits(self, num_targets: int, x_dim: int, *, has_std: bool) -> list[str]:
        """List why the calibration cannot be used for a task.

        Args:
            num_targets: Number of values that a prediction has.
            x_dim: Number of values of an encoded input row.
            has_std: Whether the learner has a standard deviation in closed form.
        """
        errors = []
        each = [(len(some), *(one >= 0 for one in some)) for some in (self.quantiles or {}).values()]
        if any(one != (num_targets, *(True,) * num_targets) for one in each):
            errors.append(f"calibration.quantiles must be {num_targets} numbers from 0 for each coverage")
        if self.scale == "std" and not has_std:
            errors.append("calibration.scale must not be std: the learner has no standard deviation")
        if self.scale == "distance" and not (self.support and all(len(row) == x_dim for row in self.support)):
            errors.append(f"calibration.support must be rows of {x_dim} numbers")
        if not 0 < self.temperature < LARGEST or not 0 <= self.distance_weight < LARGEST:
            errors.append(f"calibration.temperature and distance_weight must be positive and below {LARGEST:g}")
        return errors

    def half_widths(self, x: np.ndarray, std: np.ndarray | None, coverage: float) -> np.ndarray:
        """Return half the width of each interval, shape (n, targets), in the net's units.

        Raises:
            InputError: If there are no quantiles for that coverage.
        """
        assert self.quantiles is not None
        if str(coverage) not in self.quantiles:
            raise InputError(f"coverage must be one of {', '.join(self.quantiles)}, got {coverage}")
        quantile = np.asarray(self.quantiles[str(coverage)], np.float64)[None]
        if self.scale == "std":
            assert std is not None
            return quantile * np.asarray(std, np.float64)
        if self.scale == "distance":
            away = distance_to_support(x, np.asarray(self.support, np.float64))
            return quantile * (1 + self.distance_weight * away[:, None])
        return np.repeat(quantile, len(x), 0)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A run's calibration, from validation tasks after `inner_steps` inner steps."""

    num_tasks: int
    """Validation tasks that it comes from."""
    inner_steps: int
    scale: Scale = "constant"
    distance_weight: float = 0.0
    quantiles: dict[str, dict[str, list[float]]] | None = dataclasses.field(default=None, metadata=OMIT_NONE)
    """By number of support rows and coverage, the quantile of each target; None for a classifier."""
    temperature: float = 1.0

    def for_task(self, support_x: np.ndarray) -> TaskCalibration:
        """Return the calibration of a task: the quantiles of the largest number of support rows that it has."""
        found = None
        if self.quantiles is not None:
            sizes = sorted(map(int, self.quantiles))
            size = max((one for one in sizes if one <= len(support_x)), default=sizes[0])
            found = self.quantiles[str(size)]
        support = support_x.tolist() if self.scale == "distance" else None
        return TaskCalibration(self.scale, self.distance_weight, found, self.temperature, support)


def distance_to_support(x: np.ndarray, support: np.ndarray) -> np.ndarray:
    """Distance of each row to the nearest support row, over the root of the number of inputs."""
    apart = np.linalg.norm(x[:, None].astype(np.float64) - support[None], axis=2)
    return apart.min(1) / np.sqrt(x.shape[1])


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write calibration.json into a run folder."""
    files.write_json(folder / FILE, {"format": files.FORMAT, **files.as_json(calibration)})


def read_calibration(folder: Path) -> Calibration | None:
    """Read the calibration of a run; None if it has none."""
    path = folder / FILE
    return _read(path, path.stat().st_mtime_ns) if path.exists() else None


@functools.lru_cache(maxsize=4)
def _read(path: Path, written: int) -> Calibration:
    del written
    found = files.read_record(Calibration, path, needs=("num_tasks", "inner_steps"))
    if found.quantiles is not None and not (found.quantiles and all(map(str.isdecimal, found.quantiles))):
        raise RunError(f"{path} cannot be used: quantiles must be by number of support rows; calibrate again")
    return found

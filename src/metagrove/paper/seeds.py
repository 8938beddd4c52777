"""Comparison of two methods over the seeds of their trainings."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from metagrove.paper.results import RowResult


@dataclasses.dataclass(frozen=True)
class Seeds:
    """The test score of each seed of a row."""

    values: Sequence[float]

    @classmethod
    def of(cls, row: RowResult) -> "Seeds":
        """The scores of a row of a result."""
        return cls([one.evaluation.value for one in row.seeds])


@dataclasses.dataclass(frozen=True)
class SeedDifference:
    """Difference of two means over seeds."""

    difference: float
    ci95: float | None
    """Half the width of Welch's 95 % confidence interval; None where one of the two has a single seed."""

    @property
    def exceeds(self) -> bool | None:
        """Whether the difference exceeds its interval over seeds."""
        return None if self.ci95 is None else abs(self.difference) > self.ci95


def difference_over_seeds(first: Seeds, second: Seeds) -> SeedDifference:
    """Mean of the first minus mean of the second; Welch's interval t(ν)·√(s₁²/n₁ + s₂²/n₂)."""
    difference = float(np.mean(first.values) - np.mean(second.values))
    if min(len(first.values), len(second.values)) < 2:
        return SeedDifference(difference, None)
    parts = [float(np.var(one.values, ddof=1)) / len(one.values) for one in (first, second)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return SeedDifference(difference, 0.0)
    sizes = (len(first.values), len(second.values))
    freedom = sum(parts) ** 2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    return SeedDifference(difference, float(stats.t.ppf(0.975, freedom)) * error)

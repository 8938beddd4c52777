"""The base class of baselines: a learner whose meta-parameters are fitted to data without meta-steps."""

import dataclasses
from typing import Any, TypeVar

from metagrove.inner import repeat
from metagrove.learner import Info, Learner, Meta, Predictor

__all__ = ["Baseline", "Fitted", "at_once"]


@dataclasses.dataclass(frozen=True)
class Baseline(Learner):
    """Abstract: a learner that is fitted by `metagrove.baselines.fit`, never by gradient steps."""

    def validation_errors(self) -> list[str]:
        """Settings are selected by the fit and need no check."""
        return []


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A fitted baseline."""

    learner: Baseline
    meta: Meta
    variant: str = ""
    """Description of the settings selected on validation tasks."""


P = TypeVar("P", bound=Predictor)


def at_once(predictor: P, **info: Any) -> tuple[P, Info]:
    """Return the result of `adapt` without an inner loop: the path has one predictor."""
    return predictor, Info(repeat(predictor, 1), **info)

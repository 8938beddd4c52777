"""Growth events against arrivals of new families on a stream: detections, delays and false alarms.

In a phase that brings n new families, the first n growth events count as noticing them; all others are false
alarms, including those in a phase without new families, e.g. one in which an old family returns.
"""

import dataclasses
from collections.abc import Sequence

from metagrove.sources.source import Source

__all__ = ["Arrival", "Detections", "detections"]


@dataclasses.dataclass(frozen=True)
class Arrival:
    """A phase of the stream that brings new families."""

    step: int
    """Its first meta-step."""
    families: list[str]
    noticed_at: int | None
    """Meta-step of the first growth event of the phase; None if nothing grew."""


@dataclasses.dataclass(frozen=True)
class Detections:
    """Arrivals on a stream and false alarms."""

    arrivals: list[Arrival]
    """Arrivals of new families, without the initial ones."""
    false_alarms: list[int]
    """Meta-steps of the other growth events."""


def detections(growth_steps: Sequence[int], source: Source, steps: int) -> Detections:
    """Compare growth events with the timetable of a stream.

    Args:
        growth_steps: Meta-steps after which a cluster was added.
        source: The stream.
        steps: Total number of meta-steps.

    Returns:
        Arrivals with the meta-step at which each was noticed, and false alarms.
    """
    begins = source.begins(steps)
    arrivals, alarms = [], []
    for phase, begin in enumerate(begins):
        end = [*begins, steps + 1][phase + 1]
        new = [family for family, first in source.arrivals().items() if first == phase and phase > 0]
        events = [step for step in growth_steps if begin < step <= end]
        alarms += events[len(new) :]
        if new:
            arrivals.append(Arrival(begin, new, events[0] if events else None))
    return Detections(arrivals, alarms)

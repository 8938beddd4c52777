"""Transfer and forgetting on a stream, as defined in continual learning.

R_{p,f} is the score on validation tasks of family f at the end of phase p, b_f that before training, a(f) the phase in
which f arrives and P the last phase; signs are such that higher is better.

backward transfer   mean over f with a(f) < P of R_{P,f} - R_{a(f),f}     (Lopez-Paz & Ranzato, 2017)
forward transfer    mean over f with a(f) > 0 of R_{a(f)-1,f} - b_f       (the same)
forgetting          mean over f with a(f) < P of max_{a(f) ≤ p < P} R_{p,f} - R_{P,f}   (Chaudhry et al., 2018)
"""

import dataclasses
import statistics
from collections.abc import Sequence

from metagrove.files import FLAT
from metagrove.sources.source import Source
from metagrove.training.records import BlockRecord, GrowthEvent

FamilyScores = dict[str, float]
"""A score for each family."""


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Transfer and forgetting on a stream; a mean over no families is None."""

    backward: float | None
    forward: float | None
    forgetting: float | None
    by_family: dict[str, FamilyScores]
    """The same for each family."""
    forgetting_at_phase_ends: dict[str, float | None]
    """Mean forgetting up to the end of each phase but the first, by meta-step."""
    at_phase_ends: dict[str, FamilyScores]
    """R_{p,f}, by the meta-step at which the phase ends."""


@dataclasses.dataclass(frozen=True)
class ReportedGrowth:
    """A growth event with its meta-step, and the final share of tasks of each cluster."""

    step: int
    event: GrowthEvent = dataclasses.field(metadata=FLAT)
    final_shares: list[float] | None


def transfer(records: Sequence[BlockRecord], source: Source, steps: int, *, higher_is_better: bool) -> Transfer | None:
    """Compute backward transfer, forward transfer and forgetting, overall and by family.

    Returns:
        The metrics, or None before the stream has ended.
    """
    checks = {r.step: r.validation.by_family for r in records if r.validation and r.validation.by_family}
    ends = [*source.begins(steps)[1:], steps]
    if any(step not in checks for step in (0, *ends)):
        return None
    scores = [checks[end] for end in ends]
    start, final, sign = checks[0], scores[-1], 1 if higher_is_better else -1
    arrivals = {f: phase for f, phase in source.arrivals().items() if all(f in one for one in (start, *scores))}
    early = {family: phase for family, phase in arrivals.items() if phase < len(ends) - 1}
    late = {family: phase for family, phase in arrivals.items() if phase > 0}
    by_family = {
        "backward": {f: sign * (final[f] - scores[phase][f]) for f, phase in early.items()},
        "forward": {f: sign * (scores[phase - 1][f] - start[f]) for f, phase in late.items()},
        "forgetting": {f: max(sign * (one[f] - final[f]) for one in scores[phase:-1]) for f, phase in early.items()},
    }
    means = {name: statistics.fmean(values.values()) if values else None for name, values in by_family.items()}
    by_phase = [mean_forgetting(scores[: last + 1], arrivals, sign) for last in range(1, len(ends))]
    return Transfer(
        **means,
        by_family=by_family,
        forgetting_at_phase_ends=dict(zip(map(str, ends[1:]), by_phase, strict=True)),
        at_phase_ends=dict(zip(map(str, ends), scores, strict=True)),
    )


def mean_forgetting(scores: Sequence[FamilyScores], arrivals: dict[str, int], sign: int) -> float | None:
    """Compute the mean forgetting at the end of the last phase, over the families that arrived before it."""
    final = scores[-1]
    each = [
        max(sign * (one[family] - final[family]) for one in scores[phase:-1])
        for family, phase in arrivals.items()
        if phase < len(scores) - 1
    ]
    return statistics.fmean(each) if each else None


def growth_events(records: Sequence[BlockRecord]) -> list[ReportedGrowth]:
    """List when and why clusters were added, with the final share of tasks of each cluster."""
    shares = next((r.validation.shares for r in reversed(records) if r.validation and r.validation.shares), None)
    return [ReportedGrowth(record.step, record.growth, shares) for record in records if record.growth is not None]

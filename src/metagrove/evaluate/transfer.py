"""Transfer and forgetting on a stream, as defined in continual learning.

R_{p,f} is the score on validation tasks of family f at the end of phase p, b_f that before training, a(f) the phase in
which f arrives and P the last phase; signs are such that higher is better.

backward transfer   mean over f with a(f) < P of R_{P,f} - R_{a(f),f}     (Lopez-Paz & Ranzato, 2017)
forward transfer    mean over f with a(f) > 0 of R_{a(f)-1,f} - b_f       (the same)
forgetting          mean over f with a(f) < P of max_{a(f) ≤ p < P} R_{p,f} - R_{P,f}   (Chaudhry et al., 2018)
"""

import statistics
from collections.abc import Sequence
from typing import Any

from metagrove.sources.stream import Stream

Record = dict[str, Any]


def transfer(records: Sequence[Record], source: Stream, steps: int, *, higher_is_better: bool) -> dict[str, Any] | None:
    """Compute backward transfer, forward transfer and forgetting, overall and by family.

    Returns:
        The metrics, or None before the stream has ended.
    """
    checks = {r["step"]: r["validation"]["by_family"] for r in records if "by_family" in r.get("validation", {})}
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
    return {
        **means,
        "by_family": by_family,
        "forgetting_at_phase_ends": dict(zip(map(str, ends[1:]), by_phase, strict=True)),
        "at_phase_ends": dict(zip(map(str, ends), scores, strict=True)),
    }


def mean_forgetting(scores: Sequence[dict[str, float]], arrivals: dict[str, int], sign: int) -> float | None:
    """Compute the mean forgetting at the end of the last phase, over the families that arrived before it."""
    final = scores[-1]
    each = [
        max(sign * (one[family] - final[family]) for one in scores[phase:-1])
        for family, phase in arrivals.items()
        if phase < len(scores) - 1
    ]
    return statistics.fmean(each) if each else None


def growth_events(records: Sequence[Record]) -> list[Record]:
    """List when and why clusters were added or retired, with the final share of tasks of each cluster."""
    events = [{"step": record["step"], **record["growth"]} for record in records if "growth" in record]
    shares = next((r["validation"]["shares"] for r in reversed(records) if "shares" in r.get("validation", {})), None)
    return [{**event, "final_shares": shares} for event in events]

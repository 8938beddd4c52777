"""Rules of the verdicts on the paper's claims, from results/*.json.

A method is better than another where the difference exceeds its 95 % interval: Welch's over seeds where both have
several, else over tasks. A claim of order holds if that is so for every pair, in part if for some, and is not
reproduced if no pair is even in that order.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from metagrove.files import from_json
from metagrove.paper.image_tables import all_scores
from metagrove.paper.results import RowResult, read_experiment, read_result
from metagrove.paper.seeds import Seeds, difference_over_seeds
from metagrove.paper.theory.records import TheoryResult
from metagrove.training.scores import paired_difference

UNTRAINED = "not yet trained here"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The measured value, and the verdict on the claim."""

    ours: str
    verdict: str


def rows_of(results: Path, file: str) -> dict[str, RowResult]:
    """The rows of a result by label; empty if there is no such file."""
    path = results / f"{file}.json"
    rows = read_experiment(path).rows if path.exists() else []
    return {row.label: row for row in rows}


def named(rows: dict[str, RowResult], label: str) -> RowResult | None:
    """The row with a label, in which `*` matches any text, e.g. a number of meta-steps."""
    start, star, end = label.partition("*")
    return next(
        (row for key, row in rows.items() if key == label or (star and key.startswith(start) and key.endswith(end))),
        None,
    )


def described(row: RowResult, digits: int) -> str:
    """Format the score of a row: over seeds if there are several, else with its interval over tasks."""
    one = row.chosen.evaluation
    if len(row.seeds) > 1:
        return f"{row.mean_over_seeds:.{digits}f} ± {row.sd_over_seeds:.{digits}f} ({len(row.seeds)} seeds)"
    return f"{one.value:.{digits}f} ± {one.value_ci95:.{digits}f} (1 seed)"


def beats(first: RowResult, second: RowResult) -> float:
    """Whether the first is better than the second: 1 by more than the interval of the difference, ½ by less, else 0."""
    metric = first.chosen.evaluation.metric
    over_seeds = difference_over_seeds(Seeds.of(first), Seeds.of(second))
    gain = over_seeds.difference * (1 if metric == "accuracy" else -1)
    interval = over_seeds.ci95 if over_seeds.ci95 is not None else interval_over_tasks(first, second)
    return 1.0 if gain > interval else 0.5 if gain > 0 else 0.0


def interval_over_tasks(first: RowResult, second: RowResult) -> float:
    """The interval of the difference of two runs: paired if both have the scores of the same tasks, else unpaired."""
    one, other = first.chosen, second.chosen
    if (
        one.scores
        and other.scores
        and {k: v.count(" ") for k, v in one.scores.items()} == {k: v.count(" ") for k, v in other.scores.items()}
    ):
        return paired_difference(all_scores(first), all_scores(second)).ci95
    return math.hypot(one.evaluation.value_ci95, other.evaluation.value_ci95)


def order(file: str, best: str, others: Sequence[str], digits: int = 3) -> Callable[[Path], Finding]:
    """The rule of a claim that one row is better than others."""

    def find(results: Path) -> Finding:
        rows = rows_of(results, file)
        wanted = {label: named(rows, label) for label in (best, *others)}
        known = {label: row for label, row in wanted.items() if row is not None}
        texts = [f"{short(label)} {described(row, digits)}" for label, row in known.items()]
        missing = [short(label) for label in wanted if label not in known]
        if best not in known or len(known) < 2:
            return Finding("; ".join(texts) or "–", UNTRAINED)
        verdict = share_verdict([beats(known[best], known[label]) for label in known if label != best])
        return Finding("; ".join(texts), verdict + (f"; {', '.join(missing)} {UNTRAINED}" if missing else ""))

    return find


def comparable(file: str, first: str, second: str, digits: int = 2) -> Callable[[Path], Finding]:
    """The rule of a claim that two rows are comparable: neither is better than the other."""

    def find(results: Path) -> Finding:
        rows = rows_of(results, file)
        if first not in rows or second not in rows:
            return Finding("–", UNTRAINED)
        text = "; ".join(f"{short(label)} {described(rows[label], digits)}" for label in (first, second))
        differs = max(beats(rows[first], rows[second]), beats(rows[second], rows[first])) == 1
        return Finding(text, share_verdict([not differs]))

    return find


def share_verdict(met: Sequence[float | bool]) -> str:
    """The verdict on the pairs of a claim: 1 if a pair meets it, ½ if only within the interval, 0 if not."""
    if min(met) == 1:
        return "holds"
    if max(met) == 0:
        return "not reproduced"
    return "holds in part" if max(met) == 1 else "order as in the paper, but within the interval"


def short(label: str) -> str:
    """A label without its number of shots."""
    return label.removesuffix(", 5-shot").removesuffix(", 10-shot").removesuffix(", 1-shot").replace("*", "")


def clusters_agree(file: str, labels: Sequence[str], least: float = 0.5) -> Callable[[Path], Finding]:
    """The rule of a claim that clusters separate families: normalised mutual information of at least ½."""

    def find(results: Path) -> Finding:
        rows = {label: row for label, row in rows_of(results, file).items() if label in labels}
        values = {label: [one.evaluation.clustering for one in row.seeds] for label, row in rows.items()}
        nmi = {label: [one.nmi for one in measured if one] for label, measured in values.items()}
        if not nmi:
            return Finding("–", UNTRAINED)
        texts = [f"{short(label)} NMI {', '.join(f'{v:.2f}' for v in seeds)}" for label, seeds in nmi.items()]
        return Finding("; ".join(texts), share_verdict([min(seeds) >= least for seeds in nmi.values() if seeds]))

    return find


def held_out(results: Path) -> Finding:
    """Leave-one-out: HSML against MAML and MUMOMAML on each held-out dataset."""
    rows = rows_of(results, "leave-one-out-studies-32")
    datasets = ("bird", "texture", "aircraft", "fungi")
    names = ("HSML", "MAML", "MUMOMAML")
    known = {(name, one): rows.get(f"{name}, {one}") for name in names for one in datasets}
    if any(row is None for row in known.values()):
        return Finding("–", UNTRAINED)
    found = {key: row for key, row in known.items() if row is not None}
    means = {name: sum(found[name, one].chosen.evaluation.value for one in datasets) / len(datasets) for name in names}
    met = [beats(found["HSML", one], found[name, one]) for name in names[1:] for one in datasets]
    return Finding("; ".join(f"{name} {value:.2f}" for name, value in means.items()), share_verdict(met))


def theory(find: Callable[[TheoryResult], Finding]) -> Callable[[Path], Finding]:
    """A finding from results/theory.json."""

    def read(results: Path) -> Finding:
        path = results / "theory.json"
        return find(from_json(TheoryResult, read_result(path))) if path.exists() else Finding("–", UNTRAINED)

    return read


@theory
def risk_inequality(result: TheoryResult) -> Finding:
    """The share of tasks for which the gated initialisation has the smaller risk; holds from 95 %."""
    rows = [row for row in result.rows if row.kappa == 30 and row.method == "HSML"]
    texts = [f"n = {row.shots}: {100 * row.holds_reference:.0f} % of tasks" for row in rows]
    return Finding("; ".join(texts), share_verdict([row.holds_reference >= 0.95 for row in rows]))


@theory
def gate_exists(result: TheoryResult) -> Finding:
    """The share of parameters that a gradient step takes out of a sigmoid gate's reach; holds up to 5 %."""
    row = next(row for row in result.rows if row.kappa == 30 and row.method == "HSML")
    text = f"{100 * row.out_of_reach:.0f} % of the parameters of θ₀ − α∇L(θ₀) are out of reach of a sigmoid gate"
    return Finding(text, share_verdict([row.out_of_reach <= 0.05]))


@theory
def linear_form(result: TheoryResult) -> Finding:
    """The relative error of the linear form of θ₀ₜ; holds up to 10 %."""
    row = next(row for row in result.gates if row.method == "HSML")
    text = f"median relative error {100 * row.error:.0f} %"
    return Finding(text, share_verdict([row.error <= 0.1]))


@theory
def bound_and_gap(result: TheoryResult) -> Finding:
    """Whether the smaller bound goes with the smaller gap, over tasks: a rank correlation of at least ½."""
    rows = [row for row in result.rows if row.kappa == 30 and row.shots == 5]
    texts = [f"{row.method} {row.rank_theorem1 or math.nan:+.2f}" for row in rows]
    met = [(row.rank_theorem1 or 0) >= 0.5 for row in rows]
    return Finding("rank correlation, n = 5: " + "; ".join(texts), share_verdict(met))


@theory
def smaller_gap(result: TheoryResult) -> Finding:
    """Whether HSML's gap is smaller than MAML's, at each number of points."""
    rows = [row for row in result.rows if row.kappa == 30]
    hsml = {row.shots: row for row in rows if row.method == "HSML"}
    maml = {row.shots: row for row in rows if row.method.startswith("MAML")}
    texts = [f"n = {n}: {hsml[n].gap:.2g} against {maml[n].gap:.2g}" for n in hsml]
    return Finding("median gap over M, " + "; ".join(texts), share_verdict([hsml[n].gap < maml[n].gap for n in hsml]))

"""Tables of MiniImagenet: every method compared with ProtoNet, and the short trainings that select settings."""

from metagrove.files import Json
from metagrove.paper.experiments import Row
from metagrove.paper.experiments.mini_imagenet import REMARKS
from metagrove.paper.image_tables import all_scores
from metagrove.paper.results import RowResult, Trial
from metagrove.paper.study_tables import Cells, Study
from metagrove.training.scores import paired_difference

LEAST, MOST_BEHIND = 30.0, 4.0
"""Accuracy in percent that every method must exceed (chance: 20), and points that it may be behind ProtoNet."""


def methods(study: Study) -> Cells:
    """Accuracy of every method with the setting that was selected, the paper's, and a remark on the paper's."""
    reference = study.first()
    heading = ["method", "here ± CI", "paper", "minus ProtoNet ± CI", "as expected", "selected of two"]

    def cells(row: Row, result: RowResult) -> list[str]:
        one, search = result.chosen.evaluation, result.search
        picked = "" if search is None else describe_settings(search.candidates[search.chosen].settings)
        paper = row.paper or ""
        return [f"{one.value:.2f} ± {one.value_ci95:.2f}", paper, *beside(result, reference), picked]

    lines = study.table(heading, cells)
    for line, (row, result) in zip(lines[1:], study.rows(), strict=True):
        line[2] = line[2] if result else row.paper or ""
    remarks = [REMARKS.get(row.label, "") for row, _ in study.rows()]
    return [[*line, remark] for line, remark in zip(lines, ["remark on the paper's value", *remarks], strict=True)]


def beside(result: RowResult, reference: RowResult | None) -> list[str]:
    """The paired difference to ProtoNet, and whether the method reaches what is expected of it."""
    value = result.chosen.evaluation.value
    if reference is None or result is reference:
        return ["", "yes" if value > LEAST else "no"]
    paired = paired_difference(all_scores(result), all_scores(reference))
    works = value > LEAST and paired.difference > -MOST_BEHIND
    return [f"{paired.difference:+.2f} ± {paired.ci95:.2f}", "yes" if works else "no"]


def trials(study: Study) -> Cells:
    """Validation accuracy of every candidate that was trained, after the meta-steps of a trial."""
    lines = []
    for row, result in study.rows():
        waiting = study.result.trials if study.result else {}
        searched = result.search.candidates if result and result.search else waiting.get(row.label, [])
        lines += [[row.label, describe_settings(one.settings), accuracy(one)] for one in searched]
    return [["method", "setting", "validation accuracy ± CI"], *lines]


def accuracy(trial: Trial) -> str:
    """Format the validation accuracy of a trial."""
    validation = trial.validation
    return "diverged" if validation is None else f"{validation.value:.1f} ± {validation.ci95:.1f}"


def describe_settings(settings: Json) -> str:
    """Format settings, as flags without dashes."""
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items()) or "as published"

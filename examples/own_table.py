"""Train on a CSV file of many small tasks, adapt to a new task, predict.

python examples/own_table.py [meta-steps]
"""

import csv
import sys
from pathlib import Path

import numpy as np

import metagrove as mg

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
rng = np.random.default_rng(0)


def readings(count):
    """Readings of one sensor: every sensor has a gain and an offset of its own."""
    hour = rng.uniform(0, 24, count).round(2)
    return hour, (20 + rng.normal() * np.sin(hour / 4) + rng.normal()).round(3)


path = Path("runs/example-sensors.csv")
path.parent.mkdir(exist_ok=True)
with path.open("w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["sensor", "hour", "temperature"])
    for sensor in range(60):
        writer.writerows([f"sensor {sensor}", *row] for row in zip(*readings(12), strict=True))

run = mg.train_own(
    path, task_column="sensor", target="temperature", steps=steps, validate_every=steps, out="runs/example-own-table"
)
hour, temperature = readings(12)
fitted = mg.adapt(run, {"hour": hour[:6], "temperature": temperature[:6]})
predicted = fitted.predict({"hour": hour[6:]})["temperature"]
print(f"mean absolute error on six readings of a new sensor: {np.abs(predicted - temperature[6:]).mean():.2f}")

"""When each detector would have grown on runs that did not: where their tasks never change, every alarm is a false one.

    python benchmarks/false_alarms.py RUN ... --out results/false-alarms.json
    python benchmarks/false_alarms.py RUN --window 100 --threshold .85 --cooldown 400 --out results/image-alarms.json

The recorded losses (accuracies, of a classifier) are shown to the detectors again. Up to its first alarm a run that
may grow is the same as one that may not, up to rounding, so that this is what it would have done; after an alarm the
cool-down goes on as in training.
"""

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path

from result import write_result

from metagrove import files
from metagrove.config.config import Growth
from metagrove.training import folders
from metagrove.training.growth import Watch, compare_windows


def detectors(window, threshold, cooldown):
    """Those that need nothing but what was recorded."""
    ratio = Growth(growth_window=window, growth_threshold=threshold, growth_cooldown=cooldown)
    return {f"ratio {threshold:g}": ratio, "Welch's t 5": dataclasses.replace(ratio, growth_detector="welch")}


def replay(records, growth):
    """Alarms, windows compared, and what came nearest to the threshold: the most, of an accuracy's ratio the least."""
    watch, alarms, compared = Watch(), [], []
    accuracy = "accuracy" in records[0]
    for record in records:
        before, step = watch.before, record["step"]
        if watch.see(record, growth):
            alarms.append(step)
            watch.last_growth = step
        if step % growth.growth_window == 0 and before and step >= growth.growth_cooldown:
            found = compare_windows(before, watch.before, growth, higher_is_better=accuracy)
            compared.append(found.get("ratio", found.get("t")))
    nearest = min if accuracy and growth.growth_detector == "ratio" else max
    return {"alarms": alarms, "windows": len(compared), "nearest": nearest(compared) if compared else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--threshold", type=float, default=1.25)
    parser.add_argument("--cooldown", type=int, default=8000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for run in args.runs:
        about = files.read_json(run / "run.json")
        records = [record for record in folders.read_metrics(run) if "loss" in record]
        growths = detectors(args.window, args.threshold, args.cooldown)
        found = {name: replay(records, growth) for name, growth in growths.items()}
        rows.append({"run": run.name, "trained_by": about["provenance"]["command"], "detectors": found})
    result = {"provenance": folders.provenance(shlex.join(["python", *sys.argv])), "rows": rows}
    write_result(result, args.out)


if __name__ == "__main__":
    main()

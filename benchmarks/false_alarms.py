"""How often each detector would have grown on runs whose tasks never change: every growth there is a false alarm.

    python benchmarks/false_alarms.py RUN ... --out results/false-alarms.json

The recorded losses are shown to the detector again. Up to its first alarm a run that may grow is the same as one that
may not, so that this is what it would have done; after an alarm the cool-down goes on as in training.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

from metagrove import files
from metagrove.run import folders
from metagrove.run.config import Growth
from metagrove.run.growth import Watch, compare_windows

DETECTORS = {
    "ratio 1.25": Growth(growth_window=1000),
    "Welch's t 5": Growth(growth_window=1000, growth_detector="welch"),
}


def replay(records, growth):
    """Alarms, windows compared, and the largest number that was compared with the threshold."""
    watch, alarms, largest, windows = Watch(), [], float("-inf"), 0
    for record in records:
        before, step = watch.before, record["step"]
        cause = watch.see(record, growth)
        if cause:
            alarms.append(step)
            watch.last_growth = step
        if step % growth.growth_window == 0 and before and step >= growth.growth_cooldown:
            compared = compare_windows(before, watch.before, growth, higher_is_better=False)
            largest, windows = max(largest, compared.get("ratio", compared.get("t"))), windows + 1
    return {"alarms": alarms, "windows": windows, "largest": largest}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for run in args.runs:
        about = files.read_json(run / "run.json")
        records = [record for record in folders.read_metrics(run) if "loss" in record]
        found = {name: replay(records, growth) for name, growth in DETECTORS.items()}
        rows.append({"run": run.name, "trained_by": about["provenance"]["command"], "detectors": found})
    result = {"format": 1, "provenance": folders.provenance(shlex.join(["python", *sys.argv])), "rows": rows}
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

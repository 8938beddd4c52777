"""When the paper's detector would have grown on runs that did not; where tasks never change, every alarm is false.

    python benchmarks/false_alarms.py RUN ... --out results/false-alarms.json
    python benchmarks/false_alarms.py RUN --window 100 --threshold .85 --cooldown 400 --out results/image-alarms.json

The recorded losses (accuracies, of a classifier) are shown to the detector again. Up to its first alarm a run that
may grow is the same as one that may not, up to rounding, so that this is what it would have done; after an alarm the
cool-down goes on as in training.
"""

import argparse
import shlex
import sys
from pathlib import Path

from result import write_result

from metagrove import files
from metagrove.train import folders
from metagrove.train.growth.detect import RatioDetector
from metagrove.train.records import GrowthState


def replay(records, detector, cooldown):
    """Alarms, windows compared, and what came nearest to the threshold: the most, of an accuracy the least."""
    state, alarms, compared, rests_until = GrowthState(), [], [], cooldown
    for record in records:
        state, before = detector.remember(state, record)
        if before is None or record.step < cooldown:
            continue
        cause, grows = detector.compare(before, state.before, record.watched)
        compared.append(cause.ratio)
        if grows and record.step >= rests_until:
            alarms.append(record.step)
            rests_until = record.step + cooldown
    nearest = min if records[0].watched == "accuracy" else max
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
        records = [record for record in folders.read_metrics(run) if record.means]
        ratio = RatioDetector(args.window, args.threshold)
        found = {f"ratio {args.threshold:g}": replay(records, ratio, args.cooldown)}
        rows.append({"run": run.name, "trained_by": about["provenance"]["command"], "detectors": found})
    result = {"provenance": folders.provenance(shlex.join(["python", *sys.argv])), "rows": rows}
    write_result(result, args.out)


if __name__ == "__main__":
    main()

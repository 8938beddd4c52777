"""A hundred meta-steps of the paper's whole protocol, 84 px: does it run, does it learn?

    python benchmarks/full_protocol.py --out results/full-protocol.json

Needs the four pools at 84 px (`metagrove data prepare NAME --from ... --size 84`). Everything is as in the preset but
the number of meta-steps, how often the loss is written down, and the number of validation tasks.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from result import write_result

from metagrove import files
from metagrove.training import folders

STEPS, BLOCK, VALIDATION_TASKS = 100, 20, 40
CHANGES = ["--steps", STEPS, "--log-every", BLOCK, "--validate-every", STEPS, "--validation-tasks", VALIDATION_TASKS]


def train(name: str, folder: Path) -> None:
    """Run the real command."""
    changes = [str(one) for one in CHANGES]
    command = [sys.executable, "-m", "metagrove", "train", "images-1shot", "--learner", name, *changes]
    subprocess.run([*command, "--out", str(folder)], check=True)


def summary(name: str, folder: Path) -> dict[str, Any]:
    """What the run wrote down."""
    records, last = folders.read_metrics(folder), files.read_json(folder / "last.json")
    return {
        "what": name,
        "losses": [[record.step, record.means["loss"]] for record in records],
        "validation": files.as_json(records[-1].validation),
        "peak_memory_mb": last["peak_memory_mb"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--learners", nargs="+", default=["hsml", "maml"])
    args = parser.parse_args()
    rows = []
    for name in args.learners:
        with tempfile.TemporaryDirectory() as folder:
            train(name, Path(folder) / "run")
            rows.append(summary(name, Path(folder) / "run"))
    result = {
        "about": f"{STEPS} meta-steps of the preset images-1shot; losses are means of {BLOCK} meta-steps each",
        "changes": shlex.join(str(one) for one in CHANGES),
        "provenance": folders.provenance(shlex.join(["python", *sys.argv])),
        "rows": rows,
    }
    write_result(result, args.out)


if __name__ == "__main__":
    main()

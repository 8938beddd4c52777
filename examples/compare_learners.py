"""Train two learners on the same tasks and compare them on the same test tasks.

python examples/compare_learners.py [meta-steps]
"""

import sys

import metagrove as mg
from metagrove.show.console import print_comparison

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
runs = [
    mg.train("toy-quick", learner=name, steps=steps, validate_every=steps, out=f"runs/example-{name}")
    for name in ("maml", "meta-sgd")
]
print_comparison(mg.compare(runs, num_tasks=2000, seed=0))

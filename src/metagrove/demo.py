"""`metagrove demo`: train HSML and MAML for about two minutes, set them beside a released model, draw the figures."""

from pathlib import Path

from rich.console import Console

from metagrove.evaluate.summaries import comparison
from metagrove.paper.experiments import BUDGETS, Experiment, Row
from metagrove.paper.reproduce import ExperimentContext, run_of, train_if_needed
from metagrove.serve.run import load
from metagrove.show.console import print_comparison
from metagrove.show.figures import draw_all

ROWS = (Row("MAML on toy-quick", "toy-quick", (0,), "maml"), Row("HSML on toy-quick", "toy-quick", (0,)))
PLACE = ExperimentContext(Experiment("the demo", ROWS), BUDGETS["paper"], Path("runs/demo"))
RELEASED = "toy-5shot-best"
NEXT = """
What you saw: each task is one function seen at 5 points. MAML starts every task from the same place; HSML first finds
the task's place among its clusters and starts from there. The released model had 70,000 meta-steps.

Next (after `. .venv/bin/activate`, if you came here by `make demo`)
  metagrove list                           presets, learners, released models
  metagrove train toy-quick --help         every setting
  metagrove evaluate toy-5shot-best        scores after each number of inner steps, by family
  metagrove show toy-5shot-best            its figures
  README.md                                your own numbers from Python, in three lines"""


def demo(out: Path) -> bool:
    """The whole tour. False if a person stopped it; run again, it goes on."""
    console = Console()
    for row in ROWS:
        if not train_if_needed(row, 0, PLACE):
            return False
    maml, hsml = (load(run_of(row, 0, PLACE)[1]) for row in ROWS)
    console.print("\nMean squared error on the same 40,000 new tasks, lower is better:")
    print_comparison(comparison([hsml, maml, load(RELEASED)], num_tasks=40_000, seed=0))
    for path in draw_all(hsml, [maml], out, seed=0):
        console.print(f"figure: {path}", soft_wrap=True)
    console.print(NEXT, highlight=False, soft_wrap=True)
    return True

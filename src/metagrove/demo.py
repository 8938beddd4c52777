"""`metagrove demo`: train HSML and MAML for about a minute, compare them with a released model, draw the figures."""

from pathlib import Path

from rich.console import Console

from metagrove.evaluation.summaries import compare
from metagrove.serve.run import Run, load, train
from metagrove.show.console import print_comparison
from metagrove.show.figures import draw_all

STEPS = 2000
FOLDERS = {"maml": Path("runs/demo/maml"), "hsml": Path("runs/demo/hsml")}
NUM_TASKS = 4000
RELEASED = "toy-5shot-best"
FIRST = "HSML and MAML learn four families of functions from 5 points: {steps:,} meta-steps each, about a minute in all"
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
    console.print(FIRST.format(steps=STEPS), highlight=False, soft_wrap=True)
    try:
        maml, hsml = (trained(learner, folder) for learner, folder in FOLDERS.items())
    except KeyboardInterrupt:
        return False
    console.print(f"\nMean squared error on the same {NUM_TASKS:,} new tasks, lower is better:")
    print_comparison(compare([hsml, maml, load(RELEASED)], num_tasks=NUM_TASKS, seed=0))
    for path in draw_all(hsml, [maml], out, seed=0):
        console.print(f"figure: {path}", soft_wrap=True)
    console.print(NEXT, highlight=False, soft_wrap=True)
    return True


def trained(learner: str, folder: Path) -> Run:
    """The run in `folder`, begun or resumed."""
    resume = (folder / "run.json").exists()
    method = None if learner == "hsml" else learner
    return train("toy-quick", learner=method, out=folder, resume=resume, steps=STEPS, validate_every=STEPS // 2)

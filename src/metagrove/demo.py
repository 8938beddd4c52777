"""`metagrove demo`: find clusters of functions by evidence, train HSML on them and MAML, compare, draw the figures."""

from pathlib import Path

from metagrove.evaluation.hierarchy import measure_hierarchy
from metagrove.evaluation.summaries import compare
from metagrove.serve.run import Run, load
from metagrove.serve.train import train
from metagrove.show.console import print_comparison, print_hierarchy
from metagrove.show.figures import draw_all
from metagrove.terminal import TerminalConsole

STEPS = 2000
FIT_STEPS = 1000
"""Steps of the fit of the clusters."""
FOLDERS = {"hsml": Path("runs/demo/hsml"), "maml": Path("runs/demo/maml")}
NUM_TASKS = 4000
RELEASED = "toy-5shot-evidence"
FIRST = """\
Tasks are functions of four families, each seen at 5 points; no learner is told which family a task is of.
HSML first finds clusters of tasks by evidence and merges them into a tree; then HSML and MAML are trained for {steps:,}
meta-steps each. About a minute in all."""
AGREEMENT = """
What the tree of HSML is. NMI is the agreement with the families (1: the same partition, 0: independent):"""
NEXT = """
What you saw: MAML starts every task from the same initialisation. HSML first places the task in its tree, by the
evidence of its 5 points under each cluster's prior over functions, and starts from there. With another
task's place its error is far larger: the tree matters. The released model, of the same kind, had 50,000 meta-steps.

Next (after `. .venv/bin/activate`, if you came here by `make demo`)
  metagrove list                           presets, learners, released models
  metagrove report runs/demo/hsml          one page that explains the run, with what each node of the tree is
  metagrove train toy-5shot-evidence       the same with 50,000 meta-steps; --help lists every setting
  metagrove train toy-5shot-grove          the clusters themselves as a predictor, with standard deviations
  README.md                                your own numbers from Python, in three lines"""


def demo(out: Path) -> bool:
    """Run all steps of the demo. False if the user interrupted it; running it again resumes it."""
    console = TerminalConsole()
    console.print(FIRST.format(steps=STEPS), highlight=False, soft_wrap=True)
    try:
        hsml, maml = (trained(learner, folder) for learner, folder in FOLDERS.items())
    except KeyboardInterrupt:
        return False
    console.print(f"\nMean squared error on the same {NUM_TASKS:,} new tasks, lower is better:")
    print_comparison(compare([hsml, maml, load(RELEASED)], num_tasks=NUM_TASKS, seed=0))
    if (measures := measure_hierarchy(hsml, num_tasks=NUM_TASKS)) is not None:
        console.print(AGREEMENT, highlight=False, soft_wrap=True)
        print_hierarchy(console, measures, hsml.metric)
    for path in draw_all(hsml, [maml], out, seed=0):
        console.print(f"figure: {path}", soft_wrap=True)
    console.print(NEXT, highlight=False, soft_wrap=True)
    return True


def trained(learner: str, folder: Path) -> Run:
    """The run in `folder`, begun or resumed."""
    resume = (folder / "run.json").exists()
    how = {"out": folder, "resume": resume, "steps": STEPS, "validate_every": STEPS // 2}
    if learner == "hsml":
        return train("toy-5shot-evidence", fit_steps=FIT_STEPS, **how)
    return train("toy-quick", learner=learner, **how)

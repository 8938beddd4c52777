"""Definitions of the experiments of `metagrove reproduce`: rows, searches and budgets."""

from metagrove.paper.experiments.continual import (
    CONTINUAL_DETECTORS,
    CONTINUAL_IMAGES,
    CONTINUAL_TOY,
    CONTINUAL_TOY_RETURN,
)
from metagrove.paper.experiments.functions import SEARCHES, TABLE1, TOY
from metagrove.paper.experiments.image_options import IMAGE_COMBINATION, IMAGE_OPTIONS
from metagrove.paper.experiments.images import EACH_ALONE, LEAVE_ONE_OUT, TABLE2
from metagrove.paper.experiments.kinds import BUDGETS, Budget, BudgetName, Experiment, Row, Search, Settings, budget_of
from metagrove.paper.experiments.mini_imagenet import MINI_IMAGENET
from metagrove.paper.experiments.studies import STUDIES

__all__ = [
    "ANALYSES",
    "BUDGETS",
    "EXPERIMENTS",
    "SEARCHES",
    "Budget",
    "BudgetName",
    "Experiment",
    "Row",
    "Search",
    "Settings",
    "budget_of",
]

ANALYSES: dict[str, str] = {
    "theory": "the quantities of the paper's theorems on trained runs (section 5, appendix A)",
    "figures": "schemes like figures 1 and 2, and the figure of theory; --out docs/figures",
}
"""Studies that measure trained runs instead of scoring them, with descriptions."""
EXPERIMENTS: dict[str, Experiment] = {
    "toy": TOY,
    "table1": TABLE1,
    "table2": TABLE2,
    "leave-one-out": LEAVE_ONE_OUT,
    "each-alone": EACH_ALONE,
    "image-options": IMAGE_OPTIONS,
    "image-combination": IMAGE_COMBINATION,
    "mini-imagenet": MINI_IMAGENET,
    "continual-toy": CONTINUAL_TOY,
    "continual-toy-return": CONTINUAL_TOY_RETURN,
    "continual-detectors": CONTINUAL_DETECTORS,
    "continual-images": CONTINUAL_IMAGES,
    **STUDIES,
}

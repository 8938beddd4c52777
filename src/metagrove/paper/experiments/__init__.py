"""Definitions of the experiments of `metagrove reproduce`: rows, searches and budgets."""

from metagrove.paper.experiments.continual import CONTINUAL_IMAGES, CONTINUAL_TOY
from metagrove.paper.experiments.functions import SEARCHES, TABLE1, TOY
from metagrove.paper.experiments.images import EACH_ALONE, LEAVE_ONE_OUT, MINI_IMAGENET, TABLE2
from metagrove.paper.experiments.kinds import BUDGETS, Budget, BudgetName, Experiment, Row, Search, Settings

__all__ = ["BUDGETS", "EXPERIMENTS", "SEARCHES", "Budget", "BudgetName", "Experiment", "Row", "Search", "Settings"]

EXPERIMENTS: dict[str, Experiment] = {
    "toy": TOY,
    "table1": TABLE1,
    "table2": TABLE2,
    "leave-one-out": LEAVE_ONE_OUT,
    "each-alone": EACH_ALONE,
    "mini-imagenet": MINI_IMAGENET,
    "continual-toy": CONTINUAL_TOY,
    "continual-images": CONTINUAL_IMAGES,
}

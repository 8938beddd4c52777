"""Growth of clusters while a learner is trained (paper, algorithm 1, lines 3-5 and 12): when, and what is then done."""

from metagrove.training.growth.grow import as_grown, clusters_of, describe_growth, grow_if_called_for

__all__ = ["as_grown", "clusters_of", "describe_growth", "grow_if_called_for"]

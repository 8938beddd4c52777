"""Growth of clusters during training (paper, algorithm 1, lines 3-5 and 12): detection, and the added cluster."""

from metagrove.training.growth.grow import as_grown, clusters_of, describe_growth, grow_if_called_for

__all__ = ["as_grown", "clusters_of", "describe_growth", "grow_if_called_for"]

"""Classes of curves by shape, as the paper interprets its clusters: a rule on the true function of a task.

A curve is rising or falling if it never turns, an arc if it turns once and a wave if it turns more often. A turn is a
change of direction after which the curve moves by more than `LEAST_TURN` of its whole range, so that the end of a
parabola that only just bends back does not count.
"""

import numpy as np

__all__ = ["LEAST_TURN", "SHAPES", "shape_classes"]

SHAPES = ("rising", "falling", "arc", "wave")
"""Names of the classes, in the order of their numbers."""
LEAST_TURN = 0.05
"""Smallest movement, as a fraction of the curve's range, that counts as a turn."""


def shape_classes(curves: np.ndarray) -> np.ndarray:
    """Classify curves by their shape.

    Args:
        curves: Values of each curve on a grid in ascending order, shape (curves, points).

    Returns:
        The index into `SHAPES` of each curve.
    """
    turns = num_turns(curves)
    falling = (curves[:, -1] < curves[:, 0]).astype(int)
    return np.where(turns == 0, falling, np.where(turns == 1, 2, 3))


def num_turns(curves: np.ndarray) -> np.ndarray:
    """Count the turns of each curve: the direction changes where it has left its last extreme by `LEAST_TURN`."""
    least = LEAST_TURN * np.ptp(curves, axis=1)
    low = high = curves[:, 0]
    direction, turns = np.zeros(len(curves), int), np.zeros(len(curves), int)
    for values in curves.T:
        low, high = np.minimum(low, values), np.maximum(high, values)
        up = (direction != 1) & (values - low > least)
        down = (direction != -1) & (high - values > least) & ~up
        turns += (up | down) & (direction != 0)
        direction = np.where(up, 1, np.where(down, -1, direction))
        low, high = np.where(down, values, low), np.where(up, values, high)
    return turns

"""Level and slopes of a task, in the units of the user's columns.

y ≈ level + Σ_j slope_j x_j by ridge regression on encoded rows, whose inputs are 0 at the mean of the training tasks:
the level is the target at average inputs. Known tasks are compared and clusters described by these values.
"""

import numpy as np

from metagrove.tables.schema import Column, Schema

__all__ = ["describe_group", "level_and_slopes", "levels_in_units", "traits", "unit_names"]

PENALTY = 1.0
"""Ridge penalty on slopes of standardised inputs."""
MANY_INPUTS = 500
"""Number of inputs from which the fit uses the dual form."""
TELLING = 0.5
"""A trait describes a cluster if its mean differs from that of other tasks by this many standard deviations."""
TRAITS = 2
"""Maximum number of traits in the description of a cluster."""


def level_and_slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fit level and slopes.

    Args:
        x: Encoded inputs of shape (n, x_dim).
        y: Encoded targets of shape (n, y_dim).

    Returns:
        Shape (y_dim · (1 + x_dim),): for each target its level, then its slope in each input.
    """
    if x.shape[1] > MANY_INPUTS:
        return many_slopes(x.astype(np.float64), y.astype(np.float64))
    design = np.concatenate([np.ones((len(x), 1)), x.astype(np.float64)], 1)
    penalty = PENALTY * np.eye(design.shape[1])
    penalty[0, 0] = 1e-9
    found = np.linalg.solve(design.T @ design + penalty, design.T @ y.astype(np.float64))
    return found.T.ravel()


def many_slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same in the dual form, linear in the number of inputs: w = Xᶜᵀ(XᶜXᶜᵀ + λI)⁻¹yᶜ of centred rows."""
    mean_x, mean_y = x.mean(0, keepdims=True), y.mean(0, keepdims=True)
    centred = x - mean_x
    slopes = centred.T @ np.linalg.solve(centred @ centred.T + PENALTY * np.eye(len(x)), y - mean_y)
    return np.concatenate([mean_y - mean_x @ slopes, slopes]).T.ravel()


def input_names(schema: Schema) -> list[str]:
    """A name for each encoded input: the column's, or COLUMN=CATEGORY."""
    return [name for column in schema.inputs for name in column.encoded_names]


def unit_names(schema: Schema) -> list[str]:
    """Name the values of `levels_in_units`: TARGET, and TARGET by INPUT."""
    targets = [name for column in schema.targets for name in column.encoded_names]
    return [name for target in targets for name in (target, *(f"{target} by {one}" for one in input_names(schema)))]


def levels_in_units(levels: np.ndarray, schema: Schema) -> np.ndarray:
    """Convert level and slopes to the units of the columns: the level, and the change for one unit of each input.

    Args:
        levels: Shape (..., y_dim · (1 + x_dim)).
        schema: The columns.

    Returns:
        The same shape; shares from 0 to 1 for classes.
    """
    inputs = np.array([std for column in schema.inputs for std in scales(column)])
    offset, factor = [], []
    for column in schema.targets:
        for std in scales(column):
            offset += [column.mean if column.kind != "category" else 0.0, *np.zeros(len(inputs))]
            factor += [std, *(std / inputs)]
    return levels * np.array(factor) + np.array(offset)


def scales(column: Column) -> list[float]:
    """The standard deviation of each encoded value of a column; 1 for a category or an indicator."""
    return [1.0] * column.width if column.kind == "category" else [column.std, *[1.0] * (column.width - 1)]


def traits(levels: np.ndarray, member: np.ndarray, schema: Schema) -> list[str]:
    """Describe a group of tasks by its differences from the others.

    Args:
        levels: Level and slopes of all tasks, shape (tasks, ...), encoded.
        member: Mask of the tasks of the group, shape (tasks,).
        schema: The columns.

    Returns:
        Traits by decreasing difference, e.g. "high fertility (5.9)"; empty if there are none.
    """
    inside, outside = levels[member], levels[~member]
    if not len(inside) or not len(outside):
        return []
    std = np.maximum(levels.std(0), 1e-9)
    gap = (inside.mean(0) - outside.mean(0)) / std
    here, there = levels_in_units(inside.mean(0), schema), levels_in_units(outside.mean(0), schema)
    order = [i for i in np.argsort(-np.abs(gap), kind="stable") if abs(gap[i]) >= TELLING][:TRAITS]
    names = slope_names(schema)
    return [trait(names[i], float(here[i]), float(there[i])) for i in order]


def slope_names(schema: Schema) -> list[tuple[str, str]]:
    """The target and the input of each value of `levels_in_units`; no input for a level."""
    targets = [name for column in schema.targets for name in column.encoded_names]
    return [(target, one) for target in targets for one in ("", *input_names(schema))]


def trait(name: tuple[str, str], value: float, others: float) -> str:
    """Describe a value compared with other tasks: "high y (3.2)", "y falls more slowly with x (-0.5 per unit)"."""
    target, by = name
    if not by:
        return f"{'high' if value > others else 'low'} {target} ({value:.3g})"
    verb = "rises" if value > 0 else "falls"
    more = "" if value * others < 0 else " faster" if abs(value) > abs(others) else " more slowly"
    return f"{target} {verb}{more} with {by} ({value:+.3g} per unit)"


def describe_group(levels: np.ndarray, member: np.ndarray, schema: Schema) -> str:
    """Describe a group of tasks in one line, with its size."""
    count = int(member.sum())
    found = traits(levels, member, schema) or (["like the others"] if 0 < count < len(member) else [])
    return ", ".join([*found, f"{count} task{'' if count == 1 else 's'}"])

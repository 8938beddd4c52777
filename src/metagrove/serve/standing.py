"""Where a fitted task stands among those that the run knows, as plain data and in words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metagrove.learner import Learner, Meta
from metagrove.serve.index import places, read_atlas

FAR = 95.0
"""A task further out than so many of 100 held-out ones is said to be unlike them."""


def standing(
    folder: Path, learner: Learner, meta: Meta, embedding: np.ndarray | None, assignments: Sequence[np.ndarray]
) -> dict[str, Any]:
    """The task's shares of the clusters of each level, the known tasks most like it, and how far out it is."""
    index = read_atlas(folder)
    if index is None or index.embeddings is None or embedding is None:
        return {"clusters": shares(assignments), "most_like": [], "percentile": None, "unlike": None}
    percentile = index.percentile(embedding, places(learner, meta, embedding[None])[0])
    return {
        "clusters": shares(assignments),
        "most_like": index.most_like(embedding),
        "percentile": percentile,
        "unlike": percentile >= FAR,
    }


def shares(assignments: Sequence[np.ndarray]) -> list[list[float]]:
    """A task's shares of the clusters of each level below the root."""
    found, share = [], np.ones(1)
    for assignment in assignments:
        share = share @ assignment
        found.append([float(one) for one in share])
    return [level for level in found if len(level) > 1]


def described(about: dict[str, Any]) -> list[str]:
    """`FittedTask.about` in words, a line each."""
    lines = [f"adapted {about['run']} to {about['rows']} rows by {about['inner_steps']} inner steps"]
    for number, level in enumerate(about["clusters"], 1):
        parts = [f"{k + 1} ({100 * level[k]:.0f} %)" for k in np.argsort(level)[::-1] if level[k] >= 0.01]
        lines.append(f"clusters of level {number}: {', '.join(parts)}")
    if about["most_like"]:
        lines.append("most like: " + ", ".join(one["task"] for one in about["most_like"]))
    if about["percentile"] is not None:
        lines.append(f"further out than {about['percentile']:.0f} % of held-out tasks")
    if about["unlike"]:
        lines.append("warning: this task looks unlike those the run was trained on; its predictions may be poor")
    return lines

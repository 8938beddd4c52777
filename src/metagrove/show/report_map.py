"""Map of tasks: t-SNE of the embeddings of test tasks and of indexed training and validation tasks."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from metagrove.serve.index import TaskIndex
from metagrove.show.report_data import TaskResults
from metagrove.show.report_html import Html, tag
from metagrove.show.report_marks import marker
from metagrove.show.report_tree import describe

MAPPED = 400
"""Maximum number of tasks in the map, limited by the run time of exact t-SNE."""
WIDE, HIGH, ROOM = 560, 400, 14
"""Size of the map and its margin."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A task in the map."""

    title: str
    family: int
    embedding: np.ndarray
    color: int
    """Its strongest cluster, or for a learner without clusters its family."""
    known: bool = False
    """Whether it is a training or validation task."""


def points_of(results: TaskResults, index: TaskIndex | None, families: Sequence[str]) -> list[Point]:
    """Collect test tasks, and as many indexed training and validation tasks as fit."""
    if results.embeddings is None:
        return []
    chosen = evenly(len(results.scores), MAPPED)
    strongest = results.shares[0].argmax(1) if results.assignments else results.family
    points = [
        Point(describe(results, i, families), results.cases[i].family, results.embeddings[i], int(strongest[i]))
        for i in chosen
    ]
    if index is None or index.embeddings is None or index.embeddings.shape[1:] != results.embeddings.shape[1:]:
        return points
    known = [i for i, family in enumerate(index.families) if family in families]
    numbers = [families.index(family) if family in families else -1 for family in index.families]
    colors = numbers if index.shares is None else index.shares.argmax(1).tolist()
    return points + [
        Point(
            f"{index.names[i]} · {index.splits[i]} task",
            numbers[i],
            index.embeddings[i],
            colors[i],
            known=True,
        )
        for i in (known[j] for j in evenly(len(known), MAPPED - len(points)))
    ]


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indices below `count`."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()


def task_map(points: Sequence[Point]) -> Html:
    """Draw tasks in their colours with the shapes of their families; training and validation tasks are hollow."""
    places = tsne(np.stack([point.embedding for point in points])).tolist()
    marks = [
        marker(
            point.family,
            ROOM + x * (WIDE - 2 * ROOM),
            ROOM + y * (HIGH - 2 * ROOM),
            3.6 if point.known else 5,
            tag("title", point.title),
            extra=" known" if point.known else "",
            color=point.color,
        )
        for point, (x, y) in sorted(zip(points, places, strict=True), key=lambda pair: not pair[0].known)
    ]
    label = f"map of {len(points)} tasks, similar ones close to each other"
    return tag("svg", *marks, class_="map", viewBox=f"0 0 {WIDE} {HIGH}", role="img", aria_label=label)


def tsne(embeddings: np.ndarray) -> np.ndarray:
    """Compute deterministic t-SNE coordinates in the unit square."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    components = PCA(min(50, *embeddings.shape), svd_solver="full").fit_transform(embeddings.astype(np.float64))
    perplexity = min(30.0, (len(components) - 1) / 3)
    placed = TSNE(perplexity=perplexity, init="random", method="exact", random_state=0).fit_transform(components)
    low, high = placed.min(0, keepdims=True), placed.max(0, keepdims=True)
    return (placed - low) / np.maximum(high - low, 1e-9)


def only_style(colors: Sequence[int]) -> Html:
    """Return the style that fades other tasks when a legend entry is hovered over."""
    rules = [f"#map:has(.k{c}[tabindex]:is(:hover,:focus)) .map>:not(.m{c}){{opacity:.1}}" for c in colors]
    return tag("style", Html("".join(rules)))

"""The map of tasks: t-SNE of their embeddings, test tasks among those that the run already knew."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from metagrove.serve.index import TaskIndex
from metagrove.show.report_charts import describe, marker
from metagrove.show.report_data import Look
from metagrove.show.report_html import Html, tag

MAPPED = 400
"""Most tasks in the map; with more of them t-SNE takes longer than a person waits."""
WIDE, HIGH, ROOM = 560, 400, 14
"""Size of the map, and what is left free at its edge."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A task in the map."""

    title: str
    family: int
    embedding: np.ndarray
    known: bool = False
    """Was it a training or a validation task?"""


def points_of(seen: Look, atlas: TaskIndex | None, families: Sequence[str]) -> list[Point]:
    """Test tasks, and as many of the known ones as there is room for."""
    if seen.embeddings is None:
        return []
    chosen = evenly(len(seen.scores), MAPPED)
    points = [Point(describe(seen, i, families), seen.cases[i].family, seen.embeddings[i]) for i in chosen]
    if atlas is None or atlas.embeddings is None or atlas.embeddings.shape[1:] != seen.embeddings.shape[1:]:
        return points
    known = [i for i, family in enumerate(atlas.families) if family in families]
    return points + [
        Point(
            f"{atlas.names[i]} · {atlas.splits[i]} task",
            families.index(atlas.families[i]),
            atlas.embeddings[i],
            known=True,
        )
        for i in (known[j] for j in evenly(len(known), MAPPED - len(points)))
    ]


def evenly(count: int, most: int) -> list[int]:
    """So many of `count` numbers, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()


def task_map(points: Sequence[Point]) -> Html:
    """Tasks as marks of their family, named when pointed at; known ones are hollow."""
    places = tsne(np.stack([point.embedding for point in points])).tolist()
    marks = [
        marker(
            point.family,
            ROOM + x * (WIDE - 2 * ROOM),
            ROOM + y * (HIGH - 2 * ROOM),
            3.6 if point.known else 5,
            tag("title", point.title),
            extra=" known" if point.known else "",
        )
        for point, (x, y) in sorted(zip(points, places, strict=True), key=lambda pair: not pair[0].known)
    ]
    label = f"map of {len(points)} tasks, alike ones near each other"
    return tag("svg", *marks, class_="map", viewBox=f"0 0 {WIDE} {HIGH}", role="img", aria_label=label)


def tsne(embeddings: np.ndarray) -> np.ndarray:
    """Each task's place in a square from 0 to 1, the same on every call."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    components = PCA(min(50, *embeddings.shape), svd_solver="full").fit_transform(embeddings.astype(np.float64))
    perplexity = min(30.0, (len(components) - 1) / 3)
    placed = TSNE(perplexity=perplexity, init="random", method="exact", random_state=0).fit_transform(components)
    low, high = placed.min(0, keepdims=True), placed.max(0, keepdims=True)
    return (placed - low) / np.maximum(high - low, 1e-9)


def only_style(families: Sequence[int]) -> Html:
    """Pointing at a family's entry in the legend fades the other families' tasks."""
    rules = [f"#map:has(.k{f}:is(:hover,:focus)) .map>:not(.m{f}){{opacity:.1}}" for f in families]
    return tag("style", Html("".join(rules)))

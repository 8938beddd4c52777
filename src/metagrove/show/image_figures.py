"""The paper's figures for images: support images with soft assignments and activated paths (figure 5, appendix J), and
t-SNE of the gated initialisations θ₀ᵢ (figure 6).

The first shows photographs of the pools. Figures are written only to the folder that the user names, and none is part
of the project: the terms of the datasets determine who may see them.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import normalized_mutual_info_score

from metagrove.errors import InputError
from metagrove.learner import Info, Predictor
from metagrove.outer import probe, task_keys
from metagrove.serve.fitted_task import FittedTask
from metagrove.serve.run import Run
from metagrove.show.figures import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    VERMILION,
    Drawn,
    adapt,
    choose_tasks,
    label_of,
)
from metagrove.sources.source import TaskDraw
from metagrove.task import Examples, Task
from metagrove.training.scores import test_parts

TASKS_PER_FAMILY = 1000
"""Tasks of each dataset in the t-SNE, as in the paper."""
TASKS_SHOWN = 12
"""Number of tasks whose images and paths are shown, as in appendix J."""
SKETCH = 500
"""Dimension of the random projection of an initialisation."""
COMPONENTS = 50
"""Number of principal components that t-SNE is applied to."""
FAMILY_STYLES = [(BLUE, "o"), (VERMILION, "^"), (GREEN, "s"), (ORANGE, "D"), (SKY, "v"), (BLACK, "P")]


def draw_images(run: Run, others: Sequence[Run], *, seed: int) -> dict[str, Figure]:
    """Draw both figures: soft assignments of the first run, and t-SNE with a panel for each run."""
    spec = run.config.source.spec
    for other in others:
        if other.config.source.spec != spec:
            raise InputError(f"{other.folder} cannot be compared with {run.folder}: its images or classes differ")
    return {
        "assignments": assignments_beside_images(run, seed=seed),
        "tsne": initializations([run, *others], tasks_per_family=TASKS_PER_FAMILY, seed=seed),
    }


def assignments_beside_images(run: Run, *, seed: int) -> Figure:
    """Draw the support images, soft assignment and path through the hierarchy of twelve tasks, one row each."""
    tasks = choose_tasks(run.config.source, TASKS_SHOWN, seed=seed)
    adapted = [adapt(run, drawn.task, steps=0) for drawn in tasks]
    levels = adapted[0].assignments
    widths = [5, 3, 3.2] if levels else [5]
    figure = Figure(figsize=(0.8 + 0.82 * sum(widths), 0.4 + 0.92 * len(tasks)))
    rows = figure.subplots(len(tasks), len(widths), squeeze=False, width_ratios=widths)
    for (images, *others), drawn, fitted in zip(rows, tasks, adapted, strict=True):
        draw_support(images, drawn)
        if others:
            draw_shares(others[0], fitted)
            draw_hierarchy(others[1], fitted.assignments)
    rows[0][0].set_title("support images, one of each class")
    if levels:
        rows[0][1].set_title("assignment to clusters, eq. (6)")
        rows[0][2].set_title("activated path, first level at the bottom")
        name_clusters(rows[-1][1], levels[0])
    else:
        figure.suptitle(f"{label_of(run)} has no clusters: images only")
    return figure


def draw_support(axes: Axes, drawn: Drawn) -> None:
    """Draw the first support image of each class."""
    axes.imshow(strip(first_of_each_class(drawn.task)))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_ylabel(drawn.name, rotation="horizontal", ha="right", va="center")


def first_of_each_class(task: Task) -> Float[np.ndarray, "k h w c"]:
    """Return the first support image of each class, in the order of labels."""
    real = np.asarray(task.support.mask)
    labels = np.asarray(task.support.y)[real].argmax(1)
    _, first = np.unique(labels, return_index=True)
    return np.asarray(task.support.x)[real][first]


def strip(images: Float[np.ndarray, "k h w c"]) -> Float[np.ndarray, "h _ c"]:
    """Concatenate images horizontally with white gaps."""
    gap = max(1, images.shape[2] // 16)
    spaced = np.pad(images.clip(0, 1), ((0, 0), (0, 0), (0, gap), (0, 0)), constant_values=1)
    return np.concatenate(list(spaced), axis=1)[:, :-gap]


def draw_shares(axes: Axes, adapted: FittedTask) -> None:
    """Draw p^{0→k} of one task; darker is larger."""
    shares = adapted.assignments[0][:1]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for column, share in enumerate(shares[0]):
        color = "white" if share > 0.55 else "black"
        axes.text(column, 0, f"{share:.2f}", ha="center", va="center", color=color, fontsize=text_size(shares))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def name_clusters(axes: Axes, shares: np.ndarray) -> None:
    """Label the clusters C1, C2, ... below the last row."""
    positions = range(shares.shape[1])
    axes.set_xticks(positions, [f"C{k + 1}" for k in positions], fontsize=text_size(shares))
    axes.tick_params(length=0)


def text_size(shares: np.ndarray) -> int:
    """Return the font size, smaller for many clusters."""
    return 9 if shares.shape[1] <= 6 else 6


def node_shares(assignments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compute the share of a task in each cluster: s^1 = p^{0→·}, s^{l+1} = Σ_k s^l_k p^{k→·}; the root has 1."""
    return list(itertools.accumulate(assignments[1:], np.matmul, initial=assignments[0][0]))


def draw_hierarchy(axes: Axes, assignments: Sequence[np.ndarray]) -> None:
    """Draw clusters as nodes shaded by share, edges shaded by s_k p^{k→k'}, and the path of largest shares in red."""
    shares = node_shares(assignments)
    widest = max(map(len, shares))
    strongest = [int(level.argmax()) for level in shares]
    for height, (level, assignment) in enumerate(zip(shares[:-1], assignments[1:], strict=True)):
        for (k, to), part in np.ndenumerate(level[:, None] * assignment):
            on_path = (k, to) == (strongest[height], strongest[height + 1])
            ends = across(len(level), widest)[k], across(assignment.shape[1], widest)[to]
            color, width = (VERMILION, 2.0) if on_path else (str(0.9 - 0.9 * float(part)), 0.8 + 1.2 * float(part))
            axes.plot(ends, (height, height + 1), color=color, linewidth=width, zorder=2 if on_path else 1)
    for height, (level, best) in enumerate(zip(shares, strongest, strict=True)):
        rings = [VERMILION if k == best else "0.6" for k in range(len(level))]
        positions = across(len(level), widest), np.full(len(level), height)
        axes.scatter(
            *positions, s=80, c=level, cmap="Blues", vmin=0, vmax=1, edgecolors=rings, linewidths=1.4, zorder=3
        )
    axes.set(xlim=(-0.6, widest - 0.4), ylim=(-0.45, len(shares) - 0.55))
    axes.set_axis_off()


def across(count: int, widest: int) -> np.ndarray:
    """Return the positions of the nodes of a level, distributed over the width of the widest level."""
    return (np.arange(count) + 0.5) * widest / count - 0.5


def initializations(runs: Sequence[Run], *, tasks_per_family: int, seed: int) -> Figure:
    """Draw t-SNE of the initialisations of each run on the same test tasks, coloured by dataset."""
    source = runs[0].config.source
    figure = Figure(figsize=(4.6 * len(runs), 4.9))
    panels = figure.subplots(1, len(runs), squeeze=False)[0]
    for axes, run in zip(panels, runs, strict=True):
        vectors, families, shares = tailored(run, test_parts(source, seed), num_tasks=tasks_per_family)
        axes.set_title(label_of(run))
        axes.set_xticks([])
        axes.set_yticks([])
        if np.ptp(vectors, axis=0).any():
            components = principal(vectors)
            axes.set_title(title(run, components, families, shares))
            scatter(axes, embed(components), families, source.family_names)
        else:
            axes.text(0.5, 0.5, "same initialisation\nfor every task", ha="center", va="center")
    figure.suptitle(f"t-SNE of the gated initialisation, {tasks_per_family:,} test tasks of each dataset", fontsize=9)
    if drawn := next((axes for axes in panels if axes.collections), None):
        legend: Any = figure.legend(*drawn.get_legend_handles_labels(), loc="outside lower center", ncols=6)
        for handle in legend.legend_handles:
            handle.set(sizes=[40], alpha=1)
    return figure


def tailored(
    run: Run, parts: Sequence[tuple[TaskDraw, PRNGKeyArray]], *, num_tasks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Compute a sketch of θ₀ᵢ, the family and the first-level assignments of test tasks of each part."""
    learner, chunk_size = run.config.learner, run.config.training.task_chunk_size
    found = [
        probe(learner, run.meta, part, task_keys(key, num_tasks), keep_sketch, steps=0, task_chunk_size=chunk_size)
        for part, key in parts
    ]
    return jax.tree.map(lambda *each: np.concatenate(each), *found)


def keep_sketch(task: Task, predictor: Predictor, info: Info) -> tuple[Array, Array, Array | None]:
    """Return, for `outer.probe`, a sketch of θ₀ᵢ, the family and the first-level assignment of a task."""
    del predictor
    return sketch(parameters(info.path)), task.family, info.assignments[0][0] if info.assignments else None


def parameters(predictor: Any) -> Float[Array, " n"]:
    """Flatten all parameters of a predictor, without a support set that is bound to it."""

    def is_support(part: Any) -> bool:
        return isinstance(part, Examples)

    net = jax.tree.map(lambda part: None if is_support(part) else part, predictor, is_leaf=is_support)
    return ravel_pytree(eqx.filter(net, eqx.is_inexact_array))[0]


def sketch(values: Float[Array, " n"]) -> Float[Array, " m"]:
    """Project parameters to `SKETCH` dimensions with approximately preserved distances (count sketch).

    Each parameter is added with a random sign to one of 500 sums. Parameters that all tasks share shift all sums
    equally and do not change distances.
    """
    if values.size <= SKETCH:
        return values
    random = np.random.default_rng(0)
    order, signs = random.permutation(values.size), random.choice(np.array([-1, 1], np.float32), values.size)
    padded = jnp.pad((values * signs)[order], (0, -values.size % SKETCH))
    return padded.reshape(-1, SKETCH).sum(0)


def principal(vectors: np.ndarray) -> np.ndarray:
    """Compute the first principal components of each vector."""
    return PCA(min(COMPONENTS, *vectors.shape), random_state=0).fit_transform(vectors.astype(np.float64))


def embed(components: np.ndarray) -> np.ndarray:
    """Embed vectors in the plane by t-SNE."""
    perplexity = min(30.0, (len(components) - 1) / 3)
    return TSNE(perplexity=perplexity, init="random", random_state=0).fit_transform(components)


def title(run: Run, components: np.ndarray, families: np.ndarray, shares: np.ndarray | None) -> str:
    """Return the title of a panel, with the agreement of clusters and datasets if there are several."""
    num_families = len(np.unique(families))
    if num_families == 1:
        return label_of(run)
    agreements = [f"k-means {kmeans_nmi(components, families):.2f}"]
    if shares is not None:
        agreements += [f"own clusters {normalized_mutual_info_score(families, shares.argmax(1)):.2f}"]
    return f"{label_of(run)}\nNMI with the dataset: {', '.join(agreements)}"


def kmeans_nmi(vectors: np.ndarray, families: np.ndarray) -> float:
    """Compute the normalised mutual information of the families and as many k-means clusters."""
    how: Any = {"n_init": 10, "random_state": 0}
    clusters = KMeans(len(np.unique(families)), **how).fit_predict(vectors)
    return float(normalized_mutual_info_score(families, clusters))


def scatter(axes: Axes, positions: np.ndarray, families: np.ndarray, names: Sequence[str]) -> None:
    """Draw tasks in the plane with a colour and a marker for each family."""
    size = float(np.clip(24_000 / len(positions), 6, 30))
    for family, (color, marker) in zip(np.unique(families), itertools.cycle(FAMILY_STYLES), strict=False):
        at = positions[families == family]
        axes.scatter(*at.T, s=size, c=color, marker=marker, alpha=0.6, linewidths=0, label=names[family])

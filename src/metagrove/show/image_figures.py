"""The paper's figures for images: soft assignments and activated paths beside a task's support images (figure 5,
appendix J), and t-SNE of the tailored initialisations θ₀ᵢ (figure 6).

The first shows photographs of the pools. Figures are written to the folder that the user asks for and nowhere else:
none is stored in the project, and who may see one is for the terms of the datasets to say.
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
from metagrove.learner import Learner, Meta
from metagrove.outer import over_tasks
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
from metagrove.train.scores import in_batches, test_parts

TASKS_PER_FAMILY = 1000
"""Tasks of each dataset in the t-SNE, as in the paper."""
TASKS_SHOWN = 12
"""Tasks whose images and paths are shown, as in appendix J."""
SKETCH = 500
"""Numbers that are kept of each initialisation."""
COMPONENTS = 50
"""Principal components of them that t-SNE is given."""
FAMILY_STYLES = [(BLUE, "o"), (VERMILION, "^"), (GREEN, "s"), (ORANGE, "D"), (SKY, "v"), (BLACK, "P")]


def draw_images(run: Run, others: Sequence[Run], *, seed: int) -> dict[str, Figure]:
    """Both figures; soft assignments are those of the first run, t-SNE has a panel for each."""
    spec = run.config.source.spec
    for other in others:
        if other.config.source.spec != spec:
            raise InputError(f"{other.folder} cannot be drawn beside {run.folder}: its images or classes differ")
    return {
        "assignments": assignments_beside_images(run, seed=seed),
        "tsne": initializations([run, *others], tasks_per_family=TASKS_PER_FAMILY, seed=seed),
    }


def assignments_beside_images(run: Run, *, seed: int) -> Figure:
    """A row for each of twelve tasks: its support images, its soft assignment and its path through the hierarchy."""
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
        rows[0][1].set_title("share of each cluster, eq. (6)")
        rows[0][2].set_title("activated path, first level below")
        name_clusters(rows[-1][1], levels[0])
    else:
        figure.suptitle(f"{label_of(run)} has no clusters: images alone")
    return figure


def draw_support(axes: Axes, drawn: Drawn) -> None:
    """The first support image of each class, side by side."""
    axes.imshow(strip(first_of_each_class(drawn.task)))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_ylabel(drawn.name, rotation="horizontal", ha="right", va="center")


def first_of_each_class(task: Task) -> Float[np.ndarray, "k h w c"]:
    """A support image of each class that has one, in the order of labels."""
    real = np.asarray(task.support.mask)
    labels = np.asarray(task.support.y)[real].argmax(1)
    _, first = np.unique(labels, return_index=True)
    return np.asarray(task.support.x)[real][first]


def strip(images: Float[np.ndarray, "k h w c"]) -> Float[np.ndarray, "h _ c"]:
    """Images side by side, with white between them."""
    gap = max(1, images.shape[2] // 16)
    spaced = np.pad(images.clip(0, 1), ((0, 0), (0, 0), (0, gap), (0, 0)), constant_values=1)
    return np.concatenate(list(spaced), axis=1)[:, :-gap]


def draw_shares(axes: Axes, adapted: FittedTask) -> None:
    """p^{0→k} of one task; darker is more."""
    shares = adapted.assignments[0][:1]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for column, share in enumerate(shares[0]):
        color = "white" if share > 0.55 else "black"
        axes.text(column, 0, f"{share:.2f}", ha="center", va="center", color=color, fontsize=text_size(shares))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def name_clusters(axes: Axes, shares: np.ndarray) -> None:
    """C1, C2, ... under the last row."""
    places = range(shares.shape[1])
    axes.set_xticks(places, [f"C{k + 1}" for k in places], fontsize=text_size(shares))
    axes.tick_params(length=0)


def text_size(shares: np.ndarray) -> int:
    """Smaller where clusters are many."""
    return 9 if shares.shape[1] <= 6 else 6


def node_shares(assignments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """How strongly a task reaches each cluster: s^1 = p^{0→·}, s^{l+1} = Σ_k s^l_k p^{k→·}; the root has 1."""
    return list(itertools.accumulate(assignments[1:], np.matmul, initial=assignments[0][0]))


def draw_hierarchy(axes: Axes, assignments: Sequence[np.ndarray]) -> None:
    """Clusters as nodes, dark by share; edges, dark by s_k p^{k→k'}; the path of each level's largest share red."""
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
        places = across(len(level), widest), np.full(len(level), height)
        axes.scatter(*places, s=80, c=level, cmap="Blues", vmin=0, vmax=1, edgecolors=rings, linewidths=1.4, zorder=3)
    axes.set(xlim=(-0.6, widest - 0.4), ylim=(-0.45, len(shares) - 0.55))
    axes.set_axis_off()


def across(count: int, widest: int) -> np.ndarray:
    """Where the nodes of a level stand, spread over the width of the widest."""
    return (np.arange(count) + 0.5) * widest / count - 0.5


def initializations(runs: Sequence[Run], *, tasks_per_family: int, seed: int) -> Figure:
    """t-SNE of what each run starts from in the same test tasks, coloured by dataset: gated parameters, or codes."""
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
            axes.text(0.5, 0.5, "starts from the same\nparameters in every task", ha="center", va="center")
    figure.suptitle(
        f"t-SNE of the tailored initialisation, {tasks_per_family:,} test tasks of each dataset", fontsize=9
    )
    if drawn := next((axes for axes in panels if axes.collections), None):
        legend: Any = figure.legend(*drawn.get_legend_handles_labels(), loc="outside lower center", ncols=6)
        for handle in legend.legend_handles:
            handle.set(sizes=[40], alpha=1)
    return figure


def tailored(
    run: Run, parts: Sequence[tuple[TaskDraw, PRNGKeyArray]], *, num_tasks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Of so many test tasks of each part a sketch of θ₀ᵢ, the family, and the shares of the first-level clusters."""
    learner, in_flight = run.config.learner, run.config.training.task_chunk_size

    def of_part(part: TaskDraw, key: PRNGKeyArray) -> Any:
        return in_batches(
            lambda start, size: _tailored_batch(learner, run.meta, part, key, start, size, in_flight), num_tasks
        )

    found = [of_part(part, key) for part, key in parts]
    return jax.tree.map(lambda *each: np.concatenate(each), *found)


@eqx.filter_jit
def _tailored_batch(
    learner: Learner, meta: Meta, tasks: TaskDraw, key: PRNGKeyArray, start: Array, size: int, task_chunk_size: int
):
    def one(index: Array):
        task = tasks.sample(jax.random.fold_in(key, index))
        _, info = learner.adapt(meta, task.support, steps=0)
        return sketch(parameters(info.path)), task.family, info.assignments[0][0] if info.assignments else None

    return over_tasks(one, start + jnp.arange(size), task_chunk_size=task_chunk_size)


def parameters(predictor: Any) -> Float[Array, " n"]:
    """All numbers of a predictor in a row, without those of a support set that it was told of."""

    def is_support(part: Any) -> bool:
        return isinstance(part, Examples)

    told = jax.tree.map(lambda part: None if is_support(part) else part, predictor, is_leaf=is_support)
    return ravel_pytree(eqx.filter(told, eqx.is_inexact_array))[0]


def sketch(values: Float[Array, " n"]) -> Float[Array, " m"]:
    """Few numbers whose distances between tasks are about those of the many.

    A fixed random projection: each number, with a random sign, is added to one of 500 sums. Parameters that all tasks
    have in common add the same to every task's sums, so that only those that differ tell tasks apart.
    """
    if values.size <= SKETCH:
        return values
    random = np.random.default_rng(0)
    order, signs = random.permutation(values.size), random.choice(np.array([-1, 1], np.float32), values.size)
    padded = jnp.pad((values * signs)[order], (0, -values.size % SKETCH))
    return padded.reshape(-1, SKETCH).sum(0)


def principal(vectors: np.ndarray) -> np.ndarray:
    """The first principal components of each vector."""
    return PCA(min(COMPONENTS, *vectors.shape), random_state=0).fit_transform(vectors.astype(np.float64))


def embed(components: np.ndarray) -> np.ndarray:
    """Each vector's place in the plane."""
    perplexity = min(30.0, (len(components) - 1) / 3)
    return TSNE(perplexity=perplexity, init="random", random_state=0).fit_transform(components)


def title(run: Run, components: np.ndarray, families: np.ndarray, shares: np.ndarray | None) -> str:
    """Whose panel it is, and how far clusters agree with datasets where there are several."""
    num_families = len(np.unique(families))
    if num_families == 1:
        return label_of(run)
    agreements = [f"k-means {kmeans_nmi(components, families):.2f}"]
    if shares is not None:
        agreements += [f"its own clusters {normalized_mutual_info_score(families, shares.argmax(1)):.2f}"]
    return f"{label_of(run)}\nNMI with the dataset: {', '.join(agreements)}"


def kmeans_nmi(vectors: np.ndarray, families: np.ndarray) -> float:
    """Normalised mutual information of the families and as many k-means clusters of the vectors."""
    how: Any = {"n_init": 10, "random_state": 0}
    clusters = KMeans(len(np.unique(families)), **how).fit_predict(vectors)
    return float(normalized_mutual_info_score(families, clusters))


def scatter(axes: Axes, places: np.ndarray, families: np.ndarray, names: Sequence[str]) -> None:
    """Tasks in the plane, a colour and a marker for each family."""
    size = float(np.clip(24_000 / len(places), 6, 30))
    for family, (color, marker) in zip(np.unique(families), itertools.cycle(FAMILY_STYLES), strict=False):
        at = places[families == family]
        axes.scatter(*at.T, s=size, c=color, marker=marker, alpha=0.6, linewidths=0, label=names[family])
